"""Whether to load what is on disk or to compute it again, by what both have cost so far.

Knows nothing about blocks or models; one object an engine. Engine thread only.
"""

import logging
import time
from collections.abc import Callable
from enum import Enum

_log = logging.getLogger("omlx.cache.cost")
_DECAY = 0.7  # what a rate's past weighs after each new measurement
_OVERHEAD_S = 0.005  # of a load, however small: its way through queues and threads
_STOP = 1.25  # loading goes on until it takes so many times as long as computing
_RESUME = 1.1  # and begins again when it takes less than so many times as long
_TRIAL_SHARE = 0.02  # of all time that trials of a slow disk may take
_MIN_TOKENS = 32  # a smaller piece says nothing about the rate


class LoadMode(Enum):
    """What the user has set; the values are those of the setting."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class _Rate:
    """Something per second, newer measurements and larger ones weighing more."""

    def __init__(self) -> None:
        self._amount = self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        self._amount = self._amount * _DECAY + amount
        self._seconds = self._seconds * _DECAY + seconds

    @property
    def per_s(self) -> float:
        """0 until something was measured."""
        return self._amount / self._seconds if self._seconds else 0.0


class LoadCost:
    """Rates of reading and prefilling, measured while running, and what follows from them."""

    def __init__(
        self, mode: LoadMode = LoadMode.AUTO, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._mode = mode
        self.clock = clock
        self._reads = _Rate()
        self._prefills = _Rate()
        self._is_loading = True
        self._read_at = clock()
        self.num_skipped = 0  # loads that were not worth it

    @property
    def may_load(self) -> bool:
        """Whether the disk is asked at all."""
        return self._mode is not LoadMode.NEVER

    @property
    def read_bytes_per_s(self) -> float:
        """The rate of reading; 0 while unknown."""
        return self._reads.per_s

    @property
    def prefill_tokens_per_s(self) -> float:
        """The rate of prefilling; 0 while unknown."""
        return self._prefills.per_s

    def read(self, num_bytes: int, seconds: float) -> None:
        """So much was read in so long, from the first request to the last byte."""
        if num_bytes and seconds > 0:
            self._reads.add(num_bytes, seconds)
            self._read_at = self.clock()

    def prefilled(self, num_tokens: int, seconds: float) -> None:
        """One step has prefilled so many tokens."""
        if num_tokens >= _MIN_TOKENS and seconds > 0:
            self._prefills.add(num_tokens, seconds)

    def is_worth_loading(self, num_bytes: int, num_tokens: int) -> bool:
        """Whether to read so many bytes or to prefill the tokens that they stand for.

        Loading is right when in doubt: it leaves the device to others. A disk that was too slow is
        tried again after a time that grows with what the trial costs. Mutates.
        """
        if self._mode is not LoadMode.AUTO:
            return self.may_load
        bandwidth, rate = self.read_bytes_per_s, self.prefill_tokens_per_s
        if not (bandwidth and rate):
            return True
        load_s = _OVERHEAD_S + num_bytes / bandwidth
        compute_s = num_tokens / rate
        was_loading = self._is_loading
        self._is_loading = load_s <= compute_s * (_STOP if was_loading else _RESUME)
        if self._is_loading != was_loading:
            verb = "loaded" if self._is_loading else "computed again"
            text = (
                "prefixes on disk are %s from now on: %.2f s to load %d tokens, %.2f s to compute"
            )
            _log.info(text, verb, load_s, num_tokens, compute_s)
        trial_s = (self.clock() - self._read_at) * _TRIAL_SHARE
        is_worth = self._is_loading or load_s - compute_s <= trial_s
        self.num_skipped += not is_worth
        return is_worth
