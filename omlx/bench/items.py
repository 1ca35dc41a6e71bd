"""Reads a user's own questions: multiple-choice and code items, one JSON object a line.

Knows nothing about models. A file is taken for hostile: sizes are bounded, and every fault is said
with its line and field.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from omlx.errors import UsageError

_MAX_BYTES = 64 * 2**20
_MAX_ITEMS = 100_000
_MAX_CHOICES = 64
_MAX_TOKENS = 4096
_CHOICE_FIELDS = frozenset({"kind", "id", "question", "choices", "answer"})
_CODE_FIELDS = frozenset({"kind", "id", "prompt", "tests", "stop", "max_tokens"})


@dataclass(frozen=True, slots=True)
class Choice:
    """A question whose answer is one of several continuations."""

    id: str
    question: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Code:
    """The beginning of a Python program, which the model goes on with, and tests of the whole."""

    id: str
    prompt: str
    tests: str
    stop: tuple[str, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Items:
    """What a file asks, in its order."""

    choices: tuple[Choice, ...]
    codes: tuple[Code, ...]


def read_items(path: Path) -> Items:
    """The items of a JSONL file; UsageError names the line and the field."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--tasks: {path} can't be read: {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise UsageError(f"--tasks: {path} is larger than 64 MiB", hint="Split it.")
    choices: list[Choice] = []
    codes: list[Code] = []
    seen: set[str] = set()
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        item = _Line(path, number, line).item()
        if item.id in seen:
            raise UsageError(f"--tasks: {path}:{number}: the id {item.id!r} is there twice")
        seen.add(item.id)
        if len(seen) > _MAX_ITEMS:
            raise UsageError(f"--tasks: {path} has more than {_MAX_ITEMS:,} items")
        if isinstance(item, Choice):
            choices.append(item)
        else:
            codes.append(item)
    if not seen:
        raise UsageError(
            f"--tasks: {path} has no items", hint="docs/guide/accuracy.md has an example."
        )
    return Items(tuple(choices), tuple(codes))


class _Line:
    """One line of the file, and what its fields must be."""

    def __init__(self, path: Path, number: int, data: bytes) -> None:
        self._where = f"--tasks: {path}:{number}"
        self._number = number
        try:
            value: object = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self._where}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise UsageError(f"{self._where}: not a JSON object")
        self._fields = cast(dict[str, object], value)

    def item(self) -> Choice | Code:
        """The item; UsageError."""
        kind = self._fields.get("kind")
        if kind == "choice":
            self._check_names(_CHOICE_FIELDS)
            return self._choice()
        if kind == "code":
            self._check_names(_CODE_FIELDS)
            return self._code()
        raise self._bad("kind", '"choice" or "code"')

    def _choice(self) -> Choice:
        choices = self._texts("choices")
        if not 2 <= len(choices) <= _MAX_CHOICES or not all(choices):
            raise self._bad("choices", f"2 to {_MAX_CHOICES} texts that are not empty")
        answer = self._fields.get("answer")
        if type(answer) is not int or not 0 <= answer < len(choices):
            raise self._bad("answer", f"the index of a choice, 0 to {len(choices) - 1}")
        return Choice(self._id(), self._text("question"), choices, answer)

    def _code(self) -> Code:
        limit = self._fields.get("max_tokens", 256)
        if type(limit) is not int or not 1 <= limit <= _MAX_TOKENS:
            raise self._bad("max_tokens", f"a whole number from 1 to {_MAX_TOKENS}")
        default = ["\ndef ", "\nclass ", "\nif __name__", "\nprint("]
        stop = self._texts("stop") if "stop" in self._fields else tuple(default)
        if not all(stop):
            raise self._bad("stop", "a list of texts that are not empty")
        return Code(self._id(), self._text("prompt"), self._text("tests"), stop, limit)

    def _id(self) -> str:
        value = self._fields.get("id", f"line-{self._number}")
        if not isinstance(value, str) or not value:
            raise self._bad("id", "a text")
        return value

    def _text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or not value:
            raise self._bad(name, "a text that is not empty")
        return value

    def _texts(self, name: str) -> tuple[str, ...]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self._bad(name, "a list of texts")
        values = cast(Sequence[object], value)
        if not all(isinstance(one, str) for one in values):
            raise self._bad(name, "a list of texts")
        return tuple(cast(Sequence[str], values))

    def _check_names(self, known: frozenset[str]) -> None:
        for name in self._fields:
            if name not in known:
                raise UsageError(
                    f"{self._where}: unknown field {name!r}",
                    hint=f"Known fields: {', '.join(sorted(known))}.",
                )

    def _bad(self, name: str, wanted: str) -> UsageError:
        state = "is missing; it should be" if name not in self._fields else "is not"
        return UsageError(f"{self._where}: the field {name!r} {state} {wanted}")
