"""Point 2, cases P6, P7, P10, P11: what a stored block depends on is in its name, and what is not
is looked at when it is loaded."""

import hashlib
import itertools
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from omlx.cache.block import Chain
from omlx.cache.hashing import compute_block_hash, compute_root_hash, token_array
from omlx.engine.engine import LocalEngine
from omlx.models.load import load
from omlx.storage.layout import BlockHash, BlockKey, RootHash
from omlx.storage.record import BadReason
from tests.acceptance.cache.cases import ATTENTION, B, disk_of, prompt, settle
from tests.acceptance.conftest import Figure
from tests.fakes import state, tiny
from tests.fakes.blocks import ROOT, Shelf, make_block
from tests.fakes.cache import BLOCK, Rig
from tests.fakes.harness import Harness
from tests.live import Live, chat, run_omlx

TEXT = prompt(3 * B + 5)
PRINT = "ab" * 32


class Quantized:
    """A model that keeps its keys and values in so many bits, but for some layers."""

    def __init__(self, model: Any, bits: int, group_size: int = 64, skipped: int = 0) -> None:
        self._model = model
        self._made = bits, group_size, skipped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        return self._model(inputs, cache=cache)

    def make_cache(self) -> list[Any]:
        bits, group_size, skipped = self._made
        num_layers = len(self._model.layers)
        plain = [KVCache() for _ in range(skipped)]
        return [*plain, *(QuantizedKVCache(group_size, bits) for _ in range(num_layers - skipped))]


def serve(model: Any, path: Path, **config: Any) -> Harness:
    sizes = {"block_size": B, "prefill_chunk": 2 * B, "write_delay_s": 0.0}
    return Harness(model, path / "cache", **(sizes | config))


def test_p6_another_form_of_the_state_is_a_miss(tmp_path: Path, figure: Figure) -> None:
    """One directory, one identity: 4 and 6 bits, group sizes, skipped layers, none, dtypes."""
    plain = tiny.build(ATTENTION)
    forms: dict[str, Callable[[], Any]] = {
        "4 bits": lambda: Quantized(plain, 4),
        "6 bits": lambda: Quantized(plain, 6),
        "4 bits in groups of 32": lambda: Quantized(plain, 4, 32),
        "4 bits but for one layer": lambda: Quantized(plain, 4, 64, 1),
        "none": lambda: plain,
        "bfloat16": lambda: tiny.build(ATTENTION, dtype=mx.bfloat16),
        "float16": lambda: tiny.build(ATTENTION, dtype=mx.float16),
    }
    notes: dict[str, str] = {}
    for name, make in forms.items():
        harness = serve(make(), tmp_path)
        cold = harness.ask(TEXT)
        assert cold.failed is None and cold.cached == 0, name
        assert len(cold.tokens) == 4
        harness.restart()
        again = harness.ask(TEXT)
        assert again.tokens == cold.tokens
        notes[name] = f"{again.cached} cached"
        harness.stop()
    for name, make in forms.items():
        harness = serve(make(), tmp_path)
        again = harness.ask(TEXT)
        assert again.cached in (0, len(TEXT) - 1) and f"{again.cached} cached" == notes[name]
        harness.stop()
    assert notes["none"] == notes["bfloat16"] == notes["float16"] == f"{len(TEXT) - 1} cached"
    figure(f"P6: each form misses what others stored; then its own: {notes}")


def test_p6_files_of_another_form_are_counted_and_evicted(tmp_path: Path, figure: Figure) -> None:
    old = serve(tiny.build(ATTENTION), tmp_path)
    old.ask(TEXT)
    assert old.stop() == 0
    files = list(tmp_path.rglob("*.safetensors"))
    size = sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file())
    limit = size + 150_000
    new = serve(tiny.build(ATTENTION, dtype=mx.float16), tmp_path, disk_bytes=limit)
    before = new.ask(TEXT[:4]).stats
    assert before is not None
    settle(new)
    assert disk_of(new).usage().used_bytes >= size
    assert disk_of(new).usage().blocks >= len(files)
    new.ask(prompt(3 * B, seed=9))
    new.restart()
    left = [p for p in files if p.exists()]
    total = sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file())
    assert len(left) < len(files) and total <= limit
    assert new.ask(prompt(3 * B, seed=9)).cached == 3 * B - 1
    assert disk_of(new).counters().bad == {}
    new.stop()
    figure(f"P6: {len(files)} old files count in a budget of {limit:,}; then {len(left)} are left")


LAYOUT = {"bits": "4", "group": "64", "skipped": "", "sections": "kv.0=F16[2,2,count,64]"}
OTHERS = [
    {},
    {**LAYOUT, "bits": "6"},
    {k: v for k, v in LAYOUT.items() if k != "bits"},
    {**LAYOUT, "group": "32"},
    {**LAYOUT, "skipped": "0"},
    {k: v for k, v in LAYOUT.items() if k != "skipped"},
    {**LAYOUT, "sections": "kv.0=BF16[2,2,count,64]"},
    {**LAYOUT, "bits": "64", "group": "4"},
    {**LAYOUT, "group": "4", "bits": "64", "skipped": "bits"},
]


def test_p6_each_option_of_the_layout_is_in_the_root(figure: Figure) -> None:
    roots = {compute_root_hash(PRINT, layout) for layout in (LAYOUT, *OTHERS)}
    assert len(roots) == 1 + len(OTHERS)
    figure(f"P6: {len(roots)} layouts, {len(roots)} roots")


class Folder(Harness):
    """An engine that loads a model's folder, as the server's do."""

    def __init__(self, path: Path, cache_dir: Path) -> None:
        sizes = {"block_size": B, "prefill_chunk": 2 * B, "model_path": str(path)}
        super().__init__(load(path).model, cache_dir, **sizes)

    def make_engine(self) -> LocalEngine:
        return LocalEngine(self.config)


def flip_a_weight(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x40
    path.write_bytes(data)


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def retarget(folder: Path) -> None:
    other = folder.parent / "other.safetensors"
    shutil.copy(folder / "model.safetensors", other)
    flip_a_weight(other)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(other)


def add_adapter(folder: Path) -> None:
    mx.save_safetensors(str(folder / "adapters.safetensors"), {"lora_a": mx.ones((2, 2))})
    (folder / "adapter_config.json").write_text('{"rank": 2}')


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "one weight, same size": (lambda f: flip_a_weight(f / "model.safetensors"), True),
    "rope_theta": (lambda f: edit_config(f, rope_theta=9999.0), True),
    "adapter": (add_adapter, True),
    "symlink": (retarget, True),
    "tokenizer.json": (lambda f: (f / "tokenizer.json").write_text("{}"), False),
    "template": (lambda f: (f / "chat_template.jinja").write_text("{{ 1 }}"), False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_p7_another_model_under_the_same_name_starts_anew(
    name: str, tmp_path: Path, figure: Figure
) -> None:
    change, is_another = CHANGES[name]
    folder = tmp_path / "model"
    tiny.save(tiny.build(ATTENTION), folder, tiny.CONFIGS[ATTENTION])
    (folder / "tokenizer.json").write_text('{"a": 1}')
    (folder / "chat_template.jinja").write_text("{{ 2 }}")
    harness = Folder(folder, tmp_path / "cache")
    first = harness.ask(TEXT)
    assert harness.stop() == 0, "the model is unloaded, and this process goes on"
    change(folder)
    harness = Folder(folder, tmp_path / "cache")
    second = harness.ask(TEXT)
    harness.stop()
    assert second.failed is None
    assert second.cached == (0 if is_another else len(TEXT) - 1)
    assert is_another or second.tokens == first.tokens
    figure(f"P7 {name}: {second.cached} of {len(TEXT)} reused")


def test_p7_an_unreadable_identity_is_a_fresh_one(tmp_path: Path, figure: Figure) -> None:
    """A file beside the weights is damaged: the model runs, and shares nothing with any other."""
    folder = tmp_path / "model"
    tiny.save(tiny.build(ATTENTION), folder, tiny.CONFIGS[ATTENTION])
    (folder / "consolidated.safetensors").write_bytes(b"half a download")
    for _ in range(2):
        harness = Folder(folder, tmp_path / "cache")
        cold = harness.ask(TEXT)
        again = harness.ask(TEXT)
        harness.stop()
        assert cold.failed is None, cold.failed
        assert (cold.cached, again.cached) == (0, len(TEXT) - 1)
        assert again.tokens == cold.tokens
    roots = list((tmp_path / "cache" / "blocks").iterdir())
    assert len(roots) == 2
    figure("P7: unreadable identity: two starts, two roots, nothing reused between them")


def test_p7_nothing_of_the_text_outlives_a_template(
    tiny_model: Path, tmp_path: Path, figure: Figure
) -> None:
    """Counts are those of the new template; only equal tokens hit."""
    folder = tmp_path / "models" / "tiny"
    shutil.copytree(tiny_model, folder)
    counts: list[tuple[int, int]] = []
    for change in (False, True):
        template = (folder / "chat_template.jinja").read_text()
        if change:
            (folder / "chat_template.jinja").write_text("\n" * 40 + "Be kind. " + template)
        with Live("--model-dir", str(folder.parent), home=tmp_path) as live:
            for _ in range(2):
                body = chat("tiny", "How do you do? " * 30)
                status, answer = live.post("/v1/chat/completions", body)
                assert status == 200, answer
                usage = answer["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                counts.append((usage["prompt_tokens"], cached))
    (old, _), _, (new, cached), again = counts
    assert new > old and cached < 10 and again == (new, new - 1)
    report = json.loads(run_omlx("cache", "inspect", "--json", home=tmp_path).stdout)
    assert len(report["models"][0]["disk"]["roots"]) == 1, "the model is the same"
    figure(f"P7: prompt {old} tokens, with another template {new}, of which {cached} reused")


def image(pixels: bytes, **how: str) -> tuple[str, bytes]:
    """The extra key of an image: a digest of its decoded bytes and how they are processed."""
    digest = hashlib.sha256(struct.pack("<Q", len(pixels)) + pixels)
    digest.update(json.dumps(how, sort_keys=True).encode())
    return "image", digest.digest()


RED, BLUE = image(b"\xff\x00\x00" * 64), image(b"\x00\x00\xff" * 64)


def names(images: dict[int, list[tuple[str, bytes]]], num_blocks: int = 5) -> list[BlockHash]:
    """A chain over the same tokens, with images in some of its blocks."""
    chain: list[BlockHash] = []
    for i in range(num_blocks):
        parent = chain[-1] if chain else None
        chain.append(compute_block_hash(ROOT, parent, range(i, i + 8), images.get(i, ())))
    return chain


def test_p10_an_images_digest_names_its_block_and_all_later_ones(figure: Figure) -> None:
    plain, red, blue = names({}), names({2: [RED]}), names({2: [BLUE]})
    other_detail = names({2: [image(b"\xff\x00\x00" * 64, detail="low")]})
    both, swapped = names({2: [RED, BLUE]}), names({2: [BLUE, RED]})
    chains = [plain, red, blue, other_detail, both, swapped]
    assert all(chain[:2] == plain[:2] for chain in chains), "blocks before it are shared"
    later = {name for chain in chains for name in chain[2:]}
    assert len(later) == 3 * len(chains), "none of those from it on is"
    assert names({2: [RED]}) == red
    figure(f"P10: {len(chains)} variants of one text share the 2 blocks before the image, no other")


def test_p10_a_stored_image_block_never_answers_for_another(figure: Figure) -> None:
    shelf = Shelf(Rig().fs)
    base = make_block(ROOT, 1)
    tokens = struct.unpack("<4I", base.tokens)
    keys = [
        BlockKey(BlockHash(ROOT), compute_block_hash(ROOT, None, tokens, extra), 4)
        for extra in ((), [RED], [BLUE])
    ]
    buffers = [(spec, memoryview(bytearray(spec.nbytes))) for spec in base.specs]
    shelf.store.put(keys[1], base.tokens, base.sections)
    found = [shelf.store.read(key, base.tokens, buffers) for key in keys]
    assert found == [False, True, False]
    figure("P10: same tokens: the block with the red image is read as that one only")


def test_p11_no_two_lists_of_fields_share_a_name(figure: Figure) -> None:
    layouts: list[dict[str, str]] = [
        dict(zip(fields[::2], fields[1::2], strict=True))
        for fields in [
            (), ("", ""), ("a", ""), ("", "a"), ("a", "bc"), ("ab", "c"), ("abc", ""), ("c", "ab"),
            ("bc", "a"), ("a", "b", "c", ""), ("a", "", "b", "c"), ("b", "a", "c", ""),
            ("a", "c", "b", ""), ("salt", "x", "adapter", ""), ("salt", "", "adapter", "x"),
        ]
    ]  # fmt: skip
    roots = {compute_root_hash(p, x) for p in (PRINT, "ba" * 32) for x in layouts}
    assert len(roots) == 2 * len(layouts)
    parents = [None, BlockHash(bytes(32)), BlockHash(b"\x01" + bytes(31))]
    tokens = [[], [0], [1, 23], [12, 3], [123], [23, 1], [0, 0], [1, 2, 3], [256], [1, 0]]
    extras = [
        [], [("", b"")], [("adapter", b"x")], [("salt", b"x")], [("x", b"adapter")],
        [("a", b"bc")], [("ab", b"c")], [("a", b""), ("bc", b"")], [("bc", b""), ("a", b"")],
    ]  # fmt: skip
    cases = list(itertools.product(parents, tokens, extras))
    assert len({compute_block_hash(ROOT, *case) for case in cases}) == len(cases)
    assert all(len(compute_block_hash(ROOT, *case)) == 32 for case in cases)
    figure(f"P11: {2 * len(layouts)} roots and {len(cases)} blocks from swapped, split and empty "
           "fields, all different")  # fmt: skip


def collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all blocks after one parent and of one length the same name, whatever they hold."""

    def weak(root: RootHash, parent: BlockHash | None, tokens: Any, extra: Any = ()) -> BlockHash:
        size = len(token_array(tokens)).to_bytes(4, "little")
        return BlockHash(hashlib.sha256((parent or root) + size).digest())

    for module in ("hashing", "lookup", "prefix", "statelookup", "trail"):
        monkeypatch.setattr(f"omlx.cache.{module}.compute_block_hash", weak, raising=False)


A, OTHER = [*range(1, 10)], [*range(101, 110)]


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_p11_a_collision_of_digests_is_a_miss(
    tier: str, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and parent are stored with the block and compared when it is taken."""
    collide(monkeypatch)
    rig = Rig()
    rig.compute(A)
    if tier == "disk":
        rig.restart()
    assert rig.look_up(OTHER).num_tokens == 0, "the look-up compares what it restored, too"
    if tier == "disk":
        assert rig.disk is not None
        assert set(rig.disk.counters().bad) == {BadReason.TOKENS}
    hits = [rig.compute(tokens).num_tokens for tokens in (OTHER, A, OTHER, A)]
    assert all(0 <= hit < len(A) for hit in hits)
    figure(f"P11: forced collision in {tier}: a miss, right state ever after (hits {hits})")


def test_p11_a_file_of_another_parent_is_a_miss(figure: Figure) -> None:
    """Its name is right, its place too; what is in it says another parent."""
    rig = Rig()
    chain = Chain(token_array(A))
    rig.keep(chain, A)
    rig.restart()
    first, second = (rig.file_of(chain, i) for i in (0, 1))
    rig.fs.content(second)[:] = bytes(rig.fs.content(first))
    assert rig.look_up(A).num_tokens == BLOCK
    assert rig.disk is not None and rig.disk.counters().bad == {BadReason.FOREIGN: 1}
    assert state.BYTES_PER_TOKEN > 0
    figure("P11: a file with another parent inside is a miss, counted as foreign")
