#!/usr/bin/env python3
"""What a request costs beside its engine: large requests in two dialects, and streams of events.

The real server runs in a process of its own over engines that only speak the frames; the CPU time
is that of the server's process alone. Prints progress on stderr and one JSON document on the last
line.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.models.spans import find_parts
from omlx.models.text import TextModel
from omlx.server.anthropic.messages import Messages
from omlx.server.openai.chat import Chat
from omlx.server.prompt import encode, render
from scripts.bench.measure import ROOT, machine, percentile
from scripts.bench.serving import bodies, client

MAKE_BODY = {"chat": bodies.chat_body, "messages": bodies.message_body}
DIALECTS = {"chat": Chat(), "messages": Messages()}
NUM_STREAMS = (1, 8, 64)
_SHORT_ANSWER = 8
_EDGE_S = 1.0  # at both ends of a paced run, not counted
_SAID = "The river goes on past the old mill, and nobody on the bridge has seen it stand still. "
_CALL_HEAD = 'I will look.\n<tool_call>\n{"name": "tool_1", "arguments": {"path": "a", "text": "'
_CALL_TAIL = '"}}\n</tool_call>'


class Served:
    """A server that runs, with what its engines are told and tell."""

    def __init__(self, folder: Path, models: Path, port: int, process: psutil.Process) -> None:
        self._script = folder / "script.json"
        self._report = folder / "report.jsonl"
        self._num_read = 0
        self._process = process
        self.port = port
        self.texts = {name: TextModel.load(models / name) for name in (bodies.PLAIN, bodies.TOOLS)}

    def play(
        self, model: str, num_tokens: int, *, num_rows: int = 1, interval_s: float = 0.0
    ) -> None:
        """Have the next run of engines say so much; a model with tools calls one."""
        encode = self.texts[model].encode
        has_call = model == bodies.TOOLS and num_rows * num_tokens > _SHORT_ANSWER
        script = {
            "head": encode(_CALL_HEAD) if has_call else [],
            "cycle": encode(_SAID),
            "tail": encode(_CALL_TAIL) if has_call else [],
            "num_tokens": num_tokens,
            "num_rows": num_rows,
            "interval_s": interval_s,
        }
        self._script.write_text(json.dumps(script))

    def reported(self, num: int) -> list[dict[str, Any]]:
        """What the engines say of the requests that have ended since the last call."""
        deadline = time.monotonic() + 10
        while True:
            lines = self._report.read_text().splitlines() if self._report.exists() else []
            if len(lines) >= self._num_read + num:
                break
            assert time.monotonic() < deadline, "the engine does not report"
            time.sleep(0.01)
        found = [json.loads(line) for line in lines[self._num_read :]]
        self._num_read = len(lines)
        return found

    def cpu_s(self) -> float:
        """The CPU time of the server's process so far, of its children none."""
        times = self._process.cpu_times()
        return times.user + times.system

    def load_texts(self) -> None:
        """Ask every model once, which loads its text side."""
        for model in self.texts:
            self.play(bodies.PLAIN, _SHORT_ANSWER)
            with client.connect(self.port) as sock:
                client.ask(sock, client.http_request("chat", bodies.chat_body(model, 0)))
            self.reported(1)


@contextmanager
def served(demo: Path) -> Iterator[Served]:
    """Run the server until the block ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bodies.write_models(demo, folder / "models")
        options = {
            "home": str(folder / "home"),
            "models": str(folder / "models"),
            "settings": {"server.port": 0, "log.level": "warning", "models.max_loaded": 2},
            "script": str(folder / "script.json"),
            "report": str(folder / "report.jsonl"),
        }
        (folder / "home").mkdir()
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts/bench/serving/server.py"), json.dumps(options)],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            server = Served(folder, folder / "models", port, psutil.Process(process.pid))
            server.load_texts()
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and tail, in milliseconds."""
    return {
        "p50_ms": round(statistics.median(seconds) * 1000, 2),
        "p99_ms": round(percentile(seconds, 0.99) * 1000, 2),
    }


def request_costs(
    server: Served, dialect: str, model: str, num: int, *, is_one: bool
) -> dict[str, Any]:
    """Large requests one after the other: their time less what the engine had them for.

    Each begins a conversation, or goes on with one of which only the last message is new.
    """
    to_engine, from_engine, both, cpu = [], [], [], []
    with client.connect(server.port) as sock:
        for number in range(1, num + 1):
            of = (1, number) if is_one else (number + 1, 0)
            request = client.http_request(dialect, MAKE_BODY[dialect](model, *of))
            server.play(bodies.PLAIN, _SHORT_ANSWER)
            before = server.cpu_s()
            answered = client.ask(sock, request)
            [line] = server.reported(1)
            cpu.append(server.cpu_s() - before)
            to_engine.append(line["received"] - answered.begun)
            from_engine.append(answered.ended - line["ended"])
            both.append(to_engine[-1] + from_engine[-1])
    result = {
        "dialect": dialect,
        "model": model,
        "conversations": "one that goes on" if is_one else "new ones",
        "requests": num,
        "body_bytes": len(request),
        "messages": bodies.NUM_MESSAGES,
        "prompt_tokens": line["prompt_tokens"],
        "overhead": spread(both),
        "socket_to_engine": spread(to_engine),
        "engine_to_socket": spread(from_engine),
        "server_cpu_mean_ms": round(statistics.fmean(cpu) * 1000, 2),
    }
    print(f"{dialect} {model}: {result['conversations']} {result['overhead']}", file=sys.stderr)
    return result


def stages(text: TextModel, dialect: str, model: str, num: int) -> dict[str, Any]:
    """Where the text work of a large request goes, stage by stage, in this process."""
    seconds: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        seconds.setdefault(name, []).append(time.perf_counter() - started)
        return result

    for number in range(1, num + 1):
        body = MAKE_BODY[dialect](model, number)
        asked = timed("decode", lambda body=body: DIALECTS[dialect].decode(body))
        given = asked.messages, asked.tools
        prompt = timed("render", lambda given=given: render(text, *given))
        parts = timed(
            "mark_parts",
            lambda given=given, prompt=prompt: find_parts(
                prompt, *given, lambda messages, tools: render(text, messages, tools)
            ),
        )
        chars = [(part.start, part.end) for part in parts]
        timed("encode_new", lambda prompt=prompt, chars=chars: text.encode_at(prompt, chars))
        timed("encode_known", lambda prompt=prompt, chars=chars: text.encode_at(prompt, chars))
        encoded = encode(text, asked)
        timed("frame", lambda encoded=encoded: orjson.dumps({"tokens": encoded.tokens}))
    return {"dialect": dialect, "model": model, **{k: spread(v) for k, v in seconds.items()}}


def small_request(dialect: str, model: str) -> bytes:
    """A request with a tool, whose answer is streamed."""
    body = json.loads(MAKE_BODY[dialect](model, 1))
    body["messages"] = [{"role": "user", "content": "Go on."}]
    body.pop("system", None)
    body["tools"] = body["tools"][:2]
    body["max_tokens"] = 100_000
    return client.http_request(dialect, json.dumps(body).encode())


def paced(
    server: Served, dialect: str, model: str, num: int, rate: float, seconds: float
) -> dict[str, Any]:
    """The CPU that streams take at a rate of events that is given for all of them together."""
    num_tokens = int(rate * (seconds + 2 * _EDGE_S) / num)
    server.play(model, num_tokens, num_rows=num, interval_s=num / rate)
    streams = client.Streams(server.port, [small_request(dialect, model)] * num)
    streams.read(lambda: streams.num_events >= 3 * num)
    streams.read(after(_EDGE_S))
    at, cpu_s, num_events = time.monotonic(), server.cpu_s(), streams.num_events
    streams.read(after(seconds))
    wall_s, cpu_s = time.monotonic() - at, server.cpu_s() - cpu_s
    num_events = streams.num_events - num_events
    assert streams.num_open == num, "the streams were too short"
    streams.read(lambda: False)
    streams.close()
    lines = server.reported(num)
    engine_s = max(line["ended"] for line in lines) - max(line["began"] for line in lines)
    result = {
        "dialect": dialect,
        "model": model,
        "streams": num,
        "asked_per_s": rate,
        "engine_events_per_s": round(num * num_tokens / engine_s, 1),
        "sse_events_per_s": round(num_events / wall_s, 1),
        "server_cpu_share_of_a_core": round(cpu_s / wall_s, 4),
        "cpu_us_per_event": round(cpu_s / wall_s / (num * num_tokens / engine_s) * 1e6, 1),
    }
    print(f"paced: {result}", file=sys.stderr)
    return result


def has_calls(server: Served, dialect: str, model: str) -> bool:
    """Whether the parser of calls is at work: a call comes as one, and not as text."""
    server.play(model, 10 * _SHORT_ANSWER)
    with client.connect(server.port) as sock:
        answered = client.ask(sock, small_request(dialect, model))
    server.reported(1)
    return b'"name":"tool_1"' in answered.data


def after(seconds: float) -> Callable[[], bool]:
    """Whether so much time has gone by since now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def free(server: Served, dialect: str, model: str, num: int, num_events: int) -> dict[str, Any]:
    """How many events a second pass when the engine waits for the server only."""
    num_tokens = num_events // num
    server.play(model, num_tokens, num_rows=num)
    before, begun = server.cpu_s(), time.monotonic()
    streams = client.Streams(server.port, [small_request(dialect, model)] * num)
    streams.read(lambda: False)
    ended = time.monotonic()
    lines = server.reported(num)
    streams.close()
    began = max(line["began"] for line in lines)
    result = {
        "dialect": dialect,
        "model": model,
        "streams": num,
        "engine_events_per_s": round(num * num_tokens / (ended - began)),
        "sse_events_per_s": round(streams.num_events / (ended - began)),
        "server_cpu_share_of_a_core": round((server.cpu_s() - before) / (ended - begun), 4),
    }
    print(f"free: {result}", file=sys.stderr)
    return result


def idle(server: Served, seconds: float) -> float:
    """The CPU that the server takes with nothing to do, as a share of a core."""
    at, before = time.monotonic(), server.cpu_s()
    time.sleep(seconds)
    return round((server.cpu_s() - before) / (time.monotonic() - at), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder with a text side")
    parser.add_argument("--requests", type=int, default=200, help="large requests of each kind")
    parser.add_argument("--rate", type=float, default=1000.0, help="events per second, paced")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a paced run")
    parser.add_argument("--events", type=int, default=100_000, help="of a run without a pace")
    parser.add_argument("--only", choices=["requests", "stages", "paced", "free"], action="append")
    args = parser.parse_args()
    parts = args.only or ["requests", "stages", "paced", "free"]
    kinds = [(d, m) for m in (bodies.PLAIN, bodies.TOOLS) for d in DIALECTS]
    with served(args.model) as server:
        result: dict[str, Any] = {"what": "overhead of requests", "model": args.model.name}
        result["idle_cpu_share_of_a_core"] = idle(server, 2.0)
        if "requests" in parts:
            result["requests"] = [
                request_costs(server, *kind, args.requests, is_one=is_one)
                for kind in kinds
                for is_one in (False, True)
            ]
        if "stages" in parts:
            result["stages"] = [
                stages(server.texts[m], d, m, max(args.requests // 10, 5)) for d, m in kinds
            ]
        if "paced" in parts:
            result["paced"] = [
                paced(server, *kind, num, args.rate, args.seconds)
                for kind in kinds
                for num in NUM_STREAMS
            ]
        result["calls"] = [
            {"dialect": d, "model": m, "has_calls": has_calls(server, d, m)} for d, m in kinds
        ]
        if "free" in parts:
            result["free"] = [
                free(server, *kind, num, args.events) for kind in kinds for num in NUM_STREAMS
            ]
    result["machine"] = machine()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
