"""Frames between the server and an engine process: 4 bytes of length, then one orjson document.

Knows nothing about who sends them; plain values only.
"""

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from omlx.cache.policy import StorePolicy
from omlx.engine.request import (
    Admitted,
    CacheCounters,
    EngineRequest,
    EngineSnapshot,
    Event,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Grammar,
    MemoryUse,
    Prefilled,
    RequestClass,
    RequestStats,
    SamplingParams,
    SnapshotUsage,
    Started,
    StartFigures,
    TierUsage,
    Token,
    Trail,
    WriteUsage,
)

_LENGTH = struct.Struct("<I")
_MAX_BYTES = 1 << 28
_READ_BYTES = 1 << 16
Frame = dict[str, Any]


def send(sock: socket.socket, frame: Frame) -> None:
    """Send one frame, waiting until it is out; OSError when the other side is gone."""
    body = orjson.dumps(frame)
    assert len(body) <= _MAX_BYTES
    sock.sendall(_LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket) -> Frame | None:
    """The next frame, waiting for it; None when the other side has closed or is gone."""
    head = _exactly(sock, _LENGTH.size)
    if head is None:
        return None
    body = _exactly(sock, _LENGTH.unpack(head)[0])
    return None if body is None else orjson.loads(body)


def received(sock: socket.socket) -> Iterator[Frame]:
    """Every frame until the other side has closed or is gone; reads ahead, so it reads alone."""
    data = bytearray()
    while True:
        at = 0
        while (start := at + _LENGTH.size) <= len(data):
            end = start + _LENGTH.unpack_from(data, at)[0]
            if end > len(data):
                break
            yield orjson.loads(data[start:end])
            at = end
        del data[:at]
        try:
            piece = sock.recv(_READ_BYTES)
        except OSError:
            return
        if not piece:
            return
        data += piece


def _exactly(sock: socket.socket, num_bytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < num_bytes:
        try:
            piece = sock.recv(min(num_bytes - len(data), 1 << 20))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


def request_frame(request: EngineRequest) -> Frame:
    """A request on its way to the engine."""
    return {"kind": "submit", "request": request}


def request_from(frame: Frame) -> EngineRequest:
    """The request in a frame."""
    r = frame["request"]
    return EngineRequest(
        id=r["id"],
        tokens=tuple(r["tokens"]),
        max_tokens=r["max_tokens"],
        sampling=_sampling(r["sampling"]),
        stop=tuple(tuple(s) for s in r["stop"]),
        head=r["head"],
        stable=r["stable"],
        store=StorePolicy(r["store"]),
        request_class=RequestClass(r["request_class"]),
        emitted=tuple(r["emitted"]),
        tenant=r["tenant"],
        repetition_guard=r["repetition_guard"],
        salt=r["salt"],
    )


def _sampling(fields: Frame) -> SamplingParams:
    grammar = fields["grammar"]
    changed: Frame = {
        "grammar": None if grammar is None else Grammar(**grammar),
        "logit_bias": tuple((token, bias) for token, bias in fields["logit_bias"]),
    }
    return SamplingParams(**{**fields, **changed})


def limit_frame(limit_bytes: int) -> Frame:
    """What the engine may use of the memory now."""
    assert limit_bytes >= 0, limit_bytes
    return {"kind": "limit", "limit_bytes": limit_bytes}


def limit_from(frame: Frame) -> int:
    """The limit in a frame, in bytes."""
    limit_bytes = frame["limit_bytes"]
    assert isinstance(limit_bytes, int) and limit_bytes >= 0, limit_bytes
    return limit_bytes


def events_frame(events: Sequence[Event]) -> Frame:
    """The events of one step on their way to the server."""
    return {"kind": "events", "events": [(type(e).__name__, e) for e in events]}


def events_from(frame: Frame) -> list[Event]:
    """The events in a frame."""
    return [_event(name, fields) for name, fields in frame["events"]]


def _event(name: str, fields: Frame) -> Event:
    if name == "Token":
        top = tuple((token, logprob) for token, logprob in fields["top"])
        return Token(fields["request_id"], fields["token"], fields["logprob"], top)
    if name == "Prefilled":
        return Prefilled(**fields)
    if name == "Admitted":
        trail: Frame = {"trail": _trail(fields["trail"])}
        return Admitted(**{**fields, **trail})
    if name == "Started":
        return Started(fields["request_id"], RequestStats(**fields["stats"]))
    if name == "Finished":
        stats = RequestStats(**fields["stats"])
        return Finished(fields["request_id"], FinishReason(fields["reason"]), stats)
    assert name == "Failed", name
    return Failed(fields["request_id"], FailureCode(fields["code"]), fields["message"])


def _trail(fields: Frame | None) -> Trail | None:
    if fields is None:
        return None
    changed: Frame = {**fields, "blocks": tuple(fields["blocks"])}
    return Trail(**changed)


def _start(fields: Frame) -> StartFigures:
    changed: Frame = {**fields, "kernels": tuple(fields["kernels"])}
    return StartFigures(**changed)


def snapshot_from(fields: Frame) -> EngineSnapshot:
    """The figures in a frame."""
    parts: Frame = {
        "memory_use": MemoryUse(**fields["memory_use"]),
        "start": _start(fields["start"]),
        "memory": TierUsage(**fields["memory"]),
        "disk": TierUsage(**fields["disk"]),
        "snapshots": SnapshotUsage(
            **{tier: TierUsage(**usage) for tier, usage in fields["snapshots"].items()}
        ),
        "writes": WriteUsage(**fields["writes"]),
        "counters": CacheCounters(**fields["counters"]),
    }
    return EngineSnapshot(**{**fields, **parts})
