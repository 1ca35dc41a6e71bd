"""Labels that come from requests: bounded, printable, and the same for the same name."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.server.labels import OTHER, Labels


def test_the_first_names_keep_their_own_and_the_rest_are_one() -> None:
    labels = Labels(2, empty="unknown")
    assert [labels.of(name) for name in ("a", "b", "c", "a", "d", "")] == [
        "a", "b", OTHER, "a", OTHER, OTHER,
    ]  # fmt: skip
    assert Labels(1, empty="unknown").of("") == "unknown"


def test_asking_alone_takes_no_place() -> None:
    labels = Labels(1)
    assert labels.known("a") == OTHER
    assert labels.of("b") == "b"
    assert (labels.known("b"), labels.known("a")) == ("b", OTHER)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("a\nb", "a?b"),
        ("\x1b[31mred", "?[31mred"),
        ("half \udcff", "half ?"),
        ('quote " and \\', 'quote " and \\'),
        ("modèle 😀", "modèle 😀"),
        ("x" * 500, "x" * 80),
    ],
)
def test_a_label_is_one_line_that_can_be_written(name: str, label: str) -> None:
    assert Labels(1).of(name) == label


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=100), max_size=60))
def test_there_are_never_more_than_the_limit_and_other(names: list[str]) -> None:
    labels = Labels(5, empty="none")
    found = [labels.of(name) for name in names]
    assert len({*found} - {OTHER}) <= 5
    assert found == [labels.of(name) if label != OTHER else OTHER
                     for name, label in zip(names, found, strict=True)]  # fmt: skip
    for label in found:
        assert label.encode() and label.isprintable()


def test_threads_at_once_keep_to_the_limit() -> None:
    labels, found = Labels(8), set[str]()

    def ask(start: int) -> None:
        found.update(labels.of(str(start + i)) for i in range(200))

    threads = [threading.Thread(target=ask, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found - {OTHER}) == 8
