"""Frames: every value crosses unchanged, and a connection that breaks is an end, not an error."""

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.cache.policy import StorePolicy
from omlx.engine.config import EngineConfig
from omlx.engine.frames import (
    events_frame,
    events_from,
    limit_frame,
    limit_from,
    receive,
    received,
    request_frame,
    request_from,
    send,
    snapshot_from,
)
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

Pair = tuple[socket.socket, socket.socket]
STATS = RequestStats(
    prompt_tokens=10,
    cached_memory=1,
    cached_disk=2,
    generated_tokens=3,
    queue_s=0.1,
    load_s=0.2,
    prefill_s=0.3,
    decode_s=0.4,
    ttft_s=0.6,
    restore_s=0.7,
    bookkeeping_s=0.8,
)
TRAIL = Trail("aa", 256, ("bb", "cc"), "dd", 513, "ee")
EVENTS: list[Event] = [
    Admitted("a", 256, 512),
    Admitted("a", 256, 512, TRAIL),
    Admitted("a", 256, 512, replace(TRAIL, needs_snapshot=True)),
    Started("a", STATS),
    Prefilled("a", 128, 1000),
    Token("a", 151_643),
    *(Finished("ä€😀", reason, STATS) for reason in FinishReason),
    *(Failed("b", code, 'a "quoted"\n message') for code in FailureCode),
]
SNAPSHOT = EngineSnapshot(
    waiting=1,
    loading=2,
    prefilling=3,
    decoding=4,
    finished_requests=5,
    failed_requests=6,
    generated_tokens=7,
    preemptions=8,
    decode_tokens_per_s=8.5,
    prefill_tokens_per_s=9.5,
    cache_note="off by setting",
    memory_use=MemoryUse(*range(20, 29)),
    start=StartFigures(1.5, 2.5, 1000, ("qmm_small",)),
    memory=TierUsage(1, 2, 3),
    disk=TierUsage(4, 5, 6),
    snapshots=SnapshotUsage(TierUsage(7, 8, 9), TierUsage(10, 11, 12)),
    writes=WriteUsage(13, 14, 15, 16, 17),
    counters=CacheCounters(*range(1, 13), bad={"checksum": 2, "empty": 1}, dropped={"no_room": 3}),
    life="ab12",
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def cross(pair: Pair, frame: dict[str, object]) -> dict[str, object]:
    send(pair[0], frame)
    got = receive(pair[1])
    assert got is not None
    return got


def test_every_kind_of_event_is_here() -> None:
    assert {type(e) for e in EVENTS} == set(get_args(Event))


def test_events(pair: Pair) -> None:
    got = events_from(cross(pair, events_frame(EVENTS)))
    assert got == EVENTS
    assert [type(e) for e in got] == [type(e) for e in EVENTS]


def test_snapshots(pair: Pair) -> None:
    """Every field has a value of its own, so that none can be lost or swapped."""
    values = [getattr(SNAPSHOT, f.name) for f in fields(SNAPSHOT)]
    assert all(value != f.default for value, f in zip(values, fields(SNAPSHOT), strict=True))
    frame = cross(pair, {"kind": "snapshot", "snapshot": SNAPSHOT})
    assert snapshot_from(frame["snapshot"]) == SNAPSHOT
    empty = cross(pair, {"snapshot": EngineSnapshot()})
    assert snapshot_from(empty["snapshot"]) == EngineSnapshot()


def test_configs(pair: Pair) -> None:
    config = EngineConfig("m", "/models/m", memory_bytes=0, disk_bytes=None, cache_dir="/ü")
    frame = cross(pair, {"kind": "start", "config": asdict(config)})
    assert EngineConfig(**frame["config"]) == config


@pytest.mark.parametrize("limit_bytes", [0, 1, 2**53 + 1])
def test_limits(pair: Pair, limit_bytes: int) -> None:
    assert limit_from(cross(pair, limit_frame(limit_bytes))) == limit_bytes


@pytest.mark.parametrize("limit_bytes", [-1, 1.5, None, "1"])
def test_a_limit_that_is_none_is_our_bug(limit_bytes: object) -> None:
    with pytest.raises(AssertionError):
        limit_from({"kind": "limit", "limit_bytes": limit_bytes})
    with pytest.raises(AssertionError):
        limit_frame(-1)


numbers = st.floats(allow_nan=False, allow_infinity=False)
requests = st.builds(
    EngineRequest,
    id=st.text(),
    tokens=st.lists(st.integers(0, 2**32 - 1)).map(tuple),
    max_tokens=st.integers(0, 2**53),
    sampling=st.builds(
        SamplingParams,
        temperature=numbers,
        top_p=numbers,
        top_k=st.integers(0, 2**31),
        seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    ),
    stop=st.lists(st.lists(st.integers(0, 2**32 - 1)).map(tuple)).map(tuple),
    head=st.integers(0, 2**31),
    stable=st.integers(0, 2**31),
    store=st.sampled_from(StorePolicy),
    request_class=st.sampled_from(RequestClass),
    emitted=st.lists(st.integers(0, 2**32 - 1)).map(tuple),
    tenant=st.text(max_size=20),
    repetition_guard=st.integers(0, 10**6),
    salt=st.text(max_size=20),
)


@settings(max_examples=50, deadline=None, database=None)
@given(requests)
def test_requests(request: EngineRequest) -> None:
    with_socket = orjson.loads(orjson.dumps(request_frame(request)))
    assert request_from(with_socket) == request


def test_a_large_frame_arrives_in_pieces(pair: Pair) -> None:
    request = EngineRequest("a", tuple(range(300_000)), 5)
    sender = threading.Thread(target=send, args=(pair[0], request_frame(request)))
    sender.start()
    got = receive(pair[1])
    sender.join()
    assert got is not None
    assert request_from(got) == request


def test_frames_that_arrive_together_come_one_by_one(pair: Pair) -> None:
    for i in range(3):
        send(pair[0], {"i": i})
    pair[0].shutdown(socket.SHUT_WR)
    assert [receive(pair[1]) for _ in range(5)] == [{"i": 0}, {"i": 1}, {"i": 2}, None, None]


@pytest.mark.parametrize("kept", range(4 + 8))
def test_a_frame_that_is_cut_is_the_end(pair: Pair, kept: int) -> None:
    body = orjson.dumps({"i": 12})
    pair[0].sendall((struct.pack("<I", len(body)) + body)[:kept])
    pair[0].close()
    assert receive(pair[1]) is None


@pytest.mark.parametrize("mine", [True, False])
def test_a_closed_socket_is_the_end_for_the_reader(pair: Pair, *, mine: bool) -> None:
    pair[1 if mine else 0].close()
    assert receive(pair[1]) is None


def test_a_reader_that_waits_sees_the_end(pair: Pair) -> None:
    got: list[object] = ["nothing yet"]
    reader = threading.Thread(target=lambda: got.append(receive(pair[1])))
    reader.start()
    pair[0].close()
    reader.join(10)
    assert got == ["nothing yet", None]


def test_a_closed_socket_is_an_error_for_the_writer(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(OSError):
        for _ in range(2):
            send(pair[0], {"i": 1})


@pytest.mark.parametrize("num_bytes", [1, 3, 7, 1000])
def test_frames_are_the_same_however_their_bytes_come(pair: Pair, num_bytes: int) -> None:
    frames = [{"i": 0}, {"text": "x" * 100}, {}, {"i": [1, 2]}]
    bodies = [orjson.dumps(frame) for frame in frames]
    data = b"".join(struct.pack("<I", len(body)) + body for body in bodies)

    def write() -> None:
        with pair[0]:
            for at in range(0, len(data), num_bytes):
                pair[0].sendall(data[at : at + num_bytes])

    writer = threading.Thread(target=write)
    writer.start()
    assert list(received(pair[1])) == frames
    writer.join()


def test_what_follows_the_last_whole_frame_is_dropped(pair: Pair) -> None:
    send(pair[0], {"i": 1})
    pair[0].sendall(struct.pack("<I", 10) + b"{")
    pair[0].close()
    assert list(received(pair[1])) == [{"i": 1}]


def test_a_frame_larger_than_one_read_is_whole(pair: Pair) -> None:
    frame = {"text": "x" * 1_000_000}
    sender = threading.Thread(target=send, args=(pair[0], frame))
    sender.start()
    assert next(received(pair[1])) == frame
    sender.join()
