import itertools

import pytest

from omlx.server.parse.stop import StopStrings

CASES = [
    # text, stops, what is left, which matched
    ("alpha beta gamma", ["beta gamma"], "alpha ", "beta gamma"),
    ("alpha beta gamma", ["a b"], "alph", "a b"),
    ("alpha beta gamma", ["beta", "beta gamma"], "alpha ", "beta"),
    ("alpha beta gamma", ["a beta g", "beta"], "alpha ", "beta"),
    ("alpha", ["al"], "", "al"),
    ("alpha beta", ["beta gamma"], "alpha beta", None),
    ("aab", ["ab"], "a", "ab"),
    ("aaaab", ["aaab"], "a", "aaab"),
    ("abcabd", ["abd"], "abc", "abd"),
    ("hi 👍 there", ["👍 t"], "hi ", "👍 t"),
    ("stop", ["op", "top"], "s", "top"),
    ("nothing", [], "nothing", None),
    ("ends with be", ["beta"], "ends with be", None),
]


def run(pieces, stops):
    parser = StopStrings(stops)
    out = [parser.add(piece) for piece in pieces]
    return "".join([*out, parser.finish()]), parser.matched


@pytest.mark.parametrize(("text", "stops", "left", "matched"), CASES)
def test_result_is_the_same_for_every_cut(text, stops, left, matched):
    """K15: in one piece, in two and three at every place, and letter by letter."""
    assert run([text], stops) == (left, matched)
    assert run(list(text), stops) == (left, matched)
    for first, second in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        assert run([text[:first], text[first:second], text[second:]], stops) == (left, matched)


def test_text_that_can_not_begin_a_stop_string_is_given_out_at_once():
    parser = StopStrings(["beta"])
    assert parser.add("alpha b") == "alpha "
    assert parser.add("ut") == "but"


def test_nothing_comes_after_a_match():
    parser = StopStrings(["x"])
    assert parser.add("ax") == "a"
    assert parser.add("more") == ""
    assert parser.finish() == ""


def test_a_stop_string_that_was_begun_and_not_completed_comes_out_at_the_end():
    parser = StopStrings(["beta"])
    assert parser.add("bet") == ""
    assert parser.finish() == "bet"
