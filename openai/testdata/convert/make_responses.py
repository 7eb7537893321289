import sys, types, json, ast
from typing import *
from collections.abc import Iterable
SRC = sys.argv[1].rstrip('/') + '/'  # the folder vllm/ of an unpacked wheel
from openai.types.responses import *
from openai.types.responses.response_function_tool_call_output_item import ResponseFunctionToolCallOutputItem
src=open(SRC+'entrypoints/openai/responses/utils.py').read()
tree=ast.parse(src)
want={'_item_type','_item_dict','should_continue_final_message','construct_input_messages','construct_chat_messages_with_tool_call','_construct_message_from_response_item','encode_custom_tool_input'}
body=[n for n in tree.body if isinstance(n,ast.FunctionDef) and n.name in want]
for f in body:
    f.returns=None
    for a in f.args.args+f.args.kwonlyargs: a.annotation=None
    class T(ast.NodeTransformer):
        def visit_AnnAssign(s,n): return ast.copy_location(ast.Assign(targets=[n.target],value=n.value),n) if n.value else None
    T().visit(f); ast.fix_missing_locations(f)
from openai.types.chat import ChatCompletionAssistantMessageParam, ChatCompletionMessageToolCallParam, ChatCompletionToolMessageParam
from openai.types.chat.chat_completion_message_tool_call_param import Function as FunctionCallTool
g=dict(globals())
import logging; g['logger']=logging.getLogger('x'); g['VLLMValidationError']=ValueError
exec(compile(ast.Module(body=body,type_ignores=[]),'utils.py','exec'),g)
cases=json.load(open('responses.in.json'))
out=[]
for c in cases:
    b=c['body']; inp=b['input']
    if isinstance(inp,list):
        conv=[]
        for it in inp:
            t=it.get('type')
            if t=='function_call': it=ResponseFunctionToolCall(**it)
            elif t=='reasoning': it=ResponseReasoningItem(**{'summary':[],'id':'r',**it})
            conv.append(it)
        inp=conv
    msgs=g['construct_input_messages'](request_instructions=b.get('instructions'),request_input=inp)
    cont=g['should_continue_final_message'](inp)
    out.append({'name':c['name'],'body':b,'messages':msgs,'continue':cont})
print(json.dumps(out,indent=1,ensure_ascii=False))
