// Package bpe turns text into token IDs as a model's own tokenizer does, driven
// by the tokenizer.json that the model ships: byte-level byte-pair encoding as
// Qwen 2 and 3 and Llama 3 use it. It is the inner half of step 2 of a request's
// way: package tokenize renders the chat template and hands the text over.
//
// A text goes through five steps:
//
//  1. Added tokens ("<|im_end|>") are found, the leftmost and longest first.
//  2. What lies between them is normalized (NFC), each piece on its own.
//  3. A scanner cuts it into words, as the pre-tokenizer's expression does.
//  4. A word that is a token is looked up; one that was merged lately is
//     remembered.
//  5. Else its bytes are tokens, and the neighbours that rank first among the
//     merges become one, until none are left.
//
// Invariants:
//
//   - The IDs are those of the Hugging Face tokenizers library, for every text.
//     A file with a feature that is not known here is refused by [Load], with
//     the feature's name: a wrong token would look like a cold cache for ever.
//   - Decode(Append(nil, s)) is s for valid UTF-8, but that what stands between
//     added tokens is normalized where the model normalizes.
//   - IDs may be computed apart on both sides of a [Tokenizer.Borders] offset.
//
// An example:
//
//	t, err := bpe.Load(tokenizerJSON)
//	ids := t.Append(nil, "<|im_start|>user\nHello<|im_end|>\n")
//
// What varies between models is data, but for the pre-tokenizer's expression:
// one more is one more scanner in scan.go. tables.go says what is a letter, and
// is made by gen/tables.py.
package bpe
