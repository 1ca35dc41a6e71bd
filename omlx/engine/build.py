"""Puts an engine loop together: model, codec, tiers, scheduler, batch.

Knows nothing about processes or threads but that all of this belongs to the engine thread.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omlx.cache.codec import Codec, UncacheableError
from omlx.cache.io import DiskTier
from omlx.cache.prefix import PrefixCache
from omlx.engine.admission import Admission, Sizes
from omlx.engine.batch import Batch, why_not_merged
from omlx.engine.buffers import FreedBuffers
from omlx.engine.caching import EngineCache, build_cache
from omlx.engine.config import EngineConfig
from omlx.engine.constrain import Vocabulary
from omlx.engine.flights import Flights
from omlx.engine.gauge import Gauge, no_cache, no_prefills
from omlx.engine.grammars import Grammars
from omlx.engine.inbox import Inbox
from omlx.engine.intake import Intake
from omlx.engine.keeper import Keeper
from omlx.engine.loop import EngineLoop
from omlx.engine.memory import (
    PeakMeter,
    auto_prefill_chunk,
    auto_warm_up_s,
    freed_buffers,
    keep_buffers,
    limit_bytes,
    memory_use,
)
from omlx.engine.pacer import Pacer, grains_of
from omlx.engine.pulse import Pulse
from omlx.engine.request import (
    EngineRequest,
    EngineSnapshot,
    Event,
    MemoryUse,
    SamplingParams,
    StartFigures,
)
from omlx.engine.row import Row
from omlx.engine.sampling import Sampling, make_sampling
from omlx.engine.scheduler import Limits, Scheduler
from omlx.engine.solo import SoloBatch
from omlx.engine.warmup import Served, WarmUp, nobody_waits
from omlx.models.config import context_window
from omlx.models.fingerprint import identify
from omlx.models.load import KernelUse, LoadedModel, load, mlx_lm_version, probe_caches
from omlx.units import format_size

_log = logging.getLogger("omlx.engine")

# Layers of which mlx has both forms at once when a row joins a batch: it works so far ahead.
_JOINING_LAYERS = 4


@dataclass(frozen=True, slots=True)
class Assembly:
    """A loop that can run, and what has to be closed after it."""

    inbox: Inbox
    loop: EngineLoop
    batch: Batch | SoloBatch
    prefix: PrefixCache | None
    disk: DiskTier | None
    admission: Admission
    buffers: FreedBuffers
    grammars: Grammars
    # Publishes the figures as they are.
    report: Callable[[], None]

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; one with a grammar comes in when it is compiled (any thread)."""
        if request.sampling.grammar is None:
            self.loop.submit(request)
        else:
            self.grammars.prepare(request, self.loop.submit)

    def abort(self, request_id: str) -> None:
        """End a request within one step (any thread)."""
        if not self.grammars.abort(request_id):
            self.loop.abort(request_id)

    def allow(self, limit_bytes: int) -> None:
        """Have the engine use at most so much of its limit from the next step on (any thread)."""
        self.inbox.post(lambda: _share(limit_bytes, self.admission, self.buffers))

    def release(self, done: Callable[[], None]) -> None:
        """Drop what the cache has in memory, then give freed buffers back (any thread)."""
        self.inbox.post(lambda: self._release(done))

    def _release(self, done: Callable[[], None]) -> None:
        self.admission.drop_cache()
        self.buffers.release()
        done()

    def close(self, timeout_s: float) -> None:
        """Write what is dirty within the limit and end the I/O threads (engine thread)."""
        deadline = time.monotonic() + timeout_s
        if self.prefix is not None and not self.prefix.flush(timeout_s):
            number = self.prefix.num_unwritten
            _log.warning("%d blocks were not written within %.0f s", number, timeout_s)
        self.inbox.run_jobs(0.0)
        self.grammars.close()
        if self.disk is not None:
            self.disk.close(max(0.0, deadline - time.monotonic()))
        self.report()  # what was written last
        self.batch.close()


def assemble(
    config: EngineConfig,
    *,
    emit: Callable[[Sequence[Event]], None],
    publish: Callable[[EngineSnapshot], None],
    pulse: Pulse | None = None,
    is_awaited: Callable[[], bool] = nobody_waits,
) -> Assembly:
    """Load the model, build the loop around it and warm it up, as long as no request waits for it;
    ModelError, StoreError."""
    started = time.monotonic()
    loaded = load(Path(config.model_path), kernels=_kernels(config))
    seconds = time.monotonic() - started
    _log.info("loaded %s of weights in %.1f s", format_size(loaded.weight_bytes), seconds)
    identity = identify(Path(config.model_path), mlx_lm_version=mlx_lm_version())
    return assemble_loaded(
        config,
        loaded,
        identity,
        emit=emit,
        publish=publish,
        pulse=pulse,
        load_s=seconds,
        is_awaited=is_awaited,
    )


def _kernels(config: EngineConfig) -> KernelUse | None:
    if not config.kernel_records:
        return None
    return KernelUse(Path(config.kernel_records), is_required=config.require_kernels)


def assemble_loaded(
    config: EngineConfig,
    loaded: LoadedModel,
    identity: str,
    *,
    emit: Callable[[Sequence[Event]], None],
    publish: Callable[[EngineSnapshot], None],
    make_batch: Callable[..., Batch] = Batch,
    pulse: Pulse | None = None,
    make_scheduler: Callable[..., Scheduler] = Scheduler,
    load_s: float = 0.0,
    is_awaited: Callable[[], bool] = nobody_waits,
) -> Assembly:
    """The loop around a model that is in memory already; `identity` is its fingerprint."""
    keep_buffers()
    chunk = config.prefill_chunk or auto_prefill_chunk()
    inbox, caches = Inbox(), probe_caches(loaded.model)
    why_solo = why_not_merged(caches)
    num_rows = 1 if why_solo else config.max_active
    cache, note = build_cache(config, caches, identity, inbox, why_solo)
    batch = _batch(loaded.model, num_rows, chunk, cache, None if why_solo else make_batch)
    buffers = freed_buffers(time.monotonic)
    admission = _admission(config, loaded, caches, cache, buffers)
    gauge = _gauge(config, cache, note, publish, pulse=pulse, use=memory_use(admission, buffers))
    grammars = _grammars(config, loaded, inbox, emit)
    prefix, disk = (cache.prefix, cache.tiers.disk) if cache else (None, None)
    keeper, pacer = Keeper(batch, prefix), Pacer(chunk, config.max_gap_s)
    limits = Limits(num_rows, config.max_waiting, config.ageing_s)
    scheduler = make_scheduler(limits, time.monotonic, admission.fits)
    intake = Intake(
        batch,
        keeper,
        scheduler,
        Flights(cache.keeping(config, chunk) if cache else None),
        admission=admission,
        make_sampling=_sampling_of(loaded.num_vocab, grammars),
        gauge=gauge,
        prefill_chunk=chunk,
        num_vocab=loaded.num_vocab,
        clock=time.monotonic,
    )
    loop = EngineLoop(
        batch,
        keeper,
        scheduler,
        intake,
        pacer=pacer,
        admission=admission,
        meter=PeakMeter(),
        buffers=buffers,
        inbox=inbox,
        emit=emit,
        gauge=gauge,
        clock=time.monotonic,
    )
    served = _served(loaded, num_rows, chunk) if config.warm_up else None
    warm_up_s = _warm_up(batch, served, is_awaited, cache, pacer=pacer, admission=admission)
    gauge.started(StartFigures(load_s, warm_up_s, loaded.weight_bytes, loaded.kernels))
    last = partial(gauge.publish, scheduler)
    return Assembly(inbox, loop, batch, prefix, disk, admission, buffers, grammars, last)


def _batch(
    model: Any,
    num_rows: int,
    chunk: int,
    cache: EngineCache | None,
    make_batch: Callable[..., Batch] | None,
) -> Batch | SoloBatch:
    if make_batch is None:
        return SoloBatch(model, prefill_chunk=chunk)
    is_ahead = cache is None or cache.tiers.codec.is_sliceable
    return make_batch(model, max_rows=num_rows, prefill_chunk=chunk, is_ahead=is_ahead)


def _served(loaded: LoadedModel, num_rows: int, chunk: int) -> Served:
    return Served(num_rows, grains_of(chunk), context_window(loaded.config), loaded.num_vocab)


def _warm_up(
    batch: Batch | SoloBatch,
    served: Served | None,
    is_awaited: Callable[[], bool],
    cache: EngineCache | None,
    *,
    pacer: Pacer,
    admission: Admission,
) -> float:
    """Run the model at the shapes served, if any; the seconds that it took. ModelError."""
    if served is None:
        return 0.0

    def sampling(params: SamplingParams) -> Sampling:
        return make_sampling(params, seed=0, position=0, num_vocab=served.num_vocab)

    figures = WarmUp(
        batch,
        served,
        make_sampling=sampling,
        pacer=pacer,
        admission=admission,
        meter=PeakMeter(),
        prefilled=cache.tiers.cost.prefilled if cache else no_prefills,
        clock=time.monotonic,
        limit_s=auto_warm_up_s(),
        is_awaited=is_awaited,
    ).run()
    parts = "" if figures.is_whole else ", not at all shapes"
    _log.info("warmed up in %.1f s: %d steps%s", figures.seconds, figures.num_steps, parts)
    return figures.seconds


def _gauge(
    config: EngineConfig,
    cache: EngineCache | None,
    note: str,
    publish: Callable[[EngineSnapshot], None],
    *,
    pulse: Pulse | None,
    use: Callable[[Sequence[int]], MemoryUse],
) -> Gauge:
    return Gauge(
        publish,
        cache_figures=(lambda: cache.figures(config)) if cache else no_cache,
        cache_note=note,
        clock=time.monotonic,
        prefilled=cache.tiers.cost.prefilled if cache else no_prefills,
        memory_use=use,
        pulse=pulse,
    )


def _grammars(
    config: EngineConfig,
    loaded: LoadedModel,
    inbox: Inbox,
    emit: Callable[[Sequence[Event]], None],
) -> Grammars:
    vocabulary = Vocabulary(Path(config.model_path), loaded.num_vocab)
    return Grammars(vocabulary, tell=lambda event: inbox.post(lambda: emit([event])))


def _sampling_of(num_vocab: int, grammars: Grammars) -> Callable[[Row], Sampling]:
    def sampling(row: Row) -> Sampling:
        params = row.request.sampling
        return make_sampling(
            params,
            seed=row.seed,
            position=len(row.emitted),
            num_vocab=num_vocab,
            stops=row.request.stop,
            constraint=grammars.begin(params.grammar, row.emitted) if params.grammar else None,
        )

    return sampling


def _admission(
    config: EngineConfig,
    loaded: LoadedModel,
    caches: Sequence[Any],
    cache: EngineCache | None,
    buffers: FreedBuffers,
) -> Admission:
    """What may be in work together, with what it may use at first: the warm-up keeps to it."""
    admission = _unshared(config, loaded, caches, cache, buffers.release)
    if config.allowed_bytes is not None:
        _share(config.allowed_bytes, admission, buffers)
    return admission


def _share(limit_bytes: int, admission: Admission, buffers: FreedBuffers) -> None:
    """Rows and cache, and freed buffers, keep to so much."""
    admission.set_limit(limit_bytes)
    buffers.set_limit(limit_bytes)


def _unshared(
    config: EngineConfig,
    loaded: LoadedModel,
    caches: Sequence[Any],
    cache: EngineCache | None,
    clear: Callable[[], object],
) -> Admission:
    """A model whose state is not understood is not limited."""
    limit = limit_bytes(config.memory_limit)
    try:
        codec = Codec.from_caches(caches)
    except UncacheableError:
        return Admission(Sizes(loaded.weight_bytes), limit, clear=clear)
    widest = max((leaf.window for leaf in codec.leaves), default=0)
    windows = [spec for spec in codec.specs(widest) if spec.name.startswith("window")]
    fixed = sum(spec.nbytes for spec in (*windows, *codec.state_specs()))
    twice = min(1.0, _JOINING_LAYERS / max(1, len(caches)))
    sizes = Sizes(loaded.weight_bytes, codec.bytes_per_token, fixed, twice)
    if cache is None:
        return Admission(sizes, limit, clear=clear)
    held, release = cache.held_bytes, cache.prefix.give_up
    return Admission(sizes, limit, held=held, release=release, clear=clear)
