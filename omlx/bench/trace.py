"""Reads traces of coding agents: sizes, times, and which parts of prompts are the same; no text.

Knows nothing about servers or tokenizers.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from omlx.bench.failure import BenchError

_MAX_FILE_BYTES = 64_000_000
_MAX_TOKENS = 10_000_000
_MAX_ID_TOKENS = 65_536
_MAX_SECONDS = 10.0**9
PACKAGED = Path(__file__).with_name("traces")
"""The folder of the traces that come with omlx; its NOTICE says where they are from."""
_HINT = "docs/guide/bench-agents.md describes trace files"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a conversation.

    `at_s` is seconds since the conversation began; `num_prompt` and `num_reply` count tokens;
    `ids` name the prompt's whole runs of the trace's `id_tokens` tokens, in their order.
    """

    at_s: float
    num_prompt: int
    num_reply: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """One conversation; equal ids at equal positions of its prompts mean an equal prefix.

    `num_head` counts the tokens of system and tools that each prompt begins with; 0: not known.
    """

    name: str
    id_tokens: int
    num_head: int
    requests: tuple[TraceRequest, ...]

    @property
    def most_tokens(self) -> int:
        """The tokens of the longest prompt and its reply."""
        return max(request.num_prompt + request.num_reply for request in self.requests)


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """The trace files that are named, and all *.json of folders, in order; BenchError."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        files = sorted(path.glob("*.json"))
        if not files:
            raise BenchError(f"{path} has no trace files (*.json)", hint=_HINT)
        found += files
    return found


def load_trace(path: Path) -> Trace:
    """Read and check one trace file; BenchError names the field that is wrong."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise BenchError(f"{path} is larger than any trace file", hint=_HINT)
        tree: object = json.loads(path.read_bytes())
    except OSError as error:
        raise BenchError(f"{path} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path} is not valid JSON: {error}", hint=_HINT) from None
    return _Reader(path).trace(tree)


class _Reader:
    """Checks each field of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def trace(self, tree: object) -> Trace:
        if not isinstance(tree, dict):
            raise self._wrong("the file", "an object with block_size and requests", tree)
        fields = cast(Mapping[str, object], tree)
        size = self._integer(fields, "", "block_size", least=1, most=_MAX_ID_TOKENS)
        num_head = sum(
            self._integer(fields, "", name, default=0) for name in ("system_tokens", "tool_tokens")
        )
        rows = fields.get("requests")
        if not isinstance(rows, list) or rows == []:
            raise self._wrong("requests", "a list of at least one request", fields.get("requests"))
        requests: list[TraceRequest] = []
        for idx, row in enumerate(cast(list[object], rows)):
            requests.append(self._request(row, f"requests[{idx}]", size))
            if len(requests) > 1 and requests[-1].at_s < requests[-2].at_s:
                self._fail(f"requests[{idx}].t", "comes before the request above it")
        name = fields.get("id")
        shown = name if isinstance(name, str) and name.isprintable() and name else self._path.stem
        return Trace(shown[:80], size, num_head, tuple(requests))

    def _request(self, row: object, place: str, size: int) -> TraceRequest:
        if not isinstance(row, dict):
            raise self._wrong(place, "an object with t, in, out and blocks", row)
        fields = cast(Mapping[str, object], row)
        at_s = fields.get("t")
        if not isinstance(at_s, int | float) or isinstance(at_s, bool) or not _is_time(at_s):
            raise self._wrong(f"{place}.t", "a number of seconds, at least 0", at_s)
        num_prompt = self._integer(fields, f"{place}.", "in", least=1)
        num_reply = self._integer(fields, f"{place}.", "out", default=0)
        ids = self._ids(fields.get("blocks", []), f"{place}.blocks", num_prompt // size)
        return TraceRequest(float(at_s), num_prompt, num_reply, tuple(ids))

    def _ids(self, ranges: object, place: str, most: int) -> list[int]:
        if not isinstance(ranges, list):
            raise self._wrong(place, "a list of ranges [first, last]", ranges)
        ids: list[int] = []
        for idx, pair in enumerate(cast(list[object], ranges)):
            match pair:
                case [int(first), int(last)] if 0 <= first <= last:
                    pass
                case _:
                    what = "a range [first, last] of ids, at least 0 and ascending"
                    raise self._wrong(f"{place}[{idx}]", what, pair)
            if len(ids) + last - first + 1 > most:
                self._fail(place, "has more runs than the prompt of so many tokens (in) can have")
            ids += range(first, last + 1)
        return ids

    def _integer(
        self,
        fields: Mapping[str, object],
        place: str,
        name: str,
        *,
        least: int = 0,
        most: int = _MAX_TOKENS,
        default: int | None = None,
    ) -> int:
        value = fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(f"{place}{name}", f"a whole number from {least} to {most}", value)
        return value

    def _wrong(self, place: str, what: str, value: object) -> BenchError:
        shown = "is missing" if value is None else f"is {_shown(value)}"
        return BenchError(f"{self._path}: {place} {shown}, but must be {what}", hint=_HINT)

    def _fail(self, place: str, what: str) -> None:
        raise BenchError(f"{self._path}: {place} {what}", hint=_HINT)


def _is_time(value: int | float) -> bool:
    return 0 <= value <= _MAX_SECONDS and math.isfinite(value)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def common_length(a: Iterable[int], b: Iterable[int]) -> int:
    """How many ids two sequences begin with in common."""
    number = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        number += 1
    return number
