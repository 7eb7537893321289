#!/usr/bin/env python3
"""Writes random texts with the token IDs that the Hugging Face library gives.

    pip install tokenizers==0.23.3
    make_vectors.py FILE.json [--count N] [--seed N] [--length N] [--llama3 | --gemma] > OUT.jsonl
    make_vectors.py --splits FILE.json ... [--count N] > OUT.jsonl

FILE.json is a tokenizer.json. With --llama3 or --gemma it is changed first as
like_llama3 and like_gemma below say; variants_test.go does the same. Each line is
{"text": …, "ids": […]}. With --splits it is the text and, for each file, the
lengths in bytes of the words that its pre-tokenizer cuts.
The committed files:

    make_vectors.py "$(sh test/fetch-tokenizers.sh qwen3)/tokenizer.json" --count 1100 > qwen3_random.jsonl
    make_vectors.py epptest/demotok/tokenizer.json --count 400 --llama3 > llama3_random.jsonl
    make_vectors.py epptest/demotok/tokenizer.json --count 400 --gemma > gemma_random.jsonl
    make_vectors.py --splits $(for f in qwen3 llama3_1 gptoss mistral_nemo deepseek_v3; do
        echo "$(sh test/fetch-tokenizers.sh $f)/tokenizer.json"; done) --count 1000 > splits.jsonl
"""

import argparse
import json
import random
import unicodedata

from tokenizers import Regex, Tokenizer, pre_tokenizers

ADDED = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
NEARLY = ["<|im_start", "<|im_", "<|", "<", "|>", "im_end|>", "<|im_end|", "<<|im_end|>>", "<tool_call", "</", "<|IM_END|>"]
WORDS = """the endpoint picker scores every pod don't can't WE'LL they've I'm you'd it's O'Reilly 'tis rock'n'roll
func return nil if err != nil { } [] () ; := == // /* */ #include <stdio.h> "quoted" `x` a.b.c x->y snake_case camelCase HTTPServer
größer naïve café São Đà Nẵng Việt Nam привет мир здравствуйте Ελληνικά עברית العربية हिन्दी বাংলা ไทย 中文字符 日本語 にほんご カタカナ 한국어 조선말
https://example.com/a?b=c&d=%20 1.5e-10 0xDEADBEEF 2026-11-29 100,000 ½ Ⅷ ٣٤٥ 一二三 x² ½kg""".split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\t\t", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\v", "\f", "\u200b", "\ufeff", "\u180e", "\x1c", "\x1f"]
QUOTED = ["'s", "'S", "'\u017f", "'t", "'re", "'RE", "'rE", "'ve", "'m", "'ll", "'Ll", "'d", "'", "''", "'x", "\u2019s", "'\u212a", "'ß"]
# Blocks where scripts, marks, jamo, numbers, symbols and young code points live.
BLOCKS = [
    (0x20, 0x7E), (0x00, 0x1F), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x5FF),
    (0x600, 0x6FF), (0x8A0, 0x8FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB00, 0xBFF), (0xD00, 0xDFF), (0xE00, 0xEFF), (0xF00, 0xFFF),
    (0x1000, 0x109F), (0x1100, 0x11FF), (0x1AB0, 0x1AFF), (0x1B00, 0x1B7F), (0x1DC0, 0x1DFF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF),
    (0x2000, 0x206F), (0x20D0, 0x20FF), (0x2100, 0x218F), (0x2460, 0x24FF), (0x2DE0, 0x2DFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF),
    (0xA640, 0xA69F), (0xA720, 0xA7FF), (0xAC00, 0xD7A3), (0xD7B0, 0xD7FF), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFB4F),
    (0xFE00, 0xFE2F), (0xFF00, 0xFFEF), (0x10100, 0x1018F), (0x10D00, 0x10DFF), (0x11000, 0x1107F), (0x11300, 0x1137F),
    (0x11380, 0x113FF), (0x16100, 0x1613F), (0x16D40, 0x16D7F), (0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF), (0x1E000, 0x1E8FF),
    (0x1F300, 0x1F6FF), (0x1FBF0, 0x1FBFF), (0x20000, 0x200FF), (0x2F800, 0x2FA1D), (0x31350, 0x313FF), (0xE0100, 0xE01EF), (0x10FFF0, 0x10FFFF),
]
MARKS = [chr(c) for c in range(0x110000) if unicodedata.combining(chr(c))] + ["\u08d3", "\u1ac0", "\u1abf", "\U00010eab"]
BASES = "aeiouAEOUnsczdlyıſ" + "\u0915\u0928\u09c7\u0b47\u0bc6\u0d46\u1025\u3046\u30ab\u05d9\u0627\u1100\u1112\uac00"


# What one expression or the other cuts in its own way.
TRAPS = ["中AB", "ABC中def", "ǅungla ʰAb aʰB", "HTTPServer'S it'll WE'LL'd don'T x'ſ", "\u0301AB", " \u0301AB \u0301ab", "\u0301\u0301AB x\u0301Y", "\u0301", "(\u0301", "a/b//c/\n/",
    "1234567 ١٢٣٤٥ ½⅓", "a  1", "a  中", "a \n 1", "カ゛カ゜・ー゠ゝ 中3文", "一二三〇 二", "\0\1a \1\0022", "_foo __foo 'été 'ete @user#tag", "\ue000\ue001x\ue000 1", "\u3040\u3097あ\u3099い",
    "\u0378\u0379A\u0378", "\u200bA\u200b\u200b", "- \u00ada", "!\r\n\r\n1", "!\n中", "Ⅷa ⅷB", "ªb ºC", "İI ıi ǈx", "\u0345A\u0345a", "Aa'Sb", "'sA", "A'", "'\u0301s", "\r\na", "\t\u0301"]


def char(r):
    kind = r.random()
    if kind < 0.9:
        return chr(r.randint(*r.choice(BLOCKS)))
    c = r.randint(0, 0x10FFFF)
    return chr(c) if not 0xD800 <= c <= 0xDFFF else "\ufffd"


def piece(r):
    """One piece of text, of a kind that has gone wrong in some tokenizer."""
    return r.choice([
        lambda: r.choice(WORDS),
        lambda: " " + r.choice(WORDS),
        lambda: r.choice(SPACES),
        lambda: "".join(r.choice(SPACES) for _ in range(r.randint(1, 5))),
        lambda: r.choice(QUOTED),
        lambda: r.choice(WORDS) + r.choice(QUOTED) + r.choice(["", r.choice(WORDS)]),
        lambda: r.choice(ADDED),
        lambda: r.choice(NEARLY),
        lambda: "".join(r.choice("0123456789") for _ in range(r.randint(1, 8))),
        lambda: "".join(r.choice("!?.,;:-_=+*/\\()[]{}<>|&^%$#@~`\"'") for _ in range(r.randint(1, 6))),
        lambda: char(r),
        lambda: "".join(chr(r.randint(*block)) for block in [r.choice(BLOCKS)] for _ in range(r.randint(1, 12))),
        lambda: r.choice(BASES) + "".join(r.choice(MARKS) for _ in range(r.randint(1, 4))),
        lambda: unicodedata.normalize("NFD", r.choice(WORDS)),
        lambda: "".join(chr(r.randint(0x1100, 0x11FF)) for _ in range(r.randint(1, 6))),
        lambda: "".join(r.choice("abcdefgehijklmnoprstuvwxyz") for _ in range(r.randint(1, 20))),
    ])()


def rare(r):
    """Now and then something long: past the word cache, the heap's threshold,
    and the 30 marks after which some normalizers insert U+034F."""
    return r.choice([
        lambda: "e" + "".join(r.choice(MARKS) for _ in range(r.randint(25, 80))),
        lambda: "".join(chr(r.randint(0x4E00, 0x9FFF)) for _ in range(r.randint(20, 60))),
        lambda: "".join(r.choice("abcdefghij") for _ in range(r.randint(40, 300))),
        lambda: r.choice(["a", "ab", "=", "-", " ", "\n", "é"]) * r.randint(40, 200),
    ])()


def text(r, length):
    return "".join(piece(r) if r.random() > 0.01 else rare(r) for _ in range(r.randint(0, length)))


def like_llama3(file):
    """Llama 3's way around another vocabulary: its pre-tokenizer, no normalizer,
    ignore_merges with words that no merge leads to, a first token, an added
    token that is found after normalization."""
    split = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    split["Regex"] = split["Regex"].replace(r"\p{N}|", r"\p{N}{1,3}|")
    model = file["model"]
    size = len(model["vocab"])
    model["vocab"].update({"ĠViá»ĩt": size, "Ã©tÃ©": size + 1, "123": size + 2})
    model["ignore_merges"] = True
    added = file["added_tokens"]
    for i, token in enumerate(added):
        token["id"] = size + 3 + i
    added.append(dict(added[0], id=size + 3 + len(added), content="<think>", normalized=True, special=False))
    first = added[0]
    file["normalizer"] = None
    file["post_processor"] = {"type": "Sequence", "processors": [file["post_processor"], {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": first["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {first["content"]: {"id": first["content"], "ids": [first["id"]], "tokens": [first["content"]]}},
    }]}
    return file


def like_gemma(file):
    """Gemma's way around another vocabulary: characters instead of bytes, ▁
    instead of a space, byte fallback, a token with ▁ inside, added tokens that
    are white space. Tokens that are no UTF-8 are left out."""
    alphabet, extra = {}, 256
    for b in range(256):
        printable = 32 < b < 127 or 160 < b and b != 173
        alphabet[chr(b if printable else extra)] = b
        extra += not printable

    def spell(token):
        try:
            return bytes(alphabet[c] for c in token).decode().replace(" ", "▁")
        except UnicodeDecodeError:
            return None

    old = file["model"]
    vocab = {"<unk>": 0}
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = 1 + b
    for token, _ in sorted(old["vocab"].items(), key=lambda item: item[1]):
        if (text := spell(token)) is not None:
            vocab[text] = len(vocab)
    merges = []
    for merge in old["merges"]:
        left, right = map(spell, merge.split(" ") if isinstance(merge, str) else merge)
        if left is not None and right is not None:
            merges.append([left, right])
    for left, right in [("<", "/"), ("▁", "</"), (">", "▁</"), ("é", "é")]:
        for text in (left, right, left + right):
            vocab.setdefault(text, len(vocab))
        if [left, right] not in merges:
            merges.append([left, right])
    file["model"] = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab, "merges": merges}
    added = file["added_tokens"]
    for content in ["\n\n", "▁▁", "\t"]:
        added.append(dict(added[0], content=content, special=False))
    for token in added:
        token["id"] = vocab.setdefault(token["content"], len(vocab))
    file["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    file["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    file["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    file["post_processor"] = None
    return file


def splitter(file):
    """A function that cuts a text as the file's expressions do."""
    steps = [pre_tokenizers.Split(Regex(s["pattern"]["Regex"]), "isolated") for s in file["pre_tokenizer"]["pretokenizers"] if s["type"] == "Split"]
    sequence = pre_tokenizers.Sequence(steps)
    return lambda text: [len(word.encode()) for word, _ in sequence.pre_tokenize_str(text)]


def read(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("file", nargs="+")
    args.add_argument("--count", type=int, default=1000)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--length", type=int, default=8, help="pieces in a text, at most")
    args.add_argument("--llama3", action="store_true")
    args.add_argument("--gemma", action="store_true")
    args.add_argument("--splits", action="store_true")
    args = args.parse_args()
    r = random.Random(args.seed)
    texts = [text(r, args.length) for _ in range(args.count)]
    if args.splits:
        texts = TRAPS + texts
        cut = [splitter(read(path)) for path in args.file]
        for t in texts:
            print(json.dumps({"text": t, "words": [c(t) for c in cut]}, separators=(",", ":")))
        return
    file = read(args.file[0])
    for change, wanted in [(like_llama3, args.llama3), (like_gemma, args.gemma)]:
        file = change(file) if wanted else file
    tokenizer = Tokenizer.from_str(json.dumps(file))
    for t, e in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False)):
        print(json.dumps({"text": t, "ids": e.ids}, separators=(",", ":")))


if __name__ == "__main__":
    main()
