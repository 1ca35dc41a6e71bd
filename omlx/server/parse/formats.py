"""All formats of calls, by the names that settings use.

Knows nothing about models or templates.
"""

from omlx.server.parse.elements import element_formats
from omlx.server.parse.headedformats import DeepSeekFormat, MistralFormat
from omlx.server.parse.jsonformats import cohere, granite, hermes, llama3_json
from omlx.server.parse.pythonic import llama4_pythonic, pythonic
from omlx.server.parse.said import CallFormat

# What calls are taken for where the template says nothing that is known.
GENERIC = "hermes"


def call_formats() -> dict[str, CallFormat]:
    """Every format, by name."""
    formats: tuple[CallFormat, ...] = (
        hermes(),
        llama3_json(),
        pythonic(),
        llama4_pythonic(),
        MistralFormat("mistral", has_header=True),
        MistralFormat("mistral_json", has_header=False),
        DeepSeekFormat("deepseek_v3", has_fence=True),
        DeepSeekFormat("deepseek_r1", has_fence=True),
        DeepSeekFormat("deepseek_v31", has_fence=False),
        granite(),
        cohere(),
        *element_formats(),
    )
    return {form.name: form for form in formats}
