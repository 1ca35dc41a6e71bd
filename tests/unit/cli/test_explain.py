"""`omlx cache inspect --request` and `--prompt`, over a journal, a store and bodies in files."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from omlx.cache.hashing import chain_hashes, compute_block_hash, compute_root_hash, token_array
from omlx.models.text import TextModel
from omlx.server.canonical import canonical
from omlx.server.openai.chat import Chat
from omlx.server.prompt import Encoded, encode
from omlx.settings.prompts import Prompt
from omlx.storage.budget import Budget
from omlx.storage.entry import JournalEntry, MissReason, TtftParts
from omlx.storage.fs import RealFileSystem
from omlx.storage.journal import Journal
from omlx.storage.layout import BlockHash, BlockKey, BlockKind, RootHash
from omlx.storage.record import SectionSpec
from omlx.storage.store import BlockStore
from omlx.storage.toolsets import ToolSets
from tests.fakes.model_folder import TEMPLATE, write_model_folder
from tests.unit.cli.conftest import Cli

DATA = Path(__file__).parents[2] / "data" / "explain"
BLOCK = 16
LAYOUT = {"sections": "kv", "block_size": str(BLOCK)}
FINGERPRINT = "ab" * 32
ROOT = compute_root_hash(FINGERPRINT, LAYOUT)
PARTS = TtftParts(0.5, 0.25, 0.0, 0.125, 2.0, 0.0625)
WITH_TOOLS = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}" + TEMPLATE
SYSTEM = "You are careful.\nToday is 2026-01-01.\nBe brief."
Body = dict[str, object]


def body(system: str = SYSTEM, question: str = "Where is the bug?") -> Body:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": "fake", "messages": messages}


DATE = body(SYSTEM.replace("01-01", "01-02"))


@dataclass
class Place:
    """A user's folder with a model, a store and a journal."""

    home: Path
    text: TextModel
    layout: dict[str, str] = field(default_factory=lambda: dict(LAYOUT))

    @property
    def root(self) -> RootHash:
        return compute_root_hash(FINGERPRINT, self.layout)

    def encoded(self, one: Body) -> Encoded:
        return encode(self.text, Chat().decode(json.dumps(one).encode()))

    def file(self, one: Body, name: str = "b.json") -> str:
        Path(name).write_text(json.dumps(one))
        return name

    def store(self, tokens: Sequence[int]) -> None:
        """Put a sequence into the store: its full blocks and its tail."""
        array = token_array(tokens)
        names = chain_hashes(self.root, array, BLOCK)
        parents = [BlockHash(self.root), *names]
        shelf = self._shelf()
        for i in range(0, len(tokens), BLOCK):
            piece, parent = array[i : i + BLOCK], parents[i // BLOCK]
            name = compute_block_hash(self.root, names[i // BLOCK - 1] if i else None, piece)
            spec = SectionSpec("kv.0", "F32", (1, 1, len(piece), 1))
            sections = [(spec, memoryview(bytearray(spec.nbytes)))]
            shelf.put(BlockKey(parent, name, len(piece)), piece.tobytes(), sections)

    def store_state(self, tokens: Sequence[int]) -> None:
        """Put a snapshot after a sequence into the store."""
        array = token_array(tokens)
        names = chain_hashes(self.root, array, BLOCK)
        rest = array[len(names) * BLOCK :]
        parent = names[-1] if names else BlockHash(self.root)
        name = compute_block_hash(self.root, parent if names else None, rest)
        spec = SectionSpec("state.0", "F32", (1, 1))
        key = BlockKey(parent, name, len(rest), BlockKind.STATE)
        self._shelf().put(key, rest.tobytes(), [(spec, memoryview(bytearray(4)))])

    def _shelf(self) -> BlockStore:
        directory, fs = self.home / "cache", RealFileSystem()
        return BlockStore(
            directory,
            self.root,
            fs=fs,
            budget=Budget(10**9, 0, fs, directory),
            clock=time.time,
            describe={"model": "fake", "fingerprint": FINGERPRINT, "layout": self.layout},
        )

    def journal(self, one: Body, request_id: str, **fields: object) -> JournalEntry:
        """Note a request that had this body."""
        encoded = self.encoded(one)
        limit = len(encoded.tokens) - 1
        names = chain_hashes(ROOT, token_array(encoded.tokens[:limit]), BLOCK)
        rest = encoded.tokens[len(names) * BLOCK : limit]
        entry = JournalEntry(
            request_id=request_id,
            time=time.time(),
            ended=time.time(),
            model="fake",
            outcome="stop",
            dialect="openai",
            client="curl",
            prompt_tokens=len(encoded.tokens),
            parts=PARTS,
            root=ROOT.hex(),
            block_size=BLOCK,
            blocks=tuple(name.hex() for name in names),
            rest=compute_block_hash(ROOT, names[-1], rest).hex() if rest else None,
            spans=encoded.spans,
        )
        entry = replace(entry, **fields)
        journal = Journal(
            self.home / "state" / "journal.sqlite3",
            max_bytes=10**8,
            max_age_s=10**6,
            clock=time.time,
        )
        journal.add(entry)
        journal.close()
        return entry

    def shared(self, one: Body, other: Body) -> int:
        pairs = zip(self.encoded(one).tokens, self.encoded(other).tokens, strict=False)
        return next(i for i, (a, b) in enumerate(pairs) if a != b)


@pytest.fixture
def place(home: Path) -> Place:
    folder = write_model_folder(home / "models", template=WITH_TOOLS)
    return Place(home, TextModel.load(folder))


def shown(cli: Cli, *args: str) -> dict:
    outcome = cli("cache", "inspect", *args, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def kept(place: Place, new: Body = DATE, old: Body | None = None, **fields: object) -> int:
    """The old body was sent, then the new one; where they part."""
    old = old or body()
    shared = place.shared(new, old)
    place.journal(old, "old1", miss=MissReason.COLD, computed=10_000)
    place.store([*place.encoded(old).tokens, *b"In the parser."])
    place.store([*place.encoded(new).tokens, *b"In the lexer."])
    known = {"miss": MissReason.DIVERGED, "shared": shared, "cached_disk": shared, **fields}
    place.journal(new, "new1", **known)
    return shared


# ---- requests


def test_the_last_request(cli: Cli, place: Place) -> None:
    shared = kept(place)
    found = shown(cli, "--request", "last")
    assert found["request"]["id"] == "new1"
    assert found["request"]["miss"] == "diverged"
    assert found["request"]["ttft_parts_s"]["warm_up"] == 0.0
    assert sum(found["request"]["ttft_parts_s"].values()) == found["request"]["ttft_s"]
    divergence = found["divergence"]
    assert divergence["token"] == shared
    assert divergence["place"] == "system block 0"
    assert divergence["part"] == {"kind": "system", "index": 0, "name": ""}
    assert divergence["change"] == "value changed"
    assert divergence["before"].endswith("Today is 2026-01-0")
    assert (divergence["here"][0], divergence["there"][0]) == ("2", "1")
    assert "lexer" not in divergence["there"]
    parts = {row["part"]: row for row in found["parts"]}
    assert parts["system"]["cached"] == shared
    assert parts["new input"]["cached"] == 0
    assert sum(row["tokens"] for row in parts.values()) == found["tokens"]


def test_the_last_request_as_text(cli: Cli, place: Place) -> None:
    shared = kept(place)
    outcome = cli("cache", "inspect", "--request", "last")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == "request new1"
    assert any(line.startswith("came 20") and line.endswith("curl, openai") for line in lines)
    assert "miss diverged" in lines
    assert (
        "TTFT 2.9 s: queue 500 ms, load 250 ms, warm-up 0 ms, restore 125 ms, prefill 2.0 s, "
        "bookkeeping 62 ms" in lines
    )
    assert "part tokens cached uncached" in lines
    assert f"first divergence: token {shared}, in system block 0: value changed" in lines
    assert any(line.startswith('here "2.\\nBe brief.') for line in lines)
    assert any(line.startswith('stored "1.\\nBe brief.') for line in lines)


def test_what_was_done_to_a_prompt(cli: Cli, place: Place) -> None:
    kept(place)
    assert shown(cli, "--request", "last")["request"]["changes"] == {}
    assert "\n  changed " not in cli("cache", "inspect", "--request", "last").out
    kept(place, changes={"attribution": 1, "tool_order": 1200})
    assert shown(cli, "--request", "last")["request"]["changes"] == {
        "attribution": 1,
        "tool_order": 1200,
    }
    lines = cli("cache", "inspect", "--request", "last").out.splitlines()
    assert "changed attribution 1, tool_order 1,200" in [" ".join(line.split()) for line in lines]


def test_a_prompt_is_given_the_form_that_a_server_gives_it(cli: Cli, place: Place) -> None:
    line = "x-anthropic-billing-header: cch=1;\n"
    place.file(body(), "a.json")
    place.file(body(line + SYSTEM), "b.json")
    found = shown(cli, "--prompt", "b.json", "--against", "a.json")
    assert found["note"] == "the prompts are the same"
    tools = [{"type": "function", "function": {"name": name}} for name in ("ls", "cat")]
    place.file({**body(), "tools": tools}, "a.json")
    place.file({**body(), "tools": tools[::-1]}, "b.json")
    assert shown(cli, "--prompt", "b.json", "--against", "a.json")["divergence"] is not None
    sets = ToolSets(place.home / "state" / "prompts.sqlite3", clock=time.time)
    generation = Chat().decode(Path("a.json").read_bytes())
    canonical(generation, Prompt(), sets)
    sets.close()
    found = shown(cli, "--prompt", "b.json", "--against", "a.json")
    assert found["note"] == "the prompts are the same"


def test_a_request_by_its_id(cli: Cli, place: Place) -> None:
    kept(place)
    assert shown(cli, "--request", "chatcmpl-old1")["request"]["id"] == "old1"
    outcome = cli("cache", "inspect", "--request", "zzz")
    assert (outcome.code, outcome.out) == (1, "")
    assert "the journal has no request 'zzz'" in outcome.err


def test_an_inserted_line(cli: Cli, place: Place) -> None:
    kept(place, body(SYSTEM.replace("Be brief", "Use tools.\nBe brief")))
    divergence = shown(cli, "--request", "last")["divergence"]
    assert (divergence["place"], divergence["change"]) == ("system block 0", "inserted")


def test_the_nearest_block_is_the_one_that_the_engine_met(cli: Cli, place: Place) -> None:
    """A later request shares more with this one than what was there at the time."""
    shared = kept(place)
    later = body(SYSTEM.replace("01-01", "01-02").replace("brief", "short"))
    place.store(place.encoded(later).tokens)
    old = chain_hashes(ROOT, token_array(place.encoded(body()).tokens), BLOCK)
    place.journal(
        DATE, "new2", miss=MissReason.DIVERGED, shared=shared, nearest=old[shared // BLOCK].hex()
    )
    divergence = shown(cli, "--request", "new2")["divergence"]
    assert (divergence["token"], divergence["change"]) == (shared, "value changed")


def test_blocks_that_are_gone_leave_the_place(cli: Cli, place: Place) -> None:
    shared = place.shared(DATE, body())
    place.journal(DATE, "new1", miss=MissReason.DIVERGED, shared=shared)
    found = shown(cli, "--request", "last")
    assert found["divergence"]["token"] == shared
    assert found["divergence"]["place"] == "system block 0"
    assert found["divergence"]["change"] is None
    assert "its blocks are not on disk" in found["note"]
    text = cli("cache", "inspect", "--request", "last").out
    assert f"first token that is not stored: {shared}, in system block 0" in text


def test_a_text_in_the_journal_does_for_blocks_that_are_gone(cli: Cli, place: Place) -> None:
    shared = place.shared(DATE, body())
    place.store(place.encoded(body()).tokens)
    text = place.encoded(DATE).text
    place.journal(DATE, "new1", miss=MissReason.DIVERGED, shared=shared, text=text)
    divergence = shown(cli, "--request", "last")["divergence"]
    assert (divergence["token"], divergence["change"]) == (shared, "value changed")


def test_a_stored_sequence_that_is_gone(cli: Cli, place: Place) -> None:
    shared = place.shared(DATE, body())
    place.store(place.encoded(DATE).tokens)
    place.journal(DATE, "new1", miss=MissReason.DIVERGED, shared=shared)
    found = shown(cli, "--request", "last")
    assert found["divergence"]["place"] == "system block 0"
    assert "the sequence that it left are not on disk" in found["note"]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"miss": MissReason.DISABLED}, "off by setting"),
        ({"miss": MissReason.UNCACHEABLE, "root": ""}, "can't be kept"),
        ({"miss": MissReason.NONE, "root": ""}, "not looked up"),
        ({"miss": MissReason.NONE, "shared": 10_000}, "all of it was stored"),
        ({"miss": MissReason.NONE, "shared": 40}, "the rest is new"),
        ({"miss": MissReason.EVICTED, "shared": 32}, "is not kept any more"),
        ({"miss": MissReason.COLD, "shared": 0}, "its blocks are not on disk"),
    ],
)
def test_other_reasons(cli: Cli, place: Place, fields: dict[str, object], note: str) -> None:
    place.journal(body(), "r1", **fields)
    found = shown(cli, "--request", "last")
    assert note in found["note"]
    assert found["request"]["miss"] == fields["miss"].value


@pytest.mark.parametrize(
    ("shared", "cached", "note"),
    [
        (10_000, 50, "is after token 50"),
        (60, 32, "the rest is new; the nearest snapshot of the model's recurrent layers is after"),
        (32, 32, "only snapshots of such a model are kept"),
    ],
)
def test_a_model_that_goes_on_from_snapshots(
    cli: Cli, place: Place, shared: int, cached: int, note: str
) -> None:
    known = {"shared": shared, "cached_disk": cached, "snapshot": cached}
    entry = place.journal(body(), "r1", miss=MissReason.SNAPSHOT, **known)
    found = shown(cli, "--request", "last")
    assert note in found["note"]
    assert (found["cached"], found["request"]["snapshot"]) == (cached, cached)
    cost = min(shared, entry.prompt_tokens - 1) - cached
    assert not cost or f"{cost} stored tokens behind it" in found["note"]


def test_a_divergence_says_what_the_snapshot_cost_as_well(cli: Cli, place: Place) -> None:
    shared = kept(place, cached_disk=32, snapshot=32)
    found = shown(cli, "--request", "last")
    assert (found["divergence"]["token"], found["divergence"]["change"]) == (
        shared,
        "value changed",
    )
    assert f"after token 32: {shared - 32} stored tokens behind it" in found["note"]
    assert found["note"] in cli("cache", "inspect", "--request", "last").out


def test_a_cold_request(cli: Cli, place: Place) -> None:
    place.store(place.encoded(body()).tokens)
    place.journal(body(), "r1", miss=MissReason.COLD)
    assert shown(cli, "--request", "last")["note"] == "nothing like it was stored"


def test_a_model_that_is_gone(cli: Cli, place: Place) -> None:
    kept(place)
    (place.home / "models" / "fake").rename(place.home / "elsewhere")
    found = shown(cli, "--request", "last")
    assert found["divergence"]["place"] == "system block 0"
    assert "not in the model folders" in found["note"]


def test_no_journal(cli: Cli, place: Place) -> None:
    outcome = cli("cache", "inspect", "--request", "last")
    assert outcome.code == 1
    assert "there is no journal" in outcome.err
    assert "journal.enabled" in outcome.err


# ---- prompts


def test_what_would_hit(cli: Cli, place: Place) -> None:
    place.store([*place.encoded(body()).tokens, *b"In the parser."])
    place.journal(body(), "old1")
    shared = place.shared(DATE, body())
    found = shown(cli, "--prompt", place.file(DATE), "--block-size", str(BLOCK))
    assert found["cached"] == shared
    assert found["request"] is None
    divergence = found["divergence"]
    assert (divergence["token"], divergence["place"]) == (shared, "system block 0")
    assert (divergence["change"], divergence["there"][0]) == ("value changed", "1")
    text = cli("cache", "inspect", "--prompt", "b.json").out
    assert "would be cached" in text


def test_the_next_turn_would_hit_all_that_is_stored(cli: Cli, place: Place) -> None:
    first = place.encoded(body())
    place.store([*first.tokens, *b"In the parser."])
    turn = body()
    answer = {"role": "assistant", "content": "In the parser."}
    again = {"role": "user", "content": "Sure?"}
    turn["messages"] = [*turn["messages"], answer, again]
    found = shown(cli, "--prompt", place.file(turn))
    assert found["cached"] == len(first.tokens) + len("In the parser.")
    assert "the rest is new" in found["note"]
    assert found["divergence"]["change"] is None
    assert {row["part"]: row["uncached"] for row in found["parts"]}["history"] == 0


def test_all_of_it_is_stored(cli: Cli, place: Place) -> None:
    tokens = place.encoded(body()).tokens
    place.store(tokens)
    found = shown(cli, "--prompt", place.file(body()))
    assert (found["cached"], found["note"]) == (len(tokens) - 1, "all of it is stored")
    assert found["divergence"] is None


def test_what_would_hit_of_a_model_that_goes_on_from_snapshots(cli: Cli, place: Place) -> None:
    layout = {"sections": "kv.0=F32[1]:0k;state.0=F32[1]:1s0", "block_size": str(BLOCK)}
    place.layout = layout
    tokens = place.encoded(body()).tokens
    place.store(tokens)
    place.store_state(tokens[: BLOCK + 5])
    found = shown(cli, "--prompt", place.file(body()))
    assert found["cached"] == BLOCK + 5
    cost = len(tokens) - 1 - found["cached"]
    assert found["note"].startswith("all of it is stored; the nearest snapshot")
    assert f"after token {BLOCK + 5}: {cost} stored tokens behind it" in found["note"]


def test_nothing_is_stored(cli: Cli, place: Place) -> None:
    found = shown(cli, "--prompt", place.file(body()))
    assert (found["cached"], found["divergence"]) == (0, None)
    assert "nothing of this model is stored" in found["note"]
    assert not (place.home / "cache").exists()


def test_a_running_server_may_have_more_in_memory(cli: Cli, place: Place) -> None:
    import os

    (place.home / "state").mkdir(parents=True)
    state = {"pid": os.getpid(), "address": "http://127.0.0.1:1", "version": "0"}
    (place.home / "state" / "server-1.json").write_text(json.dumps(state))
    outcome = cli("cache", "inspect", "--prompt", place.file(body()))
    assert "its memory tier holds is not known" in outcome.err


# ---- two bodies


@pytest.mark.parametrize(
    ("pair", "place_name", "change", "there"),
    [
        ("tool-swapped", 'tool 1 "Bash"', "order changed", 'tool 1 "Grep"'),
        ("date-changed", "system block 0", "value changed", None),
        ("line-inserted", "system block 0", "inserted", None),
    ],
)
def test_prepared_pairs(
    cli: Cli, place: Place, pair: str, place_name: str, change: str, there: str | None
) -> None:
    files = (str(DATA / f"{pair}-b.json"), "--against", str(DATA / f"{pair}-a.json"))
    found = shown(cli, "--prompt", *files)
    divergence = found["divergence"]
    assert (divergence["place"], divergence["change"]) == (place_name, change)
    assert 0 < found["cached"] == divergence["token"] < found["tokens"]
    text = cli("cache", "inspect", "--prompt", *files).out
    assert f"in {place_name}: {change}" in text
    if there is not None:
        assert f"{pair}-a.json has {there} there" in text


def test_the_same_prompt_twice(cli: Cli, place: Place) -> None:
    path = place.file(body())
    found = shown(cli, "--prompt", path, "--against", path)
    assert found["note"] == "the prompts are the same"
    assert (found["uncached"], found["divergence"]) == (1, None)


def test_both_apis_make_the_same_prompt(cli: Cli, place: Place) -> None:
    other = {
        "model": "fake",
        "system": SYSTEM,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Where is the bug?"}]}],
    }
    files = (place.file(body()), "--against", place.file(other, "a.json"))
    assert shown(cli, "--prompt", *files)["note"] == "the prompts are the same"


def test_a_template_without_tools_says_so(cli: Cli, home: Path) -> None:
    write_model_folder(home / "models")
    files = [str(DATA / f"tool-swapped-{name}.json") for name in "ba"]
    found = shown(cli, "--prompt", files[0], "--against", files[1])
    assert found["note"] == "the prompts are the same; the chat template of fake prints no tools"


# ---- what can be wrong


def test_bad_bodies(cli: Cli, place: Place) -> None:
    for content, said in (
        (None, "can't be read"),
        ("{", "is not valid JSON"),
        ("[]", "Expected `object`"),
        ('{"model": "fake", "messages": []}', "at least one message"),
        ('{"model": "fake", "messages": [{"role": "assistant", "content": "x"}]}', "answered"),
    ):
        path = Path("x.json")
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        outcome = cli("cache", "inspect", "--prompt", "x.json")
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.startswith("error: x.json") and said in outcome.err


def test_models_that_are_not_there(cli: Cli, place: Place) -> None:
    path = place.file({**body(), "model": "gpt-9"})
    assert shown(cli, "--prompt", path)["model"] == "fake", "the only one there is"
    write_model_folder(place.home / "models", "second")
    outcome = cli("cache", "inspect", "--prompt", path)
    assert "there is no model 'gpt-9'" in outcome.err and "fake, second" in outcome.err
    outcome = cli("cache", "inspect", "--prompt", path, "--model-dir", ".")
    assert "no models in" in outcome.err


@pytest.mark.parametrize(
    "args",
    [
        ["--against", "x"],
        ["--prompt", "x", "--live"],
        ["--request", "last", "--prompt", "x"],
        ["--request", "last", "--live"],
    ],
)
def test_choices_that_exclude_each_other(cli: Cli, args: list[str]) -> None:
    outcome = cli("cache", "inspect", *args)
    assert (outcome.code, outcome.out) == (2, "")
