//go:build vllm

package vllm

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// parse has vLLM's own parser read flags as vllm serve would, and prints what the
// example rests on.
const parse = `
import sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
a = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
validate_parsed_serve_args(a)
k = a.kv_events_config
print(k.enable_kv_cache_events, k.publisher, k.endpoint, k.replay_endpoint, a.enable_prompt_tokens_details, a.max_num_seqs, len(a.lora_modules))
`

// The flags of deploy/examples/vllm.yaml are this vLLM's, and it publishes events where
// the example's ports say.
func TestExampleFlags(t *testing.T) {
	bin, err := script("install.sh")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("../../deploy/examples/vllm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	args := []string{"-c", parse}
	for d := yaml.NewDecoder(file); ; {
		var o struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct{ Args []string }
					}
				}
			}
		}
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, c := range o.Spec.Template.Spec.Containers {
			args = append(args, c.Args...)
		}
	}
	out, err := exec.Command(filepath.Join(bin, "python"), args...).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	const want = "True zmq tcp://*:5557 tcp://*:5558 True 256 3"
	if got := lines[len(lines)-1]; err != nil || got != want {
		t.Errorf("%v: %q; want %q:\n%s", err, got, want, out)
	}
}
