#!/usr/bin/env python3
"""Renders every template of templates.txt by Python's jinja2, in the environment
that transformers makes for chat templates, into vectors.jsonl.

    python3 -m venv v && v/bin/pip install 'transformers==5.19.*' jinja2
    v/bin/python make_vectors.py

templates.txt holds one template per block, blocks are separated by lines of
"---"; a block's text is taken as it is but for its last newline. Each is
rendered with the variables below."""
import json, pathlib
from transformers.utils.chat_template_utils import _compile_jinja_template

here = pathlib.Path(__file__).parent
DATA = json.loads((here / "data.json").read_text())

with open(here / "vectors.jsonl", "w") as out:
    for block in (here / "templates.txt").read_text().split("\n---\n"):
        v = {"template": block}
        try:
            v["out"] = _compile_jinja_template(block).render(**json.loads(json.dumps(DATA)))
        except Exception as e:
            v["error"] = f"{type(e).__name__}: {e}"
        out.write(json.dumps(v, ensure_ascii=False) + "\n")
