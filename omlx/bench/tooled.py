"""The demo model with a chat template that prints tools, which its own does not.

Knows nothing about servers. The weights and the tokenizer are those of the model, by links.
"""

from pathlib import Path

_TEMPLATE = """{%- if messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + messages[0].content + '\\n\\n' -}}
{%- else -%}
{{- '<|im_start|>system\\n' -}}
{%- endif -%}
{{- 'Tools:' -}}
{%- for tool in tools -%}
{{- '\\n' + tool | tojson -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- for message in messages -%}
{%- if not (loop.first and message.role == 'system') -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def with_tool_template(model: Path, folder: Path) -> Path:
    """A model folder of the same name below `folder` whose prompts with tools show them."""
    made = folder / model.name
    (made / "additional_chat_templates").mkdir(parents=True)
    for file in sorted(model.iterdir()):
        if file.is_file():
            (made / file.name).symlink_to(file.resolve())
    (made / "additional_chat_templates" / "tool_use.jinja").write_text(_TEMPLATE)
    return made
