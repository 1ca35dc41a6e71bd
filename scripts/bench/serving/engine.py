"""An engine process that computes nothing: it speaks the real frames and says what a script says.

usage: engine.py SCRIPT REPORT FD

SCRIPT is a JSON file that is read at the first request of a run; a line on each request goes to
REPORT. Knows nothing about text or the server. Times are on the monotonic clock, which all
processes of a machine share.
"""

import itertools
import json
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from omlx.engine.frames import Frame, events_frame, receive, request_from, send
from omlx.engine.request import (
    Admitted,
    EngineRequest,
    Event,
    Finished,
    FinishReason,
    Prefilled,
    RequestStats,
    Started,
    Token,
    Trail,
)

BLOCK_SIZE = 256


@dataclass(frozen=True, slots=True)
class Script:
    """What every request of a run is answered: `head` once, `cycle` again and again, `tail` once.

    Steps begin when `num_rows` requests are there, `interval_s` apart, 0 for as fast as the server
    takes them; each says one token to each request. `num_tokens` is for one answer.
    """

    head: list[int]
    cycle: list[int]
    tail: list[int]
    num_tokens: int
    num_rows: int = 1
    interval_s: float = 0.0

    def token(self, idx: int) -> int:
        """The token at a place of the answer."""
        if idx < len(self.head):
            return self.head[idx]
        left = self.num_tokens - idx
        if left <= len(self.tail):
            return self.tail[-left]
        return self.cycle[(idx - len(self.head)) % len(self.cycle)]


@dataclass(slots=True)
class Row:
    """One request and how far its answer is."""

    request: EngineRequest
    received: float
    is_begun: bool = False
    said: int = 0
    sent: list[float] = field(default_factory=list)  # the first and the last step

    def step(self, script: Script) -> list[Event]:
        """The events of the next step (mutates)."""
        request_id = self.request.id
        stats = RequestStats(len(self.request.tokens), 0, 0, self.said, 0, 0, 0, 0, 0)
        if self.said >= script.num_tokens:
            return [Finished(request_id, FinishReason.STOP, stats)]
        events: list[Event] = [Token(request_id, script.token(self.said))]
        if not self.said:
            events.insert(0, Started(request_id, stats))
        self.said += 1
        return events

    def admitted(self) -> list[Event]:
        """The first events, with a trail as a cold cache gives it."""
        num_tokens = len(self.request.tokens)
        blocks = tuple(f"{idx:064x}" for idx in range(num_tokens // BLOCK_SIZE))
        trail = Trail("0" * 64, BLOCK_SIZE, blocks, "f" * 64, 0, None)
        request_id = self.request.id
        return [
            Admitted(request_id, 0, 0, trail),
            Prefilled(request_id, num_tokens, num_tokens),
        ]


class Engine:
    """Takes frames on one thread and plays the script on another."""

    def __init__(self, sock: socket.socket, script: Path, report: Path) -> None:
        self._sock = sock
        self._script_file = script
        self._report = report
        self._lock = threading.Lock()
        self._arrived: queue.SimpleQueue[Row | str | None] = queue.SimpleQueue()
        self._rows: dict[str, Row] = {}

    def run(self) -> None:
        """Serve until the server says stop or is gone."""
        if receive(self._sock) is None:
            return
        for thread in (self._beat, self._read):
            threading.Thread(target=thread, daemon=True).start()
        self._tell({"kind": "state", "state": "loading", "error": None})
        self._tell({"kind": "state", "state": "ready", "error": None})
        while self._play():
            pass

    def _tell(self, frame: Frame) -> None:
        with self._lock:
            send(self._sock, frame)

    def _beat(self) -> None:
        for num_turns in itertools.count(1):
            self._tell({"kind": "beat", "num_turns": num_turns, "age_s": 0.0})
            time.sleep(1.0)

    def _read(self) -> None:
        while (frame := receive(self._sock)) is not None and frame["kind"] != "stop":
            now = time.monotonic()
            if frame["kind"] == "submit":
                self._arrived.put(Row(request_from(frame), now))
            elif frame["kind"] == "abort":
                self._arrived.put(frame["request_id"])
        self._arrived.put(None)

    def _play(self) -> bool:
        """One run: from its first request until none is left; False at the end of all."""
        if not self._take(is_waiting=True):
            return False
        script = Script(**json.loads(self._script_file.read_text()))
        while len(self._rows) < script.num_rows:
            self._begin()
            if not self._take(is_waiting=True):
                return False
        self._begin()
        started = time.monotonic()
        for step in itertools.count(1):
            if not self._rows or not self._take(is_waiting=False):
                return not self._rows
            self._begin()
            self._step(script)
            pause_s = started + step * script.interval_s - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
        return True

    def _take(self, *, is_waiting: bool) -> bool:
        """Take what has arrived; False at the end of all."""
        while is_waiting or not self._arrived.empty():
            is_waiting = False
            match self._arrived.get():
                case None:
                    return False
                case Row() as row:
                    self._rows[row.request.id] = row
                case str(request_id):
                    self._rows.pop(request_id, None)
        return True

    def _begin(self) -> None:
        for row in self._rows.values():
            if not row.is_begun:
                row.is_begun = True
                self._tell(events_frame(row.admitted()))
                row.sent.append(time.monotonic())

    def _step(self, script: Script) -> None:
        events = [event for row in self._rows.values() for event in row.step(script)]
        ended = [self._rows[e.request_id] for e in events if isinstance(e, Finished)]
        if ended:
            now = time.monotonic()
            with self._report.open("a") as file:
                for row in ended:
                    del self._rows[row.request.id]
                    file.write(json.dumps(self._line(row, now)) + "\n")
        self._tell(events_frame(events))

    @staticmethod
    def _line(row: Row, now: float) -> dict[str, object]:
        return {
            "received": row.received,
            "began": row.sent[0],
            "ended": now,
            "prompt_tokens": len(row.request.tokens),
            "num_tokens": row.said,
        }


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[3])) as pair:
        Engine(pair, Path(sys.argv[1]), Path(sys.argv[2])).run()
