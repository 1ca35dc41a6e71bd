"""Files of a model in a cache directory that it can't use any more, and why.

Knows nothing about models or layouts but that they are described in words; changes nothing.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

from omlx.storage.description import as_object, read_description
from omlx.storage.fs import FileSystem
from omlx.storage.layout import (
    BLOCKS,
    SUFFIX,
    RootHash,
    is_root_name,
    is_shard_name,
    root_name,
)
from omlx.storage.record import FORMAT

_logger = logging.getLogger("omlx.storage")


class OtherReason(Enum):
    """What files were made with; where several are true, the first one counts."""

    FORMAT = "another format version"
    FINGERPRINT = "another state of the model, or another mlx-lm"
    BLOCK_SIZE = "another block size"
    LAYOUT = "other layers or types"


def count_others(
    directory: Path, fs: FileSystem, root: RootHash, describe: Mapping[str, object]
) -> Mapping[OtherReason, int]:
    """How many files there are of the same model in other roots, by reason.

    `describe` is what root.json says of `root`. What can't be read counts as not there.
    """
    found: Counter[OtherReason] = Counter()
    with suppress(OSError):
        for name in filter(is_root_name, fs.names(directory / BLOCKS)):
            folder = directory / BLOCKS / name
            if name == root_name(root):
                continue
            described = read_description(fs, directory, name)
            if described and described.get("model") == describe.get("model"):
                found[_reason(described, describe)] += _num_files(folder, fs)
    return {reason: found[reason] for reason in OtherReason if found[reason]}


def warn_of_others(
    directory: Path, fs: FileSystem, root: RootHash, describe: Mapping[str, object]
) -> None:
    """Say once what of a model is there and of no use; nothing where there is nothing."""
    counts = count_others(directory, fs, root, describe)
    if counts:
        reasons = "; ".join(f"{number} with {reason.value}" for reason, number in counts.items())
        _logger.warning(
            "%s files of %s in %s are of no use now: %s (the oldest go when room is needed)",
            sum(counts.values()),
            describe.get("model"),
            directory,
            reasons,
        )


def _reason(theirs: Mapping[str, object], ours: Mapping[str, object]) -> OtherReason:
    if theirs.get("format") != FORMAT:
        return OtherReason.FORMAT
    if theirs.get("fingerprint") != ours.get("fingerprint"):
        return OtherReason.FINGERPRINT
    old, new = as_object(theirs.get("layout")), as_object(ours.get("layout"))
    if old.get("block_size") != new.get("block_size"):
        return OtherReason.BLOCK_SIZE
    return OtherReason.LAYOUT


def _num_files(folder: Path, fs: FileSystem) -> int:
    """How many block and state files a root has."""
    number = 0
    for shard in filter(is_shard_name, fs.names(folder)):
        with suppress(OSError):
            number += sum(name.endswith(SUFFIX) for name in fs.names(folder / shard))
    return number
