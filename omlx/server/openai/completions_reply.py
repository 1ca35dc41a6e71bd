"""Writes answers as completions, or as the chunks of one.

Knows nothing about requests. Not in the API, and said all the same: `stop_reason` where a loop was
ended.
"""

import codecs
from collections.abc import Sequence

import orjson

from omlx.engine.request import FinishReason
from omlx.server import sse
from omlx.server.errors import ApiError, Flavor, error_bytes
from omlx.server.generation import About, Answer, Ended, Progress, Usage
from omlx.server.openai.chat_reply import chat_usage
from omlx.server.parse.said import Said, Score, Text


class CompletionReply:
    """The writer of one request's answers; holds no state of them."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._frame: dict[str, object] = {
            "id": f"cmpl-{about.request_id}",
            "object": "text_completion",
            "created": about.created,
            "model": about.model,
            "system_fingerprint": about.fingerprint,
        }

    def head(self) -> bytes:
        """The prompts, where they are to be repeated."""
        if not self._about.generation.is_echo:
            return b""
        choices = range(self._about.generation.num_choices)
        return b"".join(self._write(choice, self._prompt(choice)) for choice in choices)

    def begin(self, usage: Usage) -> bytes:
        """Nothing: usage comes at the end."""
        return b""

    def said(self, part: Said, choice: int) -> bytes:
        """One chunk with more of an answer; nothing but text is in one."""
        if not isinstance(part, Text):
            return b""
        return self._write(choice, part.text, self._logprobs(part.scores, max(part.at, 0)))

    def keepalive(self, progress: Progress | None) -> bytes:
        """A comment: clients of this API accept it, and none takes it for content."""
        return sse.comment("keep-alive")

    def ended(self, ended: Ended, choice: int) -> bytes:
        """The finish reason of an answer."""
        return self._write(choice, "", None, ended)

    def end(self, usage: Usage) -> bytes:
        """The usage where it was asked for, and the end mark."""
        out = b""
        if self._about.generation.wants_usage:
            last = {**self._frame, "choices": (), "usage": chat_usage(usage)}
            out = sse.data(orjson.dumps(last))
        return out + sse.data(b"[DONE]")

    def error(self, error: ApiError) -> bytes:
        """The error as the clients of this API look for it in a stream, and the end mark."""
        body = error_bytes(error, Flavor.OPENAI, self._about.request_id)
        return sse.data(body) + sse.data(b"[DONE]")

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The body of answers that aren't streamed."""
        choices = [
            _choice(
                index,
                (self._prompt(index) if self._about.generation.is_echo else "") + answer.text,
                self._logprobs(answer.scores, 0),
                answer.ended,
            )
            for index, answer in enumerate(answers)
        ]
        return orjson.dumps({**self._frame, "choices": choices, "usage": chat_usage(usage)})

    def _prompt(self, choice: int) -> str:
        prompts = self._about.prompts
        return prompts[choice * len(prompts) // self._about.generation.num_choices]

    def _logprobs(self, scores: Sequence[Score], at: int) -> dict[str, object] | None:
        wanted = self._about.generation.logprobs
        return None if wanted is None else _logprobs(scores, at, has_top=wanted > 0)

    def _write(
        self,
        choice: int,
        text: str,
        logprobs: dict[str, object] | None = None,
        ended: Ended | None = None,
    ) -> bytes:
        choices = [_choice(choice, text, logprobs, ended)]
        return sse.data(orjson.dumps({**self._frame, "choices": choices}))


def _choice(
    index: int, text: str, logprobs: dict[str, object] | None, ended: Ended | None
) -> dict[str, object]:
    choice: dict[str, object] = {"index": index, "text": text, "logprobs": logprobs}
    if ended is None:
        return choice | {"finish_reason": None}
    is_loop = ended.reason is FinishReason.REPETITION
    why = {"stop_reason": ended.reason.value} if is_loop else {}
    is_whole = ended.reason is FinishReason.STOP
    return choice | {"finish_reason": "stop" if is_whole else "length"} | why


def _logprobs(scores: Sequence[Score], at: int, *, has_top: bool) -> dict[str, object]:
    """What is known of the tokens of a text that begins at `at` of its answer."""
    offsets: list[int] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for score in scores:
        offsets.append(at)
        at += len(decoder.decode(score.raw))  # a token may be a part of a character
    return {
        "tokens": [score.token for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_top(score) for score in scores] if has_top else None,
        "text_offset": offsets,
    }


def _top(score: Score) -> dict[str, float]:
    """The most probable tokens; of two with the same text, the more probable one."""
    found: dict[str, float] = {}
    for one in score.top:
        found.setdefault(one.token, one.logprob)
    return found
