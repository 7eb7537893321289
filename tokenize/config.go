package tokenize

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// config is what a model's config.json tells of its tokens.
type config struct {
	ModelType     string   `json:"model_type"`
	Architectures []string `json:"architectures"`
}

func readConfig(configJSON []byte) (config, error) {
	var c config
	if configJSON == nil {
		return c, nil
	}
	if err := json.Unmarshal(configJSON, &c); err != nil {
		return c, fmt.Errorf("config.json: %w", err)
	}
	return c, nil
}

// modes maps architectures to the tokenizer mode that vLLM 0.32 takes for them.
//
// Source: vLLM, ModelConfig.__post_init__.
var modes = map[string]string{
	"DeepseekV32ForCausalLM":             "deepseek_v32",
	"DeepseekV4ForCausalLM":              "deepseek_v4",
	"DeepseekV4ForConditionalGeneration": "deepseek_v4",
	"DeepseekV41ForCausalLM":             "deepseek_v41",
	"KimiK3ForConditionalGeneration":     "kimi_k3",
	"MoonshotKimiaForCausalLM":           "kimi_audio",
	"InklingForCausalLM":                 "inkling",
	"InklingForConditionalGeneration":    "inkling",
}

// noTemplate returns why a model's chats are not rendered by a template, "" if
// they are. mode is the engine's option.
//
// Source: vLLM, vllm/renderers/registry.py and OnlineRenderer.use_harmony.
func (c *config) noTemplate(mode string) string {
	if c.ModelType == "gpt_oss" {
		return "the engine renders gpt_oss by openai-harmony, not by a template"
	}
	if mode == "" || mode == "auto" {
		for _, architecture := range c.Architectures {
			if mode = modes[architecture]; mode != "" {
				break
			}
		}
		if mode == "" && (strings.HasPrefix(c.ModelType, "deepseek_v32") || strings.HasPrefix(c.ModelType, "deepseek_v4") || c.ModelType == "kimi_k3") {
			mode = c.ModelType
		}
	}
	switch mode {
	case "", "auto", "hf":
		return ""
	case "mistral":
		return "the engine renders chats by mistral-common, not by a template"
	}
	return fmt.Sprintf("the engine renders chats by its code for tokenizer mode %q, not by a template", mode)
}

// fileClasses are the model types for which transformers takes tokenizer.json as
// it is, whatever tokenizer_class says.
//
// Source: transformers 5.19, TOKENIZER_MAPPING_NAMES: those with TokenizersBackend.
var fileClasses = []string{
	"deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_vl_v2", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "glm4_moe", "granite",
	"granitemoe", "granitemoehybrid", "kimi_k25", "kimi_linear", "minimax_m2", "ministral", "ministral3", "mistral", "mistral3", "mixtral", "nemotron",
	"olmo2", "olmo3", "phi3", "phimoe", "pixtral", "stablelm",
}

// classWays are the tokenizer classes that build a tokenizer of their own from the
// vocabulary, and how it cuts texts: see [bpe.Tokenizer.Way]. Llama's splits at
// spaces, which nothing here does.
//
// Source: transformers 5.19, Qwen2Tokenizer, GemmaTokenizer, LlamaTokenizer.
var classWays = map[string]string{"Qwen2Tokenizer": "qwen2+NFC", "GemmaTokenizer": "gemma", "LlamaTokenizer": "llama2"}

// sameWay refuses a model for which transformers would not take tokenizer.json as
// it is, but one that cuts texts otherwise. DeepSeek V3's files without their
// config.json would lose every space there.
//
// Source: transformers 5.19, AutoTokenizer.from_pretrained.
func (c *config) sameWay(tokenizerConfigJSON []byte, way string) error {
	var settings struct {
		Class string `json:"tokenizer_class"`
	}
	if err := json.Unmarshal(tokenizerConfigJSON, &settings); err != nil {
		return fmt.Errorf("tokenizer_config.json: %w", err)
	}
	class := strings.TrimSuffix(settings.Class, "Fast")
	if c.ModelType == "qwen2" { // whatever tokenizer_class says
		class = "Qwen2Tokenizer"
	}
	want, ok := classWays[class]
	if !ok || way == want || slices.Contains(fileClasses, c.ModelType) {
		return nil
	}
	return fmt.Errorf("tokenizer_config.json: tokenizer_class %q with model_type %q in config.json is not supported: the engine would not take tokenizer.json as it is (%s) but cut texts as %s does",
		settings.Class, c.ModelType, way, want)
}
