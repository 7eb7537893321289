package main

import (
	"fmt"
	"io"
	"net/http"

	"epp.internal/epp/bench/rig"
)

// answer is the same for every chat.
const answer = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"` + rig.Model +
	`","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":4096,"completion_tokens":1,"total_tokens":4097}}`

// page is an idle engine's.
const page = "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"" + rig.Model + "\"} 0\n" +
	"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"" + rig.Model + "\"} 0\n" +
	"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\"" + rig.Model + "\"} 0.1\n" +
	"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"20000\"} 1\n"

// serveEngine is an engine that answers every chat at once, and what routers ask
// of one beside that.
func serveEngine(address string) error {
	mux := http.NewServeMux()
	say := func(path, contentType, text string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			w.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(w, text) // the client may be gone
		})
	}
	const json = "application/json"
	info := fmt.Sprintf(`{"model_path":%q,"served_model_name":%[1]q,"is_generation":true,"version":"0.5.0"}`, rig.Model)
	say(chatPath, json, answer)
	say("/v1/models", json, fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model","owned_by":"vllm","max_model_len":32768}]}`, rig.Model))
	for _, path := range []string{"/get_model_info", "/model_info", "/get_server_info", "/server_info"} {
		say(path, json, info)
	}
	say("/metrics", "text/plain; version=0.0.4", page)
	say("/health", "text/plain", "")
	return http.ListenAndServe(address, mux) //nolint:gosec // it lives as long as a measurement, on this machine
}
