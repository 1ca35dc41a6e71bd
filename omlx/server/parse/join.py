"""Joins parts of an answer that follow each other.

Knows nothing about where they come from.
"""

from collections.abc import Iterable

from omlx.server.parse.said import CallArguments, Reasoning, Said, Text


def joined(parts: Iterable[Said]) -> list[Said]:
    """The same parts, with neighbours of one kind as one; texts only where nothing is between."""
    groups: list[list[Said]] = []
    end = -1
    for part in parts:
        if groups and _belongs(groups[-1][0], part, end):
            groups[-1].append(part)
        else:
            groups.append([part])
        if isinstance(part, Text):
            end = part.at + len(part.text) if part.at >= 0 else -1
    return [_one(group) for group in groups]


def _belongs(first: Said, part: Said, end: int) -> bool:
    match first, part:
        case Text(), Text():
            return part.at == end
        case Reasoning(), Reasoning():
            return True
        case CallArguments(), CallArguments():
            return first.index == part.index
        case _:
            return False


def _one(group: list[Said]) -> Said:
    first = group[0]
    if len(group) == 1:
        return first
    text = "".join(
        part.text for part in group if isinstance(part, Text | Reasoning | CallArguments)
    )
    match first:
        case Text():
            return Text(text, first.at)
        case CallArguments():
            return CallArguments(first.index, text)
        case _:
            return Reasoning(text)
