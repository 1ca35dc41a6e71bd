"""Replies come back as the very tokens that they were made of, or not at all."""

import random
import sqlite3
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.cache.policy import StorePolicy
from omlx.models.text import TextModel
from omlx.server.ledger import Ledger, Said
from omlx.server.parse.said import Text
from omlx.server.prompt import encode
from omlx.storage.replies import Replies, Reply
from tests.remembered import made_of
from tests.vocabularies import smollm2
from tests.writers import TOOLS, OddTokens, Talk, num_shared

TEXTS = [
    "Hello there,  two  spaces 12345.",
    "  def f(x):\n\n\treturn x  # 😀 é",
    "你好 世界",
    "Done.",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> TextModel:
    return smollm2(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def odd(text) -> OddTokens:
    return OddTokens(text, 49_152)


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the ledgers that a test leaves open, and so their files."""
    made = made_of(Ledger, monkeypatch)
    yield
    for one in made:
        if not one._is_closed:
            one.close()
        if one._replies is not None:  # asked once more after its end
            one._replies.close()


def answered(talk: Talk, odd: OddTokens, raw: str, seed: int = 0, **heard) -> list[int]:
    """Have the model write `raw` in odd tokens; what a cache then holds."""
    prompt = talk.prompt()
    ids = odd.cut(talk.text.encode(raw), random.Random(seed))
    talk.hear(talk.reply(prompt, ids), **heard)
    return [*prompt.tokens, *ids]


def asked(talk: Talk, question: str = "Go on") -> None:
    talk.messages.append({"role": "user", "content": question})


@pytest.mark.parametrize("raw", TEXTS)
def test_a_reply_comes_back_as_its_tokens(text, odd, raw) -> None:
    talk = Talk(text, Ledger(None))
    asked(talk)
    held = answered(talk, odd, raw)
    asked(talk)
    prompt = talk.prompt()
    assert list(prompt.tokens[: len(held)]) == held
    assert prompt.num_spliced == 1
    assert text.spell(prompt.tokens) == prompt.text
    talk.ledger = None
    assert num_shared(talk.prompt().tokens, held) < len(held)


@settings(max_examples=60, deadline=None)
@given(
    raws=st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=5),
    seed=st.integers(0, 10**6),
)
def test_any_text_spells_the_prompt(text, odd, raws, seed) -> None:
    """Whatever is said and however it is cut, the prompt's tokens spell the prompt."""
    talk, rng = Talk(text, Ledger(None)), random.Random(seed)
    held: list[int] = []
    for raw in raws:
        asked(talk)
        prompt = talk.prompt()
        assert text.spell(prompt.tokens) == prompt.text
        if held and raw.strip() and prompt.num_spliced == len(talk.messages) // 2:
            assert list(prompt.tokens[: len(held)]) == held
        ids = odd.cut(text.encode(raw), rng)
        talk.hear(talk.reply(prompt, ids))
        held = [*prompt.tokens, *ids]


def test_reasoning_and_calls_of_a_chain(text, odd) -> None:
    talk = Talk(text, Ledger(None), tools=TOOLS)
    asked(talk, "Read a and b")
    call = '<tool_call>\n{"name": "%s", "arguments": {"path": "%s 123"}}\n</tool_call>'
    raws = [
        "<think>\nI should read  a 2024\n</think>\n\n" + call % ("read", "a"),
        "<think>\nNow both\n</think>\n\nReading 12.\n"
        + call % ("read", "b")
        + "\n"
        + call % ("write", "c"),
    ]
    for raw in raws:
        held = answered(talk, odd, raw)
        talk.results(*["done"] * len(talk.messages[-1]["tool_calls"]))
        prompt = talk.prompt()
        assert list(prompt.tokens[: len(held)]) == held, text.spell(prompt.tokens[: len(held)])
        assert text.spell(prompt.tokens) == prompt.text
    assert prompt.num_spliced == 2


def test_thinking_that_the_template_leaves_out_is_no_match(text, odd) -> None:
    talk = Talk(text, Ledger(None))
    asked(talk)
    answered(talk, odd, "<think>\nlong thoughts 1234\n</think>\n\nThe answer is 1234.")
    asked(talk)
    prompt = talk.prompt()
    assert "long thoughts" not in prompt.text
    assert prompt.num_spliced == 0
    assert list(prompt.tokens) == text.encode(prompt.text)


def test_a_call_in_another_form_keeps_the_text_before_it(text, odd) -> None:
    talk = Talk(text, Ledger(None), tools=TOOLS)
    asked(talk)
    said = "Let me look at 12345 first."
    raw = f'{said}\n<tool_call>\n{{"name":"read","arguments":{{"path":"a"}}}}\n</tool_call>'
    held = answered(talk, odd, raw)
    talk.results("x")
    prompt = talk.prompt()
    assert text.spell(prompt.tokens) == prompt.text
    shared = num_shared(prompt.tokens, held)
    assert said in text.spell(held[:shared])
    assert prompt.num_spliced == 1


def test_nothing_after_a_stop_string_is_spliced(text, odd) -> None:
    talk = Talk(text, Ledger(None))
    asked(talk)
    prompt = talk.prompt()
    ids = odd.cut(text.encode("One two 345 STOP and more"), random.Random(3))
    answer = talk.reply(prompt, ids, stops=["STOP"])
    assert answer.text == "One two 345 "
    talk.hear(answer)
    asked(talk)
    after = talk.prompt()
    assert text.spell(after.tokens) == after.text and "STOP" not in after.text
    assert "One two 345" in text.spell(
        after.tokens[: num_shared(after.tokens, [*prompt.tokens, *ids])]
    )


def test_an_edited_reply_falls_back(text, odd) -> None:
    talk = Talk(text, Ledger(None))
    asked(talk)
    first = answered(talk, odd, TEXTS[0])
    asked(talk)
    answered(talk, odd, TEXTS[1], content="def f(x): return x")
    asked(talk)
    prompt = talk.prompt()
    assert list(prompt.tokens[: len(first)]) == first
    assert prompt.num_spliced == 1
    assert text.spell(prompt.tokens) == prompt.text


def test_the_same_words_in_other_tokens_are_told_apart(text, odd) -> None:
    """The newest way to say something doesn't change what was said before."""
    talk = Talk(text, Ledger(None))
    held: list[int] = []
    for seed in range(12):
        asked(talk, f"question {seed}")
        assert list(talk.prompt().tokens[: len(held)]) == held
        held = answered(talk, odd, "The same answer 12345.", seed)


def test_a_ledger_outlives_its_process(text, odd, tmp_path: Path) -> None:
    def opened() -> Ledger:
        return Ledger(Replies(tmp_path / "p", max_bytes=10**7, clock=lambda: 0.0))

    talk = Talk(text, opened())
    asked(talk)
    held = answered(talk, odd, TEXTS[1])
    asked(talk)
    assert talk.ledger is not None
    talk.ledger.close()
    talk.ledger = opened()
    assert list(talk.prompt().tokens[: len(held)]) == held


def test_private_replies_are_not_written(text, odd, tmp_path: Path) -> None:
    ledger = Ledger(Replies(tmp_path / "p", max_bytes=10**7, clock=lambda: 0.0))
    ids = text.encode("a secret")
    ledger.record(text, Said("prompt", ids, [Text("a secret")]), store=StorePolicy.MEMORY)
    ledger.record(text, Said("prompt", ids, [Text("none")]), store=StorePolicy.OFF)
    assert len(ledger._known) == 1
    ledger.record(text, Said("prompt", ids, [Text("no secret")]))
    ledger.close()
    with sqlite3.connect(tmp_path / "p") as db:
        assert db.execute("SELECT count(*) FROM replies").fetchone() == (1,)
    db.close()


def test_salts_and_tokenizers_are_apart(text, odd, tmp_path: Path) -> None:
    ledger = Ledger(None)
    talk = Talk(text, ledger, salt="a")
    asked(talk)
    answered(talk, odd, TEXTS[0])
    asked(talk)
    assert talk.prompt().num_spliced == 1
    talk.salt = "b"
    assert talk.prompt().num_spliced == 0


@pytest.mark.parametrize(
    "ids",
    [[], [2**32 - 1], [49_152], [1, 2], [28120] * 3, [28120, 2**31]],
    ids=["none", "outside", "next", "special", "other text", "more"],
)
def test_rows_that_lie_are_no_match(text, odd, tmp_path: Path, ids) -> None:
    """A row of the store that is not what was said changes nothing."""
    talk = Talk(text, Ledger(None))
    asked(talk)
    answered(talk, odd, "Hello")
    asked(talk)
    replies = Replies(tmp_path / "p", max_bytes=10**7, clock=lambda: 0.0)
    [key] = talk.ledger._known
    replies.put(key, Reply(b"x" * 16, array("I", ids)))
    talk.ledger = Ledger(replies)
    prompt = talk.prompt()
    assert list(prompt.tokens) == text.encode(prompt.text)


def test_an_unfinished_character_at_the_end(text) -> None:
    talk = Talk(text, Ledger(None))
    asked(talk)
    prompt = talk.prompt()
    ids = [*text.encode("Smile: "), *[text.token_id(one) for one in "ðŁĺ"]]
    talk.hear(talk.reply(prompt, ids))
    assert talk.messages[-1]["content"] == "Smile: \ufffd"
    asked(talk)
    after = talk.prompt()
    assert text.spell(after.tokens) == after.text


def test_the_spans_of_a_spliced_prompt_are_those_of_its_parts(text, odd) -> None:
    talk = Talk(text, Ledger(None), tools=TOOLS)
    talk.messages.append({"role": "system", "content": "You are 123"})
    for number, raw in enumerate(TEXTS):
        asked(talk, f"question {number}")
        answered(talk, odd, raw)
    asked(talk, "the last")
    prompt = talk.prompt()
    assert prompt.num_spliced == len(TEXTS)
    by_idx = {(span.part.kind.value, span.part.idx): span for span in prompt.spans}
    for idx, message in enumerate(talk.messages[1:], 1):
        span = by_idx["message", idx]
        assert message["content"].strip() in text.spell(prompt.tokens[span.start : span.end])
    ends = [span.end for span in prompt.spans]
    assert ends == sorted(ends) and ends[-1] <= len(prompt.tokens)
    plain = Talk(text, None, tools=TOOLS)
    plain.messages = talk.messages
    parts = [span.part for span in plain.prompt().spans]
    assert [span.part for span in prompt.spans] == parts


def test_memory_is_bounded(text, odd, tmp_path: Path) -> None:
    replies = Replies(tmp_path / "p", max_bytes=10**7, clock=lambda: 0.0)
    talk = Talk(text, Ledger(replies, max_tokens=300))
    for number in range(10):
        asked(talk)
        answered(talk, odd, f"Answer {number} has 12345 words in it", number)
    assert talk.ledger._num_tokens <= 300
    talk.ledger.close()
    talk.ledger = Ledger(Replies(tmp_path / "p", max_bytes=10**7, clock=lambda: 0.0), max_tokens=10)
    asked(talk)
    assert text.spell(talk.prompt().tokens) == talk.prompt().text


def test_a_reply_that_is_only_searched_for_is_no_match(text, odd) -> None:
    """Marks of the server's own in a text spoil those around it; `_` is also in `<|im_start|>`."""
    talk = Talk(text, Ledger(None))
    for raw in ("_", "\U000f0000", "0"):
        asked(talk)
        answered(talk, odd, raw)
    asked(talk)
    prompt = talk.prompt()
    assert prompt.num_spliced == 0
    assert list(prompt.tokens) == text.encode(prompt.text)


def test_surrogates_in_a_prompt_are_no_match(text, odd) -> None:
    """What is encoded then is not the prompt to the letter."""
    talk = Talk(text, Ledger(None))
    asked(talk)
    answered(talk, odd, TEXTS[0])
    asked(talk)
    generation = talk.generation()
    for content, num_spliced in (("whole", 1), ("half \ud83d", 0)):
        messages = [*generation.messages[:-1], {"role": "user", "content": content}]
        prompt = encode(text, replace(generation, messages=messages), talk.ledger)
        assert prompt.num_spliced == num_spliced
        assert text.spell(prompt.tokens) == prompt.text.replace("\ud83d", "\ufffd")
