"""The endpoints below /admin/api on what runs and what is stored; never any text.

Knows nothing about who may ask; that was checked before. The shapes (times in seconds, sizes in
bytes, null = not known), beside the status, which `admin` describes:

    models:   {"models": [{"id": str, "names": [str], "model_type": str, "path": str,
                           "source": str, "revision": str | null, "quantization": str | null,
                           "weight_bytes": int, and "state", "error", "window", "pid",
                           "is_stalled", "restarts", "requests", "load_s", "warm_up_s", "kernels"
                           as in the status, "is_pinned": bool}],
               "refused": {id: reason}}
    cache:    {"is_on": bool, "models": [{"id": str, "cache_note": str, and "memory", "disk",
                           "snapshots", "writes", "counters" as in the status}]}
    requests: {"requests": [{"id": str, "model": str, "state": "queued" | "prefill" | "decode",
                           "dialect", "client": str, "tenant": str, "age_s": float,
                           "prompt_tokens", "cached_tokens", "prefilled_tokens": int,
                           "to_prefill_tokens": int | null, "generated_tokens": int,
                           "ttft_s", "tokens_per_s": float | null}],
               "recent": as in the status}

"requests" has those that run, the oldest first. "prefilled_tokens" of "to_prefill_tokens" are
computed, null while it waits; "tokens_per_s" is the mean of the state that it is in, so far.
"tenant" tells callers apart and says nothing else of them; it is another one after a restart.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from sanic.response import HTTPResponse

from omlx.server.service import Service
from omlx.server.session import Course
from omlx.server.web import Handler, Request, json_response

_TENANT_CHARS = 12
_OF_MODEL = (
    "state",
    "error",
    "window",
    "pid",
    "is_stalled",
    "restarts",
    "requests",
    "load_s",
    "warm_up_s",
    "kernels",
)
_OF_CACHE = ("cache_note", "memory", "disk", "snapshots", "writes", "counters")


class AdminRoutes:
    """The handlers of one server's admin endpoints; for the loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._salt = secrets.token_bytes(16)

    def handlers(self) -> dict[str, Handler]:
        """The handlers by the last part of their path."""
        return {
            "status": self.status,
            "models": self.models,
            "cache": self.cache,
            "requests": self.requests,
        }

    async def status(self, request: Request) -> HTTPResponse:
        """GET /admin/api/status."""
        return json_response(self._service.status())

    async def models(self, request: Request) -> HTTPResponse:
        """GET /admin/api/models: what is served, under which names, and how it gets on."""
        context = self._service.context
        by_id = {str(one["id"]): one for one in self._of_models()}
        names: dict[str, list[str]] = {}
        for name, named in context.names().listed():
            names.setdefault(named.entry.id, []).append(name)
        shown: list[dict[str, object]] = []
        for entry in context.pool.models():
            known = by_id.get(entry.id, {})
            shown.append(
                {
                    "id": entry.id,
                    "names": names.get(entry.id, []),
                    "model_type": entry.model_type,
                    "path": str(entry.path),
                    "source": entry.source.value,
                    "revision": entry.revision,
                    "quantization": entry.quantization,
                    "weight_bytes": entry.weight_bytes,
                    **{key: known.get(key) for key in _OF_MODEL},
                    "is_pinned": context.pool.is_pinned(entry.id),
                }
            )
        return json_response({"models": shown, "refused": dict(context.refused)})

    async def cache(self, request: Request) -> HTTPResponse:
        """GET /admin/api/cache: what both tiers hold, by model."""
        shown = [
            {"id": one["id"], **{key: one.get(key) for key in _OF_CACHE}}
            for one in self._of_models()
        ]
        is_on = self._service.context.settings.cache.is_on
        return json_response({"is_on": is_on, "models": shown})

    async def requests(self, request: Request) -> HTTPResponse:
        """GET /admin/api/requests: those that run, and the last that are over."""
        now = self._service.context.clock()
        running = [self._course(one, now) for one in _by_age(self._service.running.values())]
        return json_response({"requests": running, "recent": self._service.status()["recent"]})

    def _of_models(self) -> Sequence[Mapping[str, object]]:
        return cast(Sequence[Mapping[str, object]], self._service.status()["models"])

    def _course(self, course: Course, now: float) -> dict[str, object]:
        return {
            "id": course.request_id,
            "model": course.model_id,
            "state": _state(course),
            "dialect": course.caller.dialect,
            "client": course.caller.client,
            "tenant": self._pseudonym(course.caller.tenant),
            "age_s": now - course.arrived,
            "prompt_tokens": course.prompt_tokens,
            "cached_tokens": course.usage.cached,
            "prefilled_tokens": course.prefilled,
            "to_prefill_tokens": _to_prefill(course),
            "generated_tokens": course.generated,
            "ttft_s": None if course.first_token is None else course.first_token - course.arrived,
            "tokens_per_s": _tokens_per_s(course, now),
        }

    def _pseudonym(self, tenant: str) -> str:
        text = tenant.encode("utf-8", "surrogateescape")
        return hashlib.sha256(self._salt + text).hexdigest()[:_TENANT_CHARS]


def _by_age(courses: Iterable[Course]) -> list[Course]:
    return sorted(courses, key=lambda course: course.arrived)


def _state(course: Course) -> str:
    if course.admitted is None:
        return "queued"
    return "prefill" if course.first_token is None else "decode"


def _to_prefill(course: Course) -> int | None:
    """How many prompt tokens it has to compute; None while nobody knows."""
    if course.admitted is None or course.to_prefill is not None:
        return course.to_prefill
    return course.prompt_tokens - course.usage.cached


def _tokens_per_s(course: Course, now: float) -> float | None:
    """The mean speed of the state that it is in; None before there is something to count."""
    if course.first_token is not None:  # that one was there when it began to count
        number, began = course.generated - 1, course.first_token
    else:
        number, began = course.prefilled, course.admitted
    if number <= 0 or began is None or now <= began:
        return None
    return number / (now - began)
