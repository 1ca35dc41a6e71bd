"""What a cache directory holds, for people, and what of it to remove at their command.

Knows nothing about a running server; it is safe beside one, since any file may vanish.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from omlx.storage.blockfile import read_tokens
from omlx.storage.description import as_object, read_description
from omlx.storage.fs import FileSystem
from omlx.storage.inventory import Inventory
from omlx.storage.layout import BlockKind, parse_block_name
from omlx.storage.order import EVICTABLE
from omlx.storage.record import BadBlock, BadReason
from omlx.storage.scan import FileKind, FoundFile, is_process_alive, is_stale, scan


@dataclass(frozen=True, slots=True)
class RootSurvey:
    """The blocks of one model in one layout; `bad` and `other` files are not among the blocks.

    Others are those of another version of the format. `num_bytes` and times are of all of them.
    `description` is the content of root.json, empty where there is none that can be read.
    """

    root16: str
    description: Mapping[str, object]
    num_blocks: int
    num_tails: int
    num_states: int
    num_tokens: int
    num_bytes: int
    oldest: float | None
    newest: float | None
    bad: Mapping[BadReason, int]
    num_other: int

    @property
    def model(self) -> str | None:
        """The model's id, where the root says it."""
        return _model(self.description)

    @property
    def form(self) -> str | None:
        """In which form blocks hold numbers, where that is not as they are."""
        form = as_object(self.description.get("layout")).get("form")
        return form if isinstance(form, str) else None


@dataclass(frozen=True, slots=True)
class Strays:
    """Files that are no blocks: being written, and such as the store did not make."""

    num_temps: int
    temp_bytes: int
    num_unknown: int
    unknown_bytes: int


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The files a prune would remove, in order, leaves first; places below the directory."""

    files: tuple[FoundFile, ...]

    @property
    def num_bytes(self) -> int:
        """How many bytes that would free."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune removed, and how many files it could not remove."""

    num_files: int
    num_bytes: int
    num_failed: int


@dataclass(slots=True)
class _Tally:
    counts: list[int] = field(default_factory=list[int])
    times: list[float] = field(default_factory=list[float])
    num_states: int = 0
    num_bytes: int = 0
    bad: Counter[BadReason] = field(default_factory=Counter[BadReason])
    num_other: int = 0


def survey(directory: Path, fs: FileSystem) -> list[RootSurvey]:
    """What each root holds, from names, sizes and headers; changes nothing; OSError.

    A directory that is not there holds nothing.
    """
    tallies: dict[str, _Tally] = {}
    for file in _scan(fs, directory):
        if root16 := file.root16:
            _count(fs, directory, file, tallies.setdefault(root16, _Tally()))
    return [_root_survey(fs, directory, root16, tally) for root16, tally in sorted(tallies.items())]


def strays(directory: Path, fs: FileSystem) -> Strays:
    """The files in the directory that are neither blocks nor descriptions of roots; OSError."""
    files = _scan(fs, directory)
    temps = [file.size for file in files if file.kind is FileKind.TEMP]
    unknown = [file.size for file in files if file.kind is FileKind.UNKNOWN]
    return Strays(len(temps), sum(temps), len(unknown), sum(unknown))


def plan_prune(
    directory: Path,
    fs: FileSystem,
    *,
    now: float,
    max_bytes: int | None = None,
    older_than_s: float | None = None,
    model: str | None = None,
    everything: bool = False,
    is_alive: Callable[[int], bool] = is_process_alive,
) -> PrunePlan:
    """The files to remove so that what was asked for holds afterwards; changes nothing; OSError.

    `max_bytes` is for the whole directory, `older_than_s` counts from the last touch. `model`
    narrows the choice to the roots of one model, and alone means all of them. Stale temporary
    files always go, files that the store did not make never do.
    """
    files = _scan(fs, directory)
    stale = [file for file in files if _is_stale_temp(file, now, is_alive)]
    roots = {file.root16 for file in files if file.root16}
    if model is not None:
        roots = {root for root in roots if _model(read_description(fs, directory, root)) == model}
        everything = everything or (max_bytes is None and older_than_s is None)
    left = sum(file.size for file in files) - sum(file.size for file in stale)
    inventory = Inventory(file for file in files if file.root16 in roots)
    planned: list[FoundFile] = []
    while leaf := inventory.next_leaf():
        is_old = older_than_s is not None and now - leaf.mtime > older_than_s
        is_excess = max_bytes is not None and left > max_bytes
        if not (everything or is_old or is_excess):
            break  # it is the oldest leaf
        inventory.remove(leaf.place)
        planned.append(leaf)
        left -= leaf.size
    return PrunePlan((*stale, *planned, *_emptied(files, {file.place for file in planned})))


def execute(plan: PrunePlan, directory: Path, fs: FileSystem) -> Pruned:
    """Remove what was planned and the directories that are empty then. Mutates the directory."""
    num_files = num_bytes = num_failed = 0
    for file in plan.files:
        try:
            fs.unlink(directory / file.place)
        except FileNotFoundError:
            continue
        except OSError:
            num_failed += 1
            continue
        num_files += 1
        num_bytes += file.size
    _remove_empty(plan.files, directory, fs)
    return Pruned(num_files, num_bytes, num_failed)


def _scan(fs: FileSystem, directory: Path) -> list[FoundFile]:
    try:
        return scan(fs, directory)
    except FileNotFoundError:
        return []


def _count(fs: FileSystem, directory: Path, file: FoundFile, tally: _Tally) -> None:
    if file.kind not in EVICTABLE:
        return
    name = parse_block_name(file.filename)
    try:
        if name is None:
            raise BadBlock(BadReason.FORMAT)
        read_tokens(fs, directory / file.place, name, file.root16)
    except FileNotFoundError:
        return
    except BadBlock as error:
        if error.reason is BadReason.FORMAT:
            tally.num_other += 1
        else:
            tally.bad[error.reason] += 1
    except OSError:
        tally.bad[BadReason.UNREADABLE] += 1
    else:
        if name.kind is BlockKind.STATE:
            tally.num_states += 1
        else:
            tally.counts.append(name.count)
        tally.times.append(file.mtime)
    tally.num_bytes += file.size


def _root_survey(fs: FileSystem, directory: Path, root16: str, tally: _Tally) -> RootSurvey:
    description = read_description(fs, directory, root16)
    block_size = _block_size(description) or max(tally.counts, default=0)
    return RootSurvey(
        root16=root16,
        description=description,
        num_blocks=len(tally.counts),
        num_tails=sum(count < block_size for count in tally.counts),
        num_states=tally.num_states,
        num_tokens=sum(tally.counts),
        num_bytes=tally.num_bytes,
        oldest=min(tally.times, default=None),
        newest=max(tally.times, default=None),
        bad=dict(tally.bad),
        num_other=tally.num_other,
    )


def _model(description: Mapping[str, object]) -> str | None:
    model = description.get("model")
    return model if isinstance(model, str) else None


def _block_size(description: Mapping[str, object]) -> int | None:
    size = as_object(description.get("layout")).get("block_size")
    return int(size) if isinstance(size, str) and size.isdecimal() and len(size) < 6 else None


def _is_stale_temp(file: FoundFile, now: float, is_alive: Callable[[int], bool]) -> bool:
    return file.kind is FileKind.TEMP and is_stale(file, now=now, is_alive=is_alive)


def _emptied(files: Sequence[FoundFile], removed: set[str]) -> list[FoundFile]:
    """The descriptions of the roots that lose their last file."""
    left = {
        file.root16
        for file in files
        if file.place not in removed and file.kind is not FileKind.ROOT_FILE
    }
    return [file for file in files if file.kind is FileKind.ROOT_FILE and file.root16 not in left]


def _remove_empty(files: Sequence[FoundFile], directory: Path, fs: FileSystem) -> None:
    """Remove the shards and roots of removed files where they are empty; others refuse to go."""
    folders = {parent for file in files for parent in Path(file.place).parents}
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        if len(folder.parts) > 1:
            with suppress(OSError):
                fs.rmdir(directory / folder)
