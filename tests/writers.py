"""A model that writes what it is told to, in other tokens than its tokenizer would, and a client.

Whatever tokens are chosen, they spell the same text: any model may write so.
"""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from omlx.engine.request import FinishReason, Token
from omlx.models.text import TextModel
from omlx.server.forms import SpeechForms
from omlx.server.generation import Answer, Ended, Generation
from omlx.server.ledger import Ledger, Said
from omlx.server.openai.chat import Chat
from omlx.server.parse.speech import Speech
from omlx.server.prompt import Encoded, encode
from omlx.server.spoken import Spoken
from omlx.server.transcript import Transcript
from omlx.settings.schema import Parser

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does what {name} does.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read", "write")
]


class OddTokens:
    """Cuts tokens into shorter ones that spell the same."""

    def __init__(self, text: TextModel, num_vocab: int = 140_000) -> None:
        self._text = text
        self._by_bytes: dict[bytes, list[int]] = defaultdict(list)
        for token_id in range(num_vocab):
            spelt = text.token_bytes(token_id)
            if spelt and not text.is_special(spelt.decode("utf-8", "replace")):
                self._by_bytes[spelt].append(token_id)

    def cut(self, ids: Sequence[int], rng: random.Random) -> list[int]:
        made: list[int] = []
        for token_id in ids:
            spelt = self._text.token_bytes(token_id)
            if self._text.is_special(spelt.decode("utf-8", "replace")) or rng.random() < 0.1:
                made.append(token_id)
            else:
                made += self._halves(spelt, token_id, rng)
        return made

    def _halves(self, spelt: bytes, token_id: int, rng: random.Random) -> list[int]:
        at = rng.randint(1, max(len(spelt) - 1, 1))
        left, right = (self._by_bytes.get(part, ()) for part in (spelt[:at], spelt[at:]))
        if not left or not right:
            return [token_id]
        first, second = rng.choice(left), rng.choice(right)
        return [*self._halves(spelt[:at], first, rng), second] if at > 1 else [first, second]


class Talk:
    """A conversation of an OpenAI client with a model, through the prompts of the server alone."""

    def __init__(
        self,
        text: TextModel,
        ledger: Ledger | None,
        *,
        tools: Sequence[Any] = (),
        salt: str = "",
    ) -> None:
        self.text = text
        self.ledger = ledger
        self.tools = list(tools)
        self.salt = salt
        self.messages: list[dict[str, Any]] = []

    def prompt(self, text: str | None = None, role: str = "user", **more: Any) -> Encoded:
        """What the server makes of the conversation with another message."""
        if text is not None:
            self.messages.append({"role": role, "content": text, **more})
        return encode(self.text, self.generation(), self.ledger, salt=self.salt)

    def generation(self) -> Generation:
        body = {"model": "m", "messages": self.messages, "tools": self.tools}
        return Chat().decode(json.dumps(body).encode())

    def reply(self, prompt: Encoded, tokens: Sequence[int], stops: Sequence[str] = ()) -> Answer:
        """What the server hears from tokens, and keeps."""
        form = SpeechForms().of(self.text, Parser())
        is_thinking = form.opens_thinking(prompt.text)
        tools = self.generation().tools
        speech = Speech(form, tools, is_open=is_thinking)
        heard = Transcript(self.text, speech, stops, kept=form.kept, is_thinking=is_thinking)
        spoken = Spoken()
        for token_id in tokens:
            for piece in heard.add(Token("r", token_id)):
                spoken.take(0, piece)
        for piece in heard.finish(is_cut=False):
            spoken.take(0, piece)
        spoken.take(0, Ended(FinishReason.STOP))
        [answer] = spoken.answers()
        if self.ledger is not None:
            said = Said(prompt.text, tokens, answer.parts)
            self.ledger.record(self.text, said, salt=self.salt)
        return answer

    def hear(self, answer: Answer, *, with_reasoning: bool = True, **changed: Any) -> None:
        """The client takes the answer into the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning and with_reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{len(self.messages)}_{call.index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        self.messages.append(message | changed)

    def results(self, *texts: str) -> None:
        """The results of the last calls."""
        calls = self.messages[-1]["tool_calls"]
        for call, text in zip(calls, texts, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


def num_shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
