"""One request inside the engine: its tokens, where it stands in the cache, its times.

Knows nothing about the batch that computes it. Engine thread only.
"""

import secrets
from dataclasses import replace

from omlx.cache.block import Chain
from omlx.cache.lookup import Hit
from omlx.engine.repetition import Repetition
from omlx.engine.request import EngineRequest, RequestStats, Trail
from omlx.engine.sampling import Sampling


class Row:
    """The mutable record of one request; times are those of the engine's clock."""

    def __init__(self, request: EngineRequest, arrived: float) -> None:
        self.request = request
        self.id = request.id
        self.repetition = Repetition(request.repetition_guard)
        self.max_tokens = request.max_tokens
        self.seed = secrets.randbits(63)
        self.emitted: list[int] = list(request.emitted)
        for token in request.emitted:
            self.repetition.add(token)
        self.attempts = 1  # failed steps make it more
        self.num_runs = 1  # being preempted does so too
        self.num_short = 0  # steps of it that found no memory
        self.cached_memory = 0
        self.cached_disk = 0
        self.hit: Hit | None = None
        self.chain: Chain | None = None
        self.sampling: Sampling | None = None
        self.arrived = arrived
        self.admitted_at: float | None = None
        self.loaded_at: float | None = None
        self.insert_at: float | None = None
        self.restored_at: float | None = None
        self.prefill_at: float | None = None
        self.first_token_at: float | None = None
        self._at_start: RequestStats | None = None
        self._resumed = len(request.emitted)

    @property
    def tokens(self) -> tuple[int, ...]:
        """What has to be prefilled: the prompt, and after a restart what was emitted before it."""
        return (*self.request.tokens, *self.emitted[: self._resumed])

    def all_tokens(self) -> list[int]:
        """Prompt and all that was emitted."""
        return [*self.request.tokens, *self.emitted]

    def restart(self, *, is_excused: bool = False) -> None:
        """Run again from what is known: prompt and emitted tokens."""
        self.num_runs += 1
        self.attempts += not is_excused
        self._resumed = len(self.emitted)
        self.loaded_at = self.insert_at = self.restored_at = None
        self.hit = self.chain = self.sampling = None

    def load(self, hit: Hit, now: float) -> None:
        """The cache has answered."""
        self.hit = hit
        self.chain = hit.chain
        self.chain.policy = self.request.store
        self.loaded_at = now

    def forget_parts(self) -> None:
        """Let go of the payloads of the hit once they are restored."""
        if self.hit is not None:
            self.hit = replace(self.hit, parts=(), states=None)

    def fault(self) -> str | None:
        """What the row's own sampling code raised, if it did."""
        return self.sampling.fault.message if self.sampling else None

    def start(self, now: float) -> RequestStats:
        """The first token is there: what it waited for, which does not change any more."""
        self.first_token_at = now
        self._at_start = self.stats(now)
        return self._at_start

    def stats(self, now: float) -> RequestStats:
        """The figures of the request as of `now`."""

        def span(start: float | None, end: float | None) -> float:
            return max(0.0, (end if end is not None else now) - start) if start is not None else 0.0

        decode_s = span(self.first_token_at, now)
        if self._at_start is not None:
            num_emitted = len(self.emitted)
            return replace(self._at_start, generated_tokens=num_emitted, decode_s=decode_s)
        queue_s = span(self.arrived, self.admitted_at) + span(self.loaded_at, self.insert_at)
        load_s = span(self.admitted_at, self.loaded_at)
        restore_s = span(self.insert_at, self.restored_at)
        prefill_s = span(self.restored_at, self.first_token_at)
        ttft_s = span(self.arrived, self.first_token_at)
        return RequestStats(
            prompt_tokens=len(self.request.tokens),
            cached_memory=self.cached_memory,
            cached_disk=self.cached_disk,
            generated_tokens=len(self.emitted),
            queue_s=queue_s,
            load_s=load_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
            ttft_s=ttft_s,
            restore_s=restore_s,
            bookkeeping_s=max(0.0, ttft_s - queue_s - load_s - restore_s - prefill_s),
        )

    def trail(self) -> Trail | None:
        """Where the prompt left what is stored, as plain values."""
        trail = self.hit.trail if self.hit is not None else None
        if trail is None:
            return None
        return Trail(
            root=trail.root.hex(),
            block_size=trail.block_size,
            blocks=tuple(name.hex() for name in trail.names),
            rest=trail.rest.hex() if trail.rest is not None else None,
            shared=trail.shared,
            nearest=trail.nearest.hex() if trail.nearest is not None else None,
            needs_snapshot=trail.needs_snapshot,
        )
