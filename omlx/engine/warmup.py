"""Dummy steps before a model serves, so that its first requests meet compiled kernels, weights that
are in memory, and figures of what a step costs.

Knows nothing about the prefix cache or requests: nothing is looked up or stored. Engine thread
only.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from omlx.engine.admission import Admission, is_shortage
from omlx.engine.batch import RowInput, RowProgress, RowToken
from omlx.engine.loop import Meter
from omlx.engine.pacer import Pacer
from omlx.engine.request import SamplingParams
from omlx.engine.sampling import Sampling
from omlx.errors import ModelError

_log = logging.getLogger("omlx.engine.warmup")
_SHORT = 8  # tokens of a prompt that is there to be decoded after
_NUM_DECODED = 4  # tokens of each row: the first steps of a shape find its buffers and kernels
_MOST_STEPS = 64  # of one shape: more would be a batch that gets nowhere
_GREEDY = SamplingParams()
_PLAIN = SamplingParams(temperature=1.0)
_FILTERED = SamplingParams(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1)
_FAULTS = (
    RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError,
)  # fmt: skip


def nobody_waits() -> bool:
    """The default of `is_awaited`."""
    return False


class WarmBatch(Protocol):
    """What a warm-up needs of a batch; see omlx.engine.batch.Batch."""

    def __len__(self) -> int: ...
    def insert(self, row: RowInput) -> None: ...
    def step(
        self, chosen: Collection[str], grain: int
    ) -> tuple[list[RowProgress], list[RowToken]]: ...
    def settle(self, row_id: str) -> None: ...
    def num_left(self, row_id: str) -> int: ...
    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Served:
    """The shapes that a model is served at: rows together, tokens of a prefill piece, and tokens
    that one sequence may have, None where that is not known."""

    max_rows: int
    grains: Sequence[int]
    most_tokens: int | None
    num_vocab: int


@dataclass(frozen=True, slots=True)
class WarmUpFigures:
    """How long a warm-up took, in seconds; `is_whole` is False where time, memory or a
    request ended it."""

    seconds: float = 0.0
    num_steps: int = 0
    is_whole: bool = True


class WarmUp:
    """Runs once, on a batch without rows, and leaves it without any.

    The first step of a shape compiles and is not timed; what later ones cost is told to the pacer,
    and of the largest prompt piece the tokens and seconds to `prefilled`. Admission learns what
    every step needs.
    """

    def __init__(
        self,
        batch: WarmBatch,
        served: Served,
        *,
        make_sampling: Callable[[SamplingParams], Sampling],
        pacer: Pacer,
        admission: Admission,
        meter: Meter,
        prefilled: Callable[[int, float], None],
        clock: Callable[[], float],
        limit_s: float,
        is_awaited: Callable[[], bool] = nobody_waits,
    ) -> None:
        """No step is begun after `limit_s`, or that is known to end after it, or while somebody
        waits for an answer: the shapes of a request are better met by that request."""
        self._batch = batch
        self._served = served
        self._make_sampling = make_sampling
        self._pacer = pacer
        self._admission = admission
        self._meter = meter
        self._prefilled = prefilled
        self._clock = clock
        self._limit_s = limit_s
        self._is_awaited = is_awaited
        self._ends_at = 0.0
        self._num_steps = 0
        self._token_s: float | None = None  # the least that a prompt token has taken
        self._row_s = 0.0  # what a row's short prompt takes
        self._pieces: set[int] = set()  # the sizes that were run
        self._largest: tuple[int, float] = (0, 0.0)  # the largest measured piece, and its seconds
        self._is_fault_said = False

    def run(self) -> WarmUpFigures:
        """Run shape after shape within the limit of time; ModelError if the model can't compute."""
        assert not len(self._batch), "a warm-up is for a batch without rows"
        started = self._clock()
        self._ends_at, is_whole = started + self._limit_s, True
        try:
            for shape in self._shapes():
                if self._left_s <= 0 or not shape():
                    is_whole = False
            self._tell()
        except _FAULTS as error:
            if not is_shortage(error):
                raise ModelError(
                    f"the model can't compute: {type(error).__name__}: {error}",
                    hint="the first steps failed, before any request; its files may be damaged, or "
                    "need another version of mlx or mlx-lm",
                ) from error
            _log.warning("the warm-up ended early, since memory is short: %s", error)
            is_whole = False
        finally:
            if len(self._batch):
                self._batch.reset()
        return WarmUpFigures(self._clock() - started, self._num_steps, is_whole)

    @property
    def _left_s(self) -> float:
        return 0.0 if self._is_awaited() else self._ends_at - self._clock()

    def _tell(self) -> None:
        """Tell what a prompt token costs."""
        num_tokens, seconds = self._largest
        if num_tokens:
            self._pacer.stepped(seconds, num_tokens, 0)
            self._prefilled(num_tokens, seconds)

    def _shapes(self) -> Iterator[Callable[[], bool]]:
        """What to run, the most needed first; each tells whether it ran to its end."""
        yield lambda: self._decode(1, (_GREEDY,))
        yield self._prefill
        yield lambda: self._decode(1, (_PLAIN,))
        yield self._prefill  # again: the costs of the first time are those of compilers
        yield lambda: self._decode(1, (_FILTERED,))
        for num_rows in batch_sizes(self._served.max_rows):
            yield lambda n=num_rows: self._decode(n, (_GREEDY,))
            yield lambda n=num_rows: self._decode(n, (_PLAIN, _FILTERED))

    def _prefill(self) -> bool:
        """One prompt in pieces of every size, the smallest first: what they take tells whether
        there is time for a larger one."""
        grains = self._served.grains
        num_tokens = self._fitting(2 * sum(grains) + 1)
        if num_tokens < 2:
            return False
        self._insert("prefill", num_tokens, _GREEDY)
        is_whole = all(self._prefill_to(grain, num_tokens) for grain in reversed(grains))
        self._batch.reset()
        return is_whole

    def _prefill_to(self, grain: int, num_tokens: int) -> bool:
        """Go on until a piece of so many tokens was run; False where the prompt, of so many tokens,
        or time or memory end before."""
        while self._batch.num_left("prefill"):
            is_short = self._admission.room([num_tokens], grain) < grain
            if is_short or self._left_s <= grain * (self._token_s or 0.0):
                return False
            if self._prefill_piece(grain) == grain:
                return True
        return False

    def _prefill_piece(self, grain: int) -> int:
        """Run what leads to the next place on the grid; its number of tokens."""
        before, started = self._batch.num_left("prefill"), self._clock()
        self._meter.begin()
        self._step(("prefill",), grain)
        self._batch.settle("prefill")
        seconds, peak = self._clock() - started, self._meter.end()
        size = before - self._batch.num_left("prefill")
        is_first = size not in self._pieces
        self._pieces.add(size)
        self._token_s = min(seconds / size, self._token_s or math.inf)
        self._admission.stepped(size, peak)
        if not is_first:
            self._largest = max(self._largest, (size, seconds), key=lambda piece: piece[0])
        return size

    def _decode(self, num_rows: int, params: Sequence[SamplingParams]) -> bool:
        """So many rows that decode together, the samplers dealt out among them."""
        num_tokens = self._fitting(_SHORT + _NUM_DECODED, num_rows) - _NUM_DECODED
        if num_tokens < 1 or self._left_s <= num_rows * self._row_s:
            return False
        names = [f"decode {idx}" for idx in range(num_rows)]
        for idx, name in enumerate(names):
            # Prompts of two lengths, so that one is padded.
            self._insert(name, max(1, num_tokens - idx % 2), params[idx % len(params)])
        num_decoded = 0
        for _ in range(_MOST_STEPS):
            if self._left_s <= 0 or not len(self._batch):
                break
            started = self._clock()
            tokens = self._step(names, self._served.grains[0])
            seconds = self._clock() - started
            if not num_decoded and not tokens:
                self._row_s = seconds / num_rows
            elif num_decoded and num_rows == 1 and params == (_GREEDY,):
                # One row is what first requests meet; the pacer learns of more when they come.
                self._pacer.stepped(seconds, 0, 1)
            num_decoded += len(tokens)
            self._look(tokens)
        is_whole = not len(self._batch)
        if not is_whole:
            self._batch.reset()
        return is_whole

    def _look(self, tokens: Sequence[RowToken]) -> None:
        if not self._is_fault_said and any(token.finish == "fault" for token in tokens):
            self._is_fault_said = True
            _log.warning("the model's logits are not finite in the warm-up")

    def _step(self, row_ids: Sequence[str], grain: int) -> list[RowToken]:
        self._num_steps += 1
        return self._batch.step(row_ids, grain)[1]

    def _insert(self, row_id: str, num_tokens: int, params: SamplingParams) -> None:
        num_vocab = self._served.num_vocab
        tokens = [(31 * idx + 1) % num_vocab for idx in range(num_tokens)]
        segments: list[list[int]] = [tokens[:-1], tokens[-1:]] if num_tokens > 1 else [tokens]
        sampling: Any = self._make_sampling(params)
        self._batch.insert(RowInput(row_id, (), segments, None, _NUM_DECODED, sampling, ()))

    def _fitting(self, num_tokens: int, num_rows: int = 1) -> int:
        """How many of these tokens the window and the memory allow in each row; 0 for none."""
        limits = (num_tokens, self._served.most_tokens, self._admission.most_tokens)
        most = min(limit for limit in limits if limit is not None)
        return most if most > 0 and self._admission.fits([most] * num_rows) else 0


def batch_sizes(max_rows: int) -> list[int]:
    """The numbers of rows to decode together: the powers of two up to the most, and that."""
    sizes = [2**power for power in range(1, max_rows.bit_length()) if 2**power < max_rows]
    return [*sizes, max_rows] if max_rows > 1 else []
