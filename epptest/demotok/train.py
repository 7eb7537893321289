#!/usr/bin/env python3
"""Trains the demo's tokenizer: byte-level BPE in the tokenizer.json format.

Reads words.txt (the commonest first) and corpus.txt, writes tokenizer.json.
Standard library alone, the same bytes on every run:

    python3 epptest/demotok/train.py

The text is split by an approximation of the pre-tokenizer that the file names
(ASCII classes): training needs likely pieces, exactness is the reader's work.
"""

import collections
import json
import pathlib
import re

VOCAB = 4096  # with the 256 bytes, without the added tokens
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen 2 and 3 ship this pattern.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)|[^\r\na-zA-Z0-9]?[a-zA-Z]+|[0-9]"
    r"| ?[^\sa-zA-Z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    re.IGNORECASE,
)
HERE = pathlib.Path(__file__).parent


def byte_alphabet():
    """The printable character that stands for each byte in a byte-level file."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = {b: chr(b) for b in keep}
    for i, b in enumerate(b for b in range(256) if b not in chars):
        chars[b] = chr(256 + i)
    return chars


def pieces():
    """Counts the pieces to train on. A word with the space before it counts
    most, so that it becomes one token; then the word alone and capitalised."""
    counts = collections.Counter()
    for rank, word in enumerate((HERE / "words.txt").read_text().split()):
        counts[" " + word] += 4000 - rank
        counts[word] += 20
        counts[word.capitalize()] += 10
        counts[" " + word.capitalize()] += 10
    for piece in SPLIT.findall((HERE / "corpus.txt").read_text()):
        counts[piece] += 30
    return counts


def train(counts, chars, merges_max):
    """Merges the most frequent neighbours, ties by text, until merges_max."""
    words = [[[chars[b] for b in piece.encode()], n] for piece, n in sorted(counts.items())]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for i, (symbols, n) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += n
            where[pair].add(i)
    merges = []
    while len(merges) < merges_max:
        best = max(pairs, key=lambda p: (pairs[p], p), default=None)
        if best is None or pairs[best] <= 0:
            break
        merges.append(best)
        for i in where.pop(best):
            symbols, n = words[i]
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] -= n
            words[i][0] = symbols = merge(symbols, best)
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += n
                where[pair].add(i)
        del pairs[best]
    return merges


def merge(symbols, pair):
    out, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            out.append(pair[0] + pair[1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


def main():
    chars = byte_alphabet()
    # Two pairs may merge to the same text; it keeps its first ID.
    merges = train(pieces(), chars, VOCAB - 256)
    texts = list(dict.fromkeys([*chars.values()] + [a + b for a, b in merges]))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    file = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(texts) + i, "content": text, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
            for i, text in enumerate(ADDED)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }
    out = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
    (HERE / "tokenizer.json").write_text(out + "\n")
    print(len(texts), "tokens,", len(merges), "merges,", len(out.encode()), "bytes")


main()
