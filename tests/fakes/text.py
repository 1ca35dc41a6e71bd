"""A text side without files: a token is a byte, the template is one line a message."""

import codecs
import json
from collections.abc import Mapping, Sequence

from omlx.errors import ModelError

EOS = 256


class FakeText:
    """Renders `role:content` lines; `refuse` gets the messages and may name an objection."""

    def __init__(self, *, context_window=1000, refuse=None, template=""):
        self.template = template
        self.eos_ids = frozenset({EOS})
        self.context_window = context_window
        self.rendered: list[str] = []
        self._refuse = refuse

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        self.extra = dict(extra or {})
        objection = self._refuse(messages) if self._refuse else None
        if objection:
            raise ModelError(objection)
        lines = [f"tool:{json.dumps(tool)}\n" for tool in tools or ()]
        lines += [f"{message['role']}:{_plain(message['content'])}\n" for message in messages]
        prompt = "".join(lines) + "assistant:"
        self.rendered.append(prompt)
        return prompt

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    identity = ""

    def spelt(self, ids):
        return [self.token_bytes(token) for token in ids]

    def encode_at(self, text, chars, splices=()):
        def tokens(char: int) -> int:
            return len(text[:char].encode())

        return self.encode(text), [(tokens(start), tokens(end)) for start, end in chars]

    def token_id(self, text: str) -> int | None:
        return ord(text) if len(text) == 1 and text.isascii() else None

    def is_special(self, text: str) -> bool:
        return False

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def spell(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def stream(self, kept: frozenset[str] = frozenset()) -> "FakeDetokenizer":
        return FakeDetokenizer()


class FakeDetokenizer:
    """Bytes to text, whole characters only."""

    def __init__(self):
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id]))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


def _plain(content: object) -> str:
    if isinstance(content, str):
        return content
    return "|".join(part["text"] for part in content)
