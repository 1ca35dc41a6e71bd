"""Encodes a prompt segment by segment, and remembers those of earlier prompts.

Knows nothing about templates or special tokens but that some cut a text in two: a conversation that
goes on is nearly all the same as before. Encoding leaves the interpreter to other threads.
"""

import os
import re
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from tokenizers import AddedToken, Encoding, Tokenizer

Range = tuple[int, int]
_MAX_CHARS = 4_000_000  # of all segments that are remembered; 12 bytes a token come to that


@dataclass(frozen=True, slots=True)
class Segment:
    """A text's token ids, and the characters at which each begins and ends."""

    ids: "array[int]"
    starts: "array[int]"
    ends: "array[int]"


@dataclass(frozen=True, slots=True)
class Splice:
    """Tokens that are taken as they are for the characters [start, end) of a text."""

    start: int
    end: int
    segment: Segment


class SegmentEncoder:
    """Encodes with one tokenizer; any thread may use it."""

    def __init__(self, tokenizer: Tokenizer, *, max_chars: int = _MAX_CHARS) -> None:
        # Several segments are encoded at a time; said so, or the library warns when we fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        self._tokenizer = tokenizer
        self._cut = _cuts(list(tokenizer.get_added_tokens_decoder().values()))
        self._max_chars = max_chars
        self._num_chars = 0
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Segment] = OrderedDict()

    def encode(self, text: str) -> list[int]:
        """Ids of the text, special tokens in it included and none added."""
        return _ids(self._encoded(self._split(text)))

    def encode_at(
        self, text: str, chars: Sequence[Range], splices: Sequence[Splice] = ()
    ) -> tuple[list[int], list[Range]]:
        """The same ids, and for each range of characters that of the tokens that hold any of it.

        Of `splices`, in order and apart, the tokens are taken as they are, and the text between
        them is encoded by itself.
        """
        starts, segments = self._spliced(text, splices)
        firsts = [0, *accumulate(len(segment.ids) for segment in segments)]

        def first(char: int) -> int:
            at = min(bisect_right(starts, char), len(segments)) - 1
            return firsts[at] + bisect_right(segments[at].ends, char - starts[at])

        def last(char: int) -> int:
            at = max(min(bisect_left(starts, char), len(segments)) - 1, 0)
            return firsts[at] + bisect_left(segments[at].starts, char - starts[at])

        ranges = [(first(start), last(end)) for start, end in chars]
        return _ids(segments), [(start, max(start, end)) for start, end in ranges]

    def _spliced(self, text: str, splices: Sequence[Splice]) -> tuple[list[int], Sequence[Segment]]:
        """The segments of a text, and the characters at which they begin, with that of its end."""
        texts: list[str] = []
        places: list[int] = []  # of the splices, among the segments
        at = 0
        for splice in splices:
            if splice.start > at:
                texts += self._split(text[at : splice.start])
            places.append(len(texts) + len(places))
            at = splice.end
        if at < len(text) or not splices:
            texts += self._split(text[at:])
        segments = self._encoded(texts)
        lengths = list(map(len, texts))
        for place, splice in zip(places, splices, strict=True):
            segments.insert(place, splice.segment)
            lengths.insert(place, splice.end - splice.start)
        return [0, *accumulate(lengths)], segments

    def _split(self, text: str) -> list[str]:
        """The text cut before each token that cuts; never empty."""
        if self._cut is None:
            return [text]
        cuts = [found.start() for found in self._cut.finditer(text)]
        return [text[start:end] for start, end in pairwise([0, *cuts, len(text)]) if end] or [text]

    def _encoded(self, texts: Sequence[str]) -> list[Segment]:
        with self._lock:
            found = {text: self._known.get(text) for text in texts}
        missing = [text for text, segment in found.items() if segment is None]
        # One text at a time would hold the interpreter all the while; a batch does not.
        encodings = self._tokenizer.encode_batch(missing, add_special_tokens=False)
        made = {text: _segment(one) for text, one in zip(missing, encodings, strict=True)}
        self._remember({text: segment or made[text] for text, segment in found.items()})
        return [found[text] or made[text] for text in texts]

    def _remember(self, segments: dict[str, Segment]) -> None:
        with self._lock:
            for text, segment in segments.items():
                if len(text) > self._max_chars // 2:
                    continue  # it would take the place of all others
                if text not in self._known:
                    self._num_chars += len(text)
                self._known[text] = segment
                self._known.move_to_end(text)
            while self._num_chars > self._max_chars:
                oldest, _ = self._known.popitem(last=False)
                self._num_chars -= len(oldest)


def _segment(encoding: Encoding) -> Segment:
    edges = array("I", chain.from_iterable(encoding.offsets))
    return Segment(array("I", encoding.ids), edges[::2], edges[1::2])


def _ids(segments: Iterable[Segment]) -> list[int]:
    ids = array("I")
    for segment in segments:
        ids.extend(segment.ids)
    return ids.tolist()


def _cuts(added: Sequence[AddedToken]) -> re.Pattern[str] | None:
    """Finds tokens that are taken out of a text before all else, whatever is around them.

    What follows one is then encoded the same with and without what comes before.
    """
    inner = {char for token in added for char in token.content[1:]}
    plain = [
        token.content
        for token in added
        if token.content
        and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        # None that begins earlier can hold the beginning of this one.
        and token.content[0] not in inner
    ]
    if not plain:
        return None
    return re.compile("|".join(map(re.escape, sorted(plain, key=len, reverse=True))))
