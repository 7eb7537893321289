import sys, types, json, ast, re
from unittest.mock import MagicMock
SRC = sys.argv[1].rstrip('/') + '/'  # the folder vllm/ of an unpacked wheel
def mod(name, **kw):
    m=types.ModuleType(name); m.__dict__.update(kw); sys.modules[name]=m; return m
from typing import *
import pydantic
mod('vllm'); mod('vllm.envs', VLLM_MAX_STOP_STRINGS=64, VLLM_MAX_STOP_STRING_LENGTH=999); sys.modules['vllm'].envs=sys.modules['vllm.envs']
mod('vllm.entrypoints'); mod('vllm.entrypoints.generate'); mod('vllm.entrypoints.generate.base')
mod('vllm.entrypoints.generate.base.protocol', MMPayload=Any, resolve_return_mm_kwargs_alias=lambda d:d)
ns={'__name__':'proto'}
m=types.ModuleType('proto'); sys.modules['proto']=m
exec(compile(open(SRC+'entrypoints/anthropic/protocol.py').read(),'protocol.py','exec'),m.__dict__)
src=open(SRC+'entrypoints/anthropic/serving.py').read()
tree=ast.parse(src)
cls=[n for n in tree.body if isinstance(n,ast.ClassDef) and n.name=='AnthropicServingMessages'][0]
want={'_convert_image_source_to_url','_convert_system_message','_extract_system_text','_convert_messages','_convert_message_content','_convert_block','_convert_tool_use_block','_convert_tool_result_block','_convert_user_tool_result','_resolve_tools'}
cls.body=[n for n in cls.body if isinstance(n,ast.FunctionDef) and n.name in want]
cls.bases=[]
g=dict(m.__dict__); g.update(json=json,time=__import__('time'),Any=Any)
exec(compile(ast.Module(body=[cls],type_ignores=[]),'serving.py','exec'),g)
C=g['AnthropicServingMessages']
cases=json.load(open('messages.in.json'))
out=[]
for c in cases:
    req=m.AnthropicMessagesRequest(**c['body'])
    msgs=[]
    C._convert_system_message(req,msgs,merge_inline_system=c['merge'])
    C._convert_messages(req.messages,msgs,merge_inline_system=c['merge'])
    tools=C._resolve_tools(req)
    tools=None if tools is None else [{"type":"function","function":{k:v for k,v in dict(name=t.name,description=t.description,parameters=t.input_schema,strict=t.strict,defer_loading=t.defer_loading).items() if v is not None or k in('description','parameters')}} for t in tools]
    out.append({'name':c['name'],'merge':c['merge'],'body':c['body'],'messages':msgs,'tools':tools})
print(json.dumps(out,indent=1,ensure_ascii=False))
