"""`omlx serve` behind the command line: puts a server together, runs it, tells where it is.

Knows nothing about flags or terminals.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from omlx.client import Launched
from omlx.engine.heap import share_one_heap
from omlx.engine.pool import process_pool
from omlx.errors import ServerError
from omlx.models.fits import split
from omlx.models.locate import Discovery, ModelEntry
from omlx.models.names import Named, Names, names_of
from omlx.models.text import TextModel
from omlx.server.context import EnginePool, Places, ServerContext
from omlx.server.desk import Desk
from omlx.server.heads import StoredHeads
from omlx.server.holder import explained
from omlx.server.ledger import Ledger
from omlx.server.loop import serve
from omlx.server.newcomers import Newcomers
from omlx.server.power import is_on_mains
from omlx.server.probe import write_fault
from omlx.server.service import Service
from omlx.server.statefile import removing_state, write_state
from omlx.server.tls import fingerprint
from omlx.server.warm import WarmPlan
from omlx.server.warmprompts import read_warm_prompts
from omlx.settings.build import ModelSettings, Resolved
from omlx.settings.schema import Settings
from omlx.storage.journal import Journal
from omlx.storage.replies import Replies
from omlx.storage.toolsets import ToolSets

_log = logging.getLogger("omlx.server")

PoolFactory = Callable[[Sequence[ModelEntry], Resolved], EnginePool]
SnapshotSink = Callable[[Callable[[], dict[str, object]]], None]


def run_server(
    resolved: Resolved,
    discovery: Discovery,
    *,
    on_ready: Callable[[str], None],
    snapshot_sink: SnapshotSink | None = None,
    make_pool: PoolFactory = process_pool,
    desk: Desk | None = None,
    launched: Launched | None = None,
) -> int:
    """Serve the models found until a signal comes; the exit code.

    `on_ready` gets the address once requests are accepted, `snapshot_sink` a function that any
    thread may call for the status object of `admin`. `desk` is what the admin page asks beside the
    server, `launched` what `omlx restart` needs.
    """
    warm = warm_plan(resolved)
    entries, refused = _fitting(discovery, resolved)
    _check_cache(resolved)
    share_one_heap()
    pool = make_pool(entries, resolved)
    names = names_of(entries, resolved)
    _check_models(entries, names, resolved.settings.server.default_model)
    context = replace(_context(resolved, pool, names, refused), desk=desk)
    rerender = wants_rerender(resolved.settings, is_on_mains)
    state_dir = resolved.state_dir
    cert = resolved.settings.server.tls_cert
    certificate = None if cert is None else fingerprint(cert)

    def on_bound(service: Service) -> None:
        _leave_state(resolved, service.address, certificate, launched)
        if snapshot_sink is not None:
            snapshot_sink(service.status)
        on_ready(service.address)

    with removing_state(state_dir), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(serve(context, on_bound=on_bound, warm=warm, wants_rerender=rerender))
        except ServerError as error:
            raise explained(error, state_dir, resolved.settings.server.port) from error


def _leave_state(
    resolved: Resolved, address: str, certificate: str | None, launched: Launched | None
) -> None:
    """Leave word of this server for other commands; it serves without that as well."""
    try:
        write_state(
            resolved.state_dir,
            address,
            cache_dir=resolved.cache_dir,
            started=datetime.now(UTC),
            certificate=certificate,
            drain_s=resolved.settings.server.drain_timeout,
            log_path=resolved.settings.log.file,
            launched=launched,
        )
    except OSError as error:
        _log.warning("other commands won't find this server: %s", error)


def _context(
    resolved: Resolved, pool: EnginePool, names: Names, refused: Mapping[str, str]
) -> ServerContext:
    settings = {one.id: _model_settings(one, resolved) for _, one in names.listed()}
    profiles = dict(names.profiles)
    served = Newcomers(resolved, pool, settings, profiles)
    return ServerContext(
        settings=resolved.settings,
        pool=pool,
        texts=TextModels(version=lambda entry: pool.version(entry.id)).get,
        model_settings=settings.__getitem__,
        journal=_journal(resolved),
        tool_sets=ToolSets(resolved.prompts_path, clock=time.time),
        keys_path=resolved.keys_path,
        profiles=profiles,
        refused=refused,
        origins=resolved.origins,
        ledger=_ledger(resolved),
        places=Places(resolved.cache_dir, resolved.model_dirs[0], resolved.ceiling_bytes),
        adopt=served.take,
    )


def warm_plan(resolved: Resolved) -> WarmPlan:
    """What settings ask to be warmed; SettingsError names the file that is wrong."""
    cache, prompts = resolved.settings.cache, read_warm_prompts(resolved)
    if not cache.is_on:
        if prompts or cache.warm_heads:
            _log.warning("no prompts are warmed, since the cache is off")
        return WarmPlan()
    if prompts and cache.isolate == "key":
        _log.warning("no API key shares the prompts that are warmed, since cache.isolate is key")
    num_heads = cache.warm_heads
    if num_heads and not resolved.settings.journal.enabled:
        _log.warning("no heads are warmed, since the journal, which tells which, is off")
        num_heads = 0
    heads = StoredHeads(resolved.journal_path, resolved.cache_dir)
    return WarmPlan(prompts, num_heads, heads.most_used)


class TextModels:
    """The text side of models, each loaded once for a version of its files; for any thread."""

    def __init__(
        self,
        load: Callable[[Path], TextModel] = TextModel.load,
        *,
        version: Callable[[ModelEntry], str] = lambda entry: "",
    ) -> None:
        self._load = load
        self._version = version
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[str, TextModel]] = {}

    def get(self, entry: ModelEntry) -> TextModel:
        """The text side of a model, loaded if it isn't yet (mutates); ModelError."""
        version = self._version(entry)
        with self._lock:
            found = self._loaded.get(entry.id)
            if found is None or found[0] != version:
                found = self._loaded[entry.id] = version, self._load(entry.path)
            return found[1]


def _journal(resolved: Resolved) -> Journal | None:
    settings = resolved.settings.journal
    if not settings.enabled:
        return None
    return Journal(
        resolved.journal_path,
        max_bytes=settings.max_size,
        max_age_s=settings.max_age,
        clock=time.time,
    )


def _check_cache(resolved: Resolved) -> None:
    """Say now, and not at the first model, that nothing can be stored on disk."""
    cache = resolved.settings.cache
    if not cache.enabled or cache.max_size == 0:
        return
    if reason := write_fault(resolved.cache_dir):
        _log.warning("nothing is stored on disk: %s: %s", resolved.cache_dir, reason)


def wants_rerender(
    settings: Settings, is_on_mains: Callable[[], bool]
) -> Callable[[], bool] | None:
    """Whether next prompts are computed while clients run tools; None is never."""
    wanted = settings.prompt.idle_rerender
    if not wanted or not settings.cache.is_on:
        return None
    return is_on_mains if wanted == "auto" else lambda: True


def _ledger(resolved: Resolved) -> Ledger | None:
    settings = resolved.settings.prompt
    if not (settings.ledger and resolved.settings.cache.is_on):
        return None
    return Ledger(
        Replies(resolved.prompts_path, max_bytes=settings.ledger_max_size, clock=time.monotonic)
    )


def _fitting(
    discovery: Discovery, resolved: Resolved
) -> tuple[Sequence[ModelEntry], Mapping[str, str]]:
    """The models that this machine can hold, and why not the others; ServerError if all are."""
    entries, refused = split(discovery.models, resolved.ceiling_bytes)
    if refused and not entries:
        raise ServerError(
            "no model fits into memory: " + "; ".join(refused.values()),
            hint="serve a smaller model or a smaller quantization, or raise engine.memory_limit",
        )
    for reason in refused.values():
        _log.warning("not served: %s", reason)
    return entries, refused


def _check_models(entries: Sequence[ModelEntry], names: Names, default_model: str | None) -> None:
    for oddity in names.check():
        _log.warning("%s", oddity)
    if not entries:
        raise ServerError(
            "There is no model to serve",
            hint="omlx model pull demo gets a small one; --model-dir names a folder of models",
        )
    if default_model is not None and names.find(default_model) is None:
        known = ", ".join(entry.id for entry in entries)
        raise ServerError(
            f"The default model {default_model!r} is not among those served",
            hint=f"served: {known}",
        )


def _model_settings(named: Named, resolved: Resolved) -> ModelSettings:
    entry = named.entry
    settings = resolved.for_model(entry.id, entry.path, profile=named.profile)
    for warning in settings.warnings:
        _log.warning("%s", warning)
    return settings
