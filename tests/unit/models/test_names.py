"""What names mean: ids, profiles, aliases, and what is said about names that mean nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from omlx.errors import ModelError
from omlx.models.names import Names
from tests.fakes.server import entry

QWEN = replace(entry("qwen3-8b"), path=Path("/models/org/qwen3-8b"))
LLAMA = replace(entry("llama-3"), path=Path("/models/meta/llama-3"))


def names(**aliases: str) -> Names:
    profiles = {"qwen3-8b": ["thinking", "fast"], "llama-3": []}
    return Names([QWEN, LLAMA], profiles=profiles, aliases=aliases)


def meaning(all_names: Names, name: str) -> str | None:
    found = all_names.find(name)
    return None if found is None else found.id


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3-8b", "qwen3-8b"),
        ("org/qwen3-8b", "qwen3-8b"),
        ("qwen3-8b:thinking", "qwen3-8b:thinking"),
        ("org/qwen3-8b:fast", "qwen3-8b:fast"),
        ("q", "qwen3-8b"),
        ("q:thinking", "qwen3-8b:thinking"),
        ("deep", "qwen3-8b:thinking"),
        ("deeper", "qwen3-8b:thinking"),
        ("qwen3-8b:", None),
        (":thinking", None),
        ("qwen3-8b:none", None),
        ("llama-3:thinking", None),
        ("deep:fast", None),
        ("q:none", None),
        ("gone", None),
        ("", None),
    ],
)
def test_find(name: str, expected: str | None) -> None:
    known = names(q="qwen3-8b", deep="qwen3-8b:thinking", deeper="deep", gone="nothing")
    assert meaning(known, name) == expected


def test_a_profile_is_the_same_model() -> None:
    found = names().find("qwen3-8b:thinking")
    assert found is not None and found.entry is QWEN and found.profile == "thinking"


def test_listed() -> None:
    known = names(deep="qwen3-8b:thinking", broken="x", **{"llama-3": "qwen3-8b"})
    assert [(name, named.id) for name, named in known.listed()] == [
        ("qwen3-8b", "qwen3-8b"),
        ("qwen3-8b:thinking", "qwen3-8b:thinking"),
        ("qwen3-8b:fast", "qwen3-8b:fast"),
        ("llama-3", "llama-3"),
        ("deep", "qwen3-8b:thinking"),
    ]


def test_what_is_odd() -> None:
    odd = names(ok="llama-3", broken="quen3-8b", **{"llama-3": "qwen3-8b"}).check()
    assert odd == [
        "models.alias: 'broken' stands for 'quen3-8b', which is no model here "
        "(did you mean 'qwen3-8b'?)",
        "models.alias: 'llama-3' is ignored, since a model has that name (/models/meta/llama-3)",
    ]


@pytest.mark.parametrize("aliases", [{"a": "b", "b": "a"}, {"a": "a"}, {"x": "a", "a": "x"}])
def test_circles(aliases: dict[str, str]) -> None:
    known = names(**aliases)
    assert all(known.find(name) is None for name in aliases)
    with pytest.raises(ModelError, match="goes in a circle"):
        known.check()


def test_a_chain_ends_at_what_is_missing() -> None:
    assert names(a="b", b="c").check()[0] == (
        "models.alias: 'b' stands for 'c', which is no model here"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Qwen3-8B", "did you mean 'qwen3-8b'?"),
        ("qwen3-8b:thinkin", "did you mean 'qwen3-8b:thinking'?"),
        ("q9x", ""),
        ("gone", "'gone' stands for 'lama-3', which is no model here (did you mean 'llama-3'?)"),
    ],
)
def test_why_not(name: str, said: str) -> None:
    assert names(gone="lama-3").why_not(name) == said
