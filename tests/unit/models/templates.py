"""Hand-written chat templates in the manner of several model families.

Knows nothing about how they are rendered.
"""

PLAIN = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

# Raises unless a system message comes first; tools as JSON; arguments printed or dumped.
QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
        {%- continue %}
    {%- endif %}
    {%- if message.content is string %}{%- set content = message.content %}
    {%- else %}{%- set content = '' %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content }}
    {%- for tool_call in message.tool_calls or [] %}
        {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
        {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
        {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
        {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
    {%- if loop.index0 == ns.last %}{%- break %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# Walks the arguments as a mapping, as Qwen3-Coder and GLM do.
ITEMS = """{% for message in messages %}
[{{ message.role }}] {{ message.content }}
{% for call in message.tool_calls or [] %}
  {% for name, value in call.function.arguments|items %}
  <{{ name }}>{{ value | tojson if value is mapping else value }}</{{ name }}>
  {% endfor %}
{% endfor %}
{% endfor %}
{% if add_generation_prompt %}[assistant] {% endif %}"""

# Concatenates the arguments as text.
CONCAT = """{%- for message in messages %}
{{- '[' + message.role + '] ' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- call.function.name + '(' + call.function.arguments + ')' }}
{%- endfor %}
{%- endfor %}"""

# Prints the arguments, which only works for text.
PRINTED = """{%- for message in messages %}[{{ message.role }}] {{ message.content or '' }}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments }}{%- endfor %}
{%- endfor %}"""

# Takes text or parts, as vision models do.
PARTS_OR_TEXT = """{%- for message in messages %}{{ bos_token + message.role + ': ' }}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{{ eos_token }}{%- endfor %}"""

# Takes parts only: a string would vanish.
PARTS = """{%- for message in messages %}{{ message.role + ': ' }}
{%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{{ '|' }}{%- endfor %}"""

GENERATION = """{%- for message in messages %}
{%- if message.role == 'assistant' %}{% generation %}{% set x = 'y' %}{{ message.content + x }}
{% endgeneration %}{% else %}{{ '(' + message.content + ')' }}{% endif %}{{ x }}
{%- endfor %}"""

DATED = """Today is {{ strftime_now('%d %B %Y') }}. {{ messages[0].content }}"""

TOJSON = """{{ {'b': '<é>&\\'"', 'a': [1, 2.5, none, true]} | tojson }}
{{ messages[0] | tojson(indent=2) }}
{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}
{{ tools | tojson(ensure_ascii=true) }}"""
