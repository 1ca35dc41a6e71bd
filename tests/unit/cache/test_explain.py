"""Where prompts part, in which part of the body, and what changed there."""

import json
from collections.abc import Sequence

import pytest

from omlx.cache.changes import Change
from omlx.cache.explain import Divergence, Prompt, Section, diverge, place_of, tabulate
from omlx.cache.hashing import token_array
from omlx.server.openai.chat import Chat
from omlx.server.prompt import encode
from omlx.storage.entry import Part, PartKind, Span
from tests.fakes.text import FakeText

Body = dict[str, object]


def tool(name: str, description: str = "") -> Body:
    text = description or f"{name} does what {name} is for, with great care and no haste at all"
    function = {"name": name, "description": text, "parameters": {"type": "object"}}
    return {"type": "function", "function": function}


def message(role: str, content: str) -> Body:
    return {"role": role, "content": content}


SYSTEM = "You are careful.\nToday is 2026-01-01.\nBe brief."
READ, WRITE, GREP, LIST = (tool(name) for name in ("read", "write", "grep", "list"))
TURNS = [
    message("user", "Where is the bug?"),
    message("assistant", "In the parser, I think."),
    message("user", "Are you sure?"),
]


def body(
    system: str = SYSTEM, tools: Sequence[Body] = (READ, WRITE, GREP), turns: Sequence[Body] = TURNS
) -> Body:
    return {"model": "m", "tools": tools, "messages": [message("system", system), *turns]}


def prompt_of(one: Body, *, has_spans: bool = True, reply: str = "") -> Prompt:
    generation = Chat().decode(json.dumps(one).encode())
    encoded = encode(FakeText(), generation)
    tokens = [*encoded.tokens, *reply.encode()]
    return Prompt(token_array(tokens), encoded.spans if has_spans else ())


def spell(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def explained(new: Body, old: Body, *, knows_old: bool = True) -> Divergence:
    found = diverge(prompt_of(new), prompt_of(old, has_spans=knows_old), spell)
    assert found is not None
    return found


DATE = body(SYSTEM.replace("01-01", "01-02"))
LINE = body(SYSTEM.replace("Be brief", "Use tools.\nBe brief"))
SWAPPED = body(tools=(WRITE, READ, GREP))
CASES = [
    (DATE, body(), "system block 0", Change.VALUE),
    (LINE, body(), "system block 0", Change.INSERTED),
    (body(), LINE, "system block 0", Change.REMOVED),
    (body(SYSTEM + "\nSmile."), body(), "system block 0", Change.INSERTED),
    (body(), body(SYSTEM + "\nSmile."), "system block 0", Change.REMOVED),
    (SWAPPED, body(), 'tool 0 "write"', Change.ORDER),
    (body(tools=(READ, GREP, WRITE)), body(), 'tool 1 "grep"', Change.ORDER),
    (body(tools=(GREP, READ, WRITE)), body(), 'tool 0 "grep"', Change.ORDER),
    (body(tools=(READ, LIST, WRITE, GREP)), body(), 'tool 1 "list"', Change.INSERTED),
    (body(tools=(READ, GREP)), body(), 'tool 1 "write"', Change.REMOVED),
    (body(tools=(READ, tool("write", "now says otherwise"), GREP)), body(), 'tool 1 "write"',
     Change.VALUE),
    (body(turns=[message("user", "Where was the bug?"), *TURNS[1:]]), body(), "message 1 (user)",
     Change.VALUE),
    (body(turns=[message("user", "First a question"), *TURNS]), body(), "message 1 (user)",
     Change.INSERTED),
    (body(turns=TURNS[1:]), body(), "message 1 (user)", Change.REMOVED),
]  # fmt: skip


@pytest.mark.parametrize(("new", "old", "place", "change"), CASES)
def test_the_part_and_the_change(new: Body, old: Body, place: str, change: Change) -> None:
    found = explained(new, old)
    assert (found.place, found.change) == (place, change)


@pytest.mark.parametrize(
    ("new", "old", "place", "change"),
    [case for case in CASES if case[3] is not Change.REMOVED and "message" not in case[2]],
)
def test_without_the_parts_of_the_other_its_text_tells(
    new: Body, old: Body, place: str, change: Change
) -> None:
    found = explained(new, old, knows_old=False)
    assert (found.place, found.change) == (place, change)


def test_tools_added_and_taken_away_at_the_end() -> None:
    more = explained(body(tools=(READ, WRITE, GREP, LIST)), body())
    assert (more.place, more.change) == ('tool 3 "list"', Change.INSERTED)
    less = explained(body(tools=(READ, WRITE)), body())
    assert (less.place, less.change) == ('tool 2 "grep"', Change.REMOVED)


def test_the_text_on_both_sides() -> None:
    found = explained(DATE, body())
    assert found.before.endswith("Today is 2026-01-0")
    assert found.ours.startswith("2.\nBe brief.")
    assert found.theirs.startswith("1.\nBe brief.")
    assert spell(prompt_of(DATE).tokens[: found.token_idx].tolist()).endswith(found.before)
    assert max(map(len, (found.before, found.ours, found.theirs))) <= 120


def test_half_a_character_is_not_shown() -> None:
    """The first bytes of é and è are the same."""
    found = explained(body("caf\u00e9"), body("caf\u00e8"))
    assert found.before.endswith("caf")
    assert (found.ours[0], found.theirs[0]) == ("\u00e9", "\u00e8")
    assert found.place == "system block 0"


def test_a_reply_that_came_back_changed() -> None:
    """The stored sequence goes on with what the model really said."""
    asked = body(turns=TURNS[:1])
    stored = prompt_of(asked, reply="In the lexer, I think.")
    found = diverge(prompt_of(body()), stored, spell)
    assert found is not None
    assert (found.place, found.change) == ("message 2 (assistant)", Change.VALUE)


def test_a_change_of_the_template_itself() -> None:
    ours, theirs = (prompt_of(body(), has_spans=False) for _ in range(2))
    theirs.tokens[0] = ord("X")
    found = diverge(ours, theirs, spell)
    assert found is not None
    assert (found.place, found.part, found.token_idx) == ("the template", None, 0)


@pytest.mark.parametrize("reply", ["", "In the parser", "\u00e9"])
def test_a_sequence_that_only_goes_on_has_not_diverged(reply: str) -> None:
    longer = prompt_of(body(), reply=reply)
    assert diverge(prompt_of(body()), longer, spell) is None
    assert diverge(longer, prompt_of(body()), spell) is None


def test_places_in_words() -> None:
    spans = prompt_of(body()).spans
    assert place_of(spans, spans[0].start) == 'tool 0 "read"'
    assert place_of(spans, 0) == 'the template before tool 0 "read"'
    assert place_of(spans, spans[-1].end) == "the template"
    assert place_of((), 5) == "the template"


# ---- the table


def rows(prompt: Prompt, num_cached: int) -> dict[str, tuple[int, int]]:
    table = tabulate(prompt.spans, len(prompt.tokens), num_cached)
    assert [row.section for row in table] == list(Section)
    assert sum(row.num_tokens for row in table) == len(prompt.tokens)
    assert sum(row.num_cached for row in table) == num_cached
    return {row.section.value: (row.num_tokens, row.num_cached) for row in table}


def test_sections_take_all_tokens() -> None:
    prompt = prompt_of(body())
    found = rows(prompt, 0)
    assert found["tools"][0] > 3 * len(json.dumps(READ))
    assert found["system"][0] == len("\nsystem:" + SYSTEM)
    assert found["history"][0] == len("\nuser:Where is the bug?\nassistant:In the parser, I think.")
    assert found["new input"][0] == len("\nuser:Are you sure?\nassistant:")


def test_cached_tokens_are_the_first_ones() -> None:
    prompt = prompt_of(body())
    tools, system = (rows(prompt, 0)[name][0] for name in ("tools", "system"))
    assert rows(prompt, tools + 5)["tools"] == (tools, tools)
    assert rows(prompt, tools + 5)["system"] == (system, 5)
    assert rows(prompt, tools + 5)["history"][1] == 0
    assert rows(prompt, len(prompt.tokens))["new input"][1] == rows(prompt, 0)["new input"][0]


def test_an_answer_that_was_begun_is_new_input() -> None:
    begun = prompt_of(body(turns=[*TURNS, message("assistant", "Yes")]))
    assert rows(begun, 0)["new input"][0] == len("\nuser:Are you sure?\nassistant:Yes")


def test_a_prompt_without_known_parts_is_new_input() -> None:
    prompt = prompt_of(body(), has_spans=False)
    assert rows(prompt, 7)["new input"] == (len(prompt.tokens), 7)


def test_parts_that_overlap_count_once() -> None:
    spans = (
        Span(Part(PartKind.SYSTEM, 0), 0, 10),
        Span(Part(PartKind.MESSAGE, 0, "user"), 5, 12),
    )
    assert rows(Prompt(token_array(list(range(15))), spans), 15)["system"] == (10, 10)
