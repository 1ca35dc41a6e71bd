"""POST /v1/completions: its requests into the internal form.

Knows nothing about templates, tokens, engines or how answers are written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from omlx.server.body import decode
from omlx.server.errors import Flavor, bad_field, unsupported
from omlx.server.generation import About, Generation, Prompt, Reply, whole
from omlx.server.openai import asked, types
from omlx.server.openai.chat import num_choices, stops, wishes
from omlx.server.openai.completions_reply import CompletionReply

_DECODER = msgspec.json.Decoder(types.CompletionRequest)
_MOST_LOGPROBS = 5
_MOST_ANSWERS = 128


@dataclass(frozen=True, slots=True)
class Completions:
    """The dialect of completions, which no template touches.

    Without `max_tokens` an answer may take the rest of the window, not the API's 16 tokens.
    """

    flavor: Flavor = Flavor.OPENAI

    def decode(self, body: bytes, tenant: str = "") -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        request = decode(_DECODER, body)
        prompts = _prompts(request.prompt)
        if request.suffix:
            raise unsupported("$.suffix", "Text that the answer must lead to")
        num_answers = num_choices(request.n, request.best_of) * len(prompts)
        if num_answers > _MOST_ANSWERS:
            raise bad_field("$.prompt", f"At most {_MOST_ANSWERS} answers are given")
        return Generation(
            model=request.model,
            messages=(),
            prompt=prompts[0],
            more_prompts=prompts[1:],
            num_choices=num_answers,
            request_class=asked.request_class(request.service_tier),
            logprobs=_logprobs(request),
            is_echo=bool(request.echo),
            wishes=wishes(request),
            stop=stops(request.stop),
            is_stream=bool(request.stream),
            wants_usage=request.wants_usage,
        )

    def reply(self, about: About) -> Reply:
        """The writer of the answers to one request."""
        return CompletionReply(about)


def _prompts(given: str | list[str | int | list[int]]) -> list[Prompt]:
    """The prompts, of which each is a text or token ids; a list of ids is one."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise bad_field("$.prompt", "Must hold at least one prompt")
    if all(isinstance(one, int) for one in given):
        return [cast(Sequence[int], given)]
    if any(isinstance(one, int) for one in given):
        raise bad_field("$.prompt", "Must be a text, token ids, or a list of one of these")
    return cast(list[Prompt], given)


def _logprobs(request: types.CompletionRequest) -> int | None:
    top = whole(request.logprobs, "$.logprobs", low=0)
    if top is not None and top > _MOST_LOGPROBS:
        raise bad_field("$.logprobs", f"Must be between 0 and {_MOST_LOGPROBS}")
    if top is not None and request.echo:
        raise unsupported("$.logprobs", "What is known of the tokens of the prompt (`echo`)")
    return top
