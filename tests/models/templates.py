"""Chat templates in the styles of the model families, and conversations to render with them.

Here: the sources. Not here: the expected texts (templates.json, made by
benchmarks/make_templates.py).
"""

from __future__ import annotations

from typing import Any, Final

TOKENS: Final = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES: Final[dict[str, str]] = {
    # Roles between marks; a default system message if there is none.
    "marks": """{%- if messages[0]['role'] == 'system' -%}
{%- set system = messages[0]['content'] -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set system = 'You are helpful.' -%}{%- set rest = messages -%}{%- endif -%}
<|im_start|>system
{{ system }}<|im_end|>
{% for message in rest %}
<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    # Headers; tools as JSON; a date that the caller may set.
    "headers": """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}
    {%- else %}
        {{- message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\\n\\n' }}{%- endif %}""",
    # Turns that must alternate; the system message goes into the first turn.
    "turns": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{% set first = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}
{% set first = false %}{% endif %}{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/...') }}{% endif %}
{% if loop.index0 == 0 and first %}{% set content = '<<SYS>>\\n' + first + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + content | trim + ' [/INST]' }}
{% else %}{{ ' ' + content | trim + eos_token }}{% endif %}{% endfor %}""",
    # The assistant is called "model"; no system messages.
    "model": """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + role + '\\n' + (message['content'] if message['content'] is string
   else message['content'][0]['text']) | trim + '<end_of_turn>\\n' }}
{%- endfor -%}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    # Jinja's namespace across loops, break and continue, slices, split.
    "loops": """{% set ns = namespace(last=-1, seen=[], n=0) %}{% for message in messages[::-1] %}
{% if message.role == 'user' %}{% set ns.last = messages | length - 1 - loop.index0 %}{% break %}{% endif %}{% endfor %}
{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}
{% set ns.n = ns.n + 1 %}{% set content = message.content or '' %}
{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
[{{ ns.n }}{{ '*' if loop.index0 == ns.last }}] {{ message.role | upper }}: {{ content }}
{% endfor %}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}""",
    # The parts that the model wrote are marked, for training.
    "generation": """{% for m in messages %}{% if m.role == 'assistant' %}
{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
{% else %}<|{{ m.role }}|>{{ m.content }}
{% endif %}{% endfor %}""",
    # Jinja's filters and tests that templates use.
    "filters": """{{ messages | map(attribute='role') | join(', ') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ (messages | last).content | default('none', true) | replace('a', 'b') }}
{{ messages[0] | items | list }}
{{ {'a': 1, 'ü': '<b>&"'} | tojson }} {{ [1, 2.5, none, true] | tojson }}
{{ documents is none }} {{ tools is none }} {{ nothing is defined }} {{ nothing }}""",
}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather at a place, in °C & <more>.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}  # fmt: skip
CONVERSATIONS: Final[dict[str, dict[str, Any]]] = {
    "one": {"messages": [{"role": "user", "content": "  What is 2 < 3 & 'so on'?  "}]},
    "many": {"messages": [
        {"role": "system", "content": "Be brief. Ünïcödé 日本 😀"},
        {"role": "user", "content": "Hello\n\nthere"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi!"},
        {"role": "user", "content": "Bye"},
    ]},
    "no-prompt": {"add_generation_prompt": False, "messages": [
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"},
    ]},
    "twice": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    "tools": {"tools": [_TOOL], "date_string": "1 Jan 2025", "enable_thinking": False, "messages": [
        {"role": "user", "content": "Weather in Köln?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"place": "Köln"}}},
        ]},
        {"role": "tool", "content": "12 °C"},
    ]},
}  # fmt: skip
