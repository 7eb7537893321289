// Package chat makes the prompt's text of a chat request: it prepares the
// messages, tools and options as vLLM does before it calls the template, and
// renders the template of the model's tokenizer. It is the first half of the step
// from a request to its tokens; package tokenize does the second.
//
//	t, err := chat.Load("", tokenizerConfigJSON)
//	text, err := t.Render(body) // "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
//
// The text is exactly the engine's, or there is none: where a request has what
// only the engine can turn into a prompt (images, audio, a template of its own)
// Render returns an error that is [ErrNotRenderable], and the caller asks the
// engine. A template that uses what our Jinja does not know is refused by Load,
// with the name of what is missing.
//
// Some models have no template that counts: gpt-oss, DeepSeek V3.2 and V4, Kimi K3
// and Cohere's are rendered by code inside vLLM, and repositories with tekken.json
// by mistral-common. Their prompts are to be asked from the engine.
//
// # Bug for bug
//
// The preparation follows vLLM 0.32: vllm/entrypoints/openai/chat_completion/protocol.py,
// vllm/renderers/chat_utils.py and vllm/renderers/hf.py, and transformers 5.19:
// utils/chat_template_utils.py. What vLLM would refuse with 400 (a tool call
// without a function, a role that is no string) is not rendered here either.
package chat
