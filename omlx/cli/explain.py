"""Finds out why a prompt misses the cache: one of the journal's, one in a file, or one of two.

Knows nothing about how that is shown. It reads files only, beside any server.
"""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.cache.explain import Prompt, Spell, diverge, place_of, tabulate
from omlx.cache.hashing import TokenArray, common_prefix, token_array
from omlx.cache.stored import Match, Names, Neighbour, StoredSequences, roots_of
from omlx.cli.bodies import PromptFile, model_text, prompt_file
from omlx.cli.view.explain import Explanation
from omlx.errors import ModelError, OmlxError, StoreError
from omlx.models.fingerprint import fingerprint
from omlx.storage.entry import JournalEntry, MissReason, PartKind
from omlx.storage.fs import RealFileSystem
from omlx.storage.history import History
from omlx.storage.layout import BlockHash, RootHash

if TYPE_CHECKING:
    from omlx.settings.build import Resolved

LAST = "last"
_STORED = "stored"
_CANT_TELL = {
    MissReason.DISABLED: "the cache was off by setting",
    MissReason.UNCACHEABLE: "the model has layers whose state can't be kept",
}


def explain_request(request_id: str, resolved: "Resolved") -> Explanation:
    """Why a request of the journal was not served from the cache; OmlxError."""
    history = History(resolved.journal_path)
    entry = history.last() if request_id == LAST else history.find(request_id)
    if entry is None:
        is_last = request_id == LAST
        what = "the journal is empty" if is_last else f"the journal has no request {request_id!r}"
        raise OmlxError(what, hint="" if is_last else "the id is in the answer and in its headers")
    return _Request(entry, history, resolved).explanation()


class _Request:
    """One row of the journal, and the blocks that are left of what it tells of."""

    def __init__(self, entry: JournalEntry, history: History, resolved: "Resolved") -> None:
        self._entry = entry
        self._history = history
        self._text = model_text(entry.model, resolved)
        self._sequences: StoredSequences | None = None
        if entry.root:
            root = RootHash(bytes.fromhex(entry.root))
            self._sequences = StoredSequences(
                resolved.cache_dir,
                root,
                RealFileSystem(),
                block_size=entry.block_size,
                salt=entry.salt,
            )

    def explanation(self) -> Explanation:
        """All that can be said of it."""
        entry, sequences = self._entry, self._sequences
        if entry.miss in _CANT_TELL or sequences is None:
            return self._said(_CANT_TELL.get(entry.miss, "it was not looked up"))
        note = self._plain_note()
        if note is None:
            return self._compared(sequences)
        is_whole = entry.shared >= entry.prompt_tokens - 1
        return self._said(note, left_at=None if is_whole else entry.shared)

    def _plain_note(self) -> str | None:
        """What there is to say without a look at other sequences; None where that is needed."""
        entry = self._entry
        if entry.shared >= entry.prompt_tokens - 1:
            is_all = not entry.snapshot_cost
            return "all of it was stored; the last token is always computed" if is_all else ""
        if entry.miss is MissReason.EVICTED:
            return "what follows was computed before, but is not kept any more"
        if entry.miss is MissReason.SNAPSHOT and not entry.snapshot_cost:
            return "what follows was computed before, but only snapshots of such a model are kept"
        is_end = entry.miss is MissReason.SNAPSHOT and entry.nearest is None
        if entry.miss is MissReason.NONE or is_end:
            return "what was stored ends there, and no other sequence goes on: the rest is new"
        return None

    def _said(self, note: str, *, left_at: int | None = None) -> Explanation:
        entry = self._entry
        return Explanation(
            title=f"request {entry.request_id}",
            model=entry.model,
            num_tokens=entry.prompt_tokens,
            num_cached=entry.cached,
            sections=tuple(tabulate(entry.spans, entry.prompt_tokens, entry.cached)),
            is_sent=True,
            other=_STORED,
            left_at=left_at,
            place="" if left_at is None else place_of(entry.spans, left_at),
            note=_with_snapshot(note, entry.snapshot or 0, entry.snapshot_cost),
            entry=entry,
        )

    def _compared(self, sequences: StoredSequences) -> Explanation:
        """What the blocks tell, which may be gone."""
        entry, left_at = self._entry, self._entry.shared
        names = _names(entry)
        own = self._own_tokens(sequences.tokens_of(names))
        parent = names.blocks[: left_at // entry.block_size]
        nearest = None if entry.nearest is None else BlockHash(bytes.fromhex(entry.nearest))
        if len(own) <= left_at:
            note = "its blocks are not on disk (not yet, or not any more): its text can't be shown"
            return self._said(note, left_at=left_at)
        found = sequences.neighbour(own, parent, own=names, nearest=nearest)
        if found is None:
            is_cold = entry.miss is MissReason.COLD
            gone = (
                "the blocks of the sequence that it left are not on disk (not yet, or not any more)"
            )
            return self._said("nothing like it was stored" if is_cold else gone, left_at=left_at)
        if self._text is None:
            note = f"the model {entry.model!r} is not in the model folders: its text can't be read"
            return self._said(note, left_at=left_at)
        theirs = _with_parts(found, sequences, self._history, entry.root, entry.block_size)
        said = self._said("", left_at=left_at)
        return _joined(said, Prompt(own, entry.spans), theirs, self._text.spell)

    def _own_tokens(self, stored: TokenArray) -> TokenArray:
        """The tokens of the prompt: as stored, or from its text where the journal keeps that."""
        entry = self._entry
        if len(stored) < entry.prompt_tokens - 1 and entry.text and self._text is not None:
            encoded = self._text.encode(entry.text)
            if len(encoded) == entry.prompt_tokens:
                return token_array(encoded)
        return stored


def _with_snapshot(note: str, snapshot: int, cost: int) -> str:
    """A note, and what it cost that a model with recurrent layers goes on from a snapshot only."""
    if not cost:
        return note
    again = (
        f"the nearest snapshot of the model's recurrent layers is after token {snapshot:,}: "
        f"{cost:,} stored tokens behind it have to be computed again"
    )
    return f"{note}; {again}" if note else again


def _names(entry: JournalEntry) -> Names:
    blocks = [BlockHash(bytes.fromhex(name)) for name in entry.blocks]
    rest = None if entry.rest is None else BlockHash(bytes.fromhex(entry.rest))
    return Names(blocks, rest, entry.prompt_tokens - 1 - len(blocks) * entry.block_size)


def _with_parts(
    found: Neighbour, sequences: StoredSequences, history: History, root: str, block_size: int
) -> Prompt:
    """A stored sequence with the parts it had, if the journal has the request that it was of."""
    parent = [name.hex() for name in found.parent]
    try:
        entries = history.like(root, parent)
    except StoreError:
        entries = []
    for entry in entries:
        if entry.block_size != block_size:
            continue
        names = _names(entry)
        is_block = names.blocks[len(parent) : len(parent) + 1] == [found.child.key.name]
        is_rest = len(names.blocks) == len(parent) and sequences.is_rest(
            names, found.parent, found.child
        )
        if is_block or is_rest:
            tokens = sequences.tokens_of(names)
            longest = max(tokens, found.tokens, key=len)
            return Prompt(tokens if is_block else longest, entry.spans)
    return Prompt(found.tokens)


def _joined(said: Explanation, ours: Prompt, theirs: Prompt, spell: Spell) -> Explanation:
    """An explanation with the divergence, where two sequences really part."""
    found = diverge(ours, theirs, spell)
    if found is None:
        return replace(said, note=said.note or "no stored sequence goes on there any more")
    return replace(said, divergence=found, left_at=found.token_idx, place=found.place)


def explain_prompt(path: Path, resolved: "Resolved", *, salt: str = "") -> Explanation:
    """What of the prompt in a file the disk tier has now, and where it leaves that; OmlxError.

    `salt` is that of the requests whose blocks count.
    """
    one = prompt_file(path, resolved, salt=salt)
    tokens = token_array(one.prompt.tokens)
    known = _best_root(one, tokens, resolved, salt)
    if known is None:
        note = f"nothing of this model is stored in {resolved.cache_dir}"
        return _about(one, 0, _STORED, note=note)
    root, sequences, match, block_size = known
    num_stored = match.num_stored
    cost = num_stored - match.num_tokens
    if match.neighbour is None:
        if num_stored >= len(tokens) - 1:
            note = _with_snapshot("all of it is stored", match.num_tokens, cost)
            return _about(one, match.num_tokens, _STORED, note=note)
        note = "what is stored ends there, and no other sequence goes on: the rest is new"
        note = _with_snapshot(note, match.num_tokens, cost)
        return _about(one, match.num_tokens, _STORED, note=note, left_at=num_stored)
    note = _with_snapshot("", match.num_tokens, cost)
    said = _about(one, match.num_tokens, _STORED, note=note)
    history = History(resolved.journal_path)
    theirs = _with_parts(match.neighbour, sequences, history, root.hex(), block_size)
    return _joined(said, Prompt(tokens, one.prompt.spans), theirs, one.text.spell)


def _best_root(
    one: PromptFile, tokens: TokenArray, resolved: "Resolved", salt: str
) -> tuple[RootHash, StoredSequences, Match, int] | None:
    """The root of the model that has the most of a prompt; those of this block size come first."""
    fs, directory = RealFileSystem(), resolved.cache_dir
    try:
        identity = fingerprint(one.model.path, mlx_lm_version=version("mlx-lm"))
    except ModelError:
        identity = None
    known: list[tuple[bool, int, RootHash, StoredSequences, Match, int]] = []
    for root, file in roots_of(directory, fs, model=one.model.id, fingerprint=identity):
        text = file.layout.get("block_size", "")
        if not text.isdecimal() or not int(text[:9]):
            continue
        size = int(text)
        sections = file.layout.get("sections", "")
        sequences = StoredSequences(
            directory, root, fs, block_size=size, sections=sections, salt=salt
        )
        match = sequences.match(tokens)
        is_current = size == resolved.settings.cache.block_size
        known.append((is_current, match.num_tokens, root, sequences, match, size))
    if not known:
        return None
    _, _, root, sequences, match, size = max(known, key=lambda one: one[:2])
    return root, sequences, match, size


def compare_prompts(path: Path, other_path: Path, resolved: "Resolved") -> Explanation:
    """What a prompt would take from the cache right after another one, and where they part."""
    one = prompt_file(path, resolved)
    other = prompt_file(other_path, resolved, like=one)
    ours, theirs = (
        Prompt(token_array(file.prompt.tokens), file.prompt.spans) for file in (one, other)
    )
    shared = min(common_prefix(ours.tokens, theirs.tokens), len(ours.tokens) - 1)
    said = _about(one, shared, other_path.name)
    found = _joined(said, ours, theirs, one.text.spell)
    if found.divergence is not None:
        return found
    is_same = len(ours.tokens) == len(theirs.tokens)
    note = "the prompts are the same" if is_same else "one prompt only continues the other"
    return _about(one, shared, other_path.name, note=note)


def _about(
    one: PromptFile, num_cached: int, other: str, *, note: str = "", left_at: int | None = None
) -> Explanation:
    num_tokens, spans = len(one.prompt.tokens), one.prompt.spans
    if one.has_tools and all(span.part.kind is not PartKind.TOOL for span in spans):
        silent = f"the chat template of {one.model.id} prints no tools"
        note = f"{note}; {silent}" if note else silent
    return Explanation(
        title=f"prompt {one.path}" + ("" if other == _STORED else f" after {other}"),
        model=one.model.id,
        num_tokens=num_tokens,
        num_cached=num_cached,
        sections=tuple(tabulate(spans, num_tokens, num_cached)),
        is_sent=False,
        other=other,
        left_at=left_at,
        place="" if left_at is None else place_of(spans, left_at),
        note=note,
    )
