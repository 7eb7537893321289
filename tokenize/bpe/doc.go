// Package bpe turns text into token IDs as a model's own tokenizer does, driven
// by the tokenizer.json that the model ships: byte-pair encoding, byte-level as
// Qwen 2 to 3, Llama 3, Mistral Nemo, DeepSeek V3 and gpt-oss use it, and with
// byte fallback as Gemma 3 does. It is the inner half of step 2 of a request's
// way: package tokenize renders the chat template and hands the text over.
//
// A text goes through five steps:
//
//  1. Added tokens ("<|im_end|>") are found, the leftmost and longest first.
//  2. What lies between them is normalized (NFC for Qwen), each piece on its own.
//  3. A scanner cuts it into words, as the pre-tokenizer's expressions do; for
//     Gemma, which has none, before spaces, where no merge goes across.
//  4. A word that is a token is looked up; one that was merged lately is
//     remembered.
//  5. Else its characters are tokens, or their bytes, and the neighbours that rank
//     first among the merges become one, until none are left.
//
// Invariants:
//
//   - The IDs are those of the Hugging Face tokenizers library, for every text.
//     A file with a feature that is not known here is refused by [Load], with
//     the feature's name: a wrong token would look like a cold cache for ever.
//   - Decode(Append(nil, s)) is s for valid UTF-8, but that what stands between
//     added tokens is normalized where the model normalizes, and that Gemma
//     writes a ▁ as a space.
//   - IDs may be computed apart on both sides of a [Tokenizer.Borders] offset.
//
// An example:
//
//	t, err := bpe.Load(tokenizerJSON)
//	ids := t.Append(nil, "<|im_start|>user\nHello<|im_end|>\n")
//
// What varies between models is data, but for the pre-tokenizer's expressions:
// one more set of them is one more scanner in scan.go. Gemma's way is in
// metaspace.go; chars.go proves which characters may be merged as a whole from
// the start. tables.go says what is a letter, and is made by gen/tables.py.
package bpe
