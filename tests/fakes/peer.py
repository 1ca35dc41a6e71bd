"""A small OpenAI-compatible server in one file, started by a recipe, that can misbehave.

usage: peer.py PORT HOME [MODE...]

It keeps the prompts it has seen in memory, and with "keeps" in HOME as well. Modes: "slow=S" waits
S seconds before each token, "never" is never ready, "dies" ends at once, "fails=N" answers the Nth
request and all after it with 500, "ends=N" ends the process at the Nth, "buffers" sends all
tokens in one event, "stays" takes no notice of SIGTERM, "mute" reports no usage.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Peer:
    """What the handlers share."""

    def __init__(self, home: Path, modes: list[str]) -> None:
        self.modes = dict((mode + "=").split("=", 2)[:2] for mode in modes)
        self.kept = home / "prompts.json"
        self.seen: list[list[str]] = []
        self.count = 0
        self.lock = threading.Lock()
        if "keeps" in self.modes and self.kept.exists():
            self.seen = json.loads(self.kept.read_text())

    def cached(self, words: list[str]) -> int:
        """How many words of a prompt any earlier one began with; all but the last may be."""
        with self.lock:
            self.count += 1
            shared = max((_common(words, old) for old in self.seen), default=0)
            self.seen.append(words)
            if "keeps" in self.modes:
                self.kept.write_text(json.dumps(self.seen))
            return min(shared, len(words) - 1)

    def number(self, mode: str) -> float:
        return float(self.modes.get(mode) or 0)


def _common(a: list[str], b: list[str]) -> int:
    number = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        number += 1
    return number


class Handler(BaseHTTPRequestHandler):
    """Answers /health and /v1/chat/completions."""

    peer: Peer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing of each request."""

    def do_GET(self) -> None:
        self.answer(503 if "never" in self.peer.modes else 200, {"status": "ok"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts = [json.dumps(tool) for tool in body.get("tools", [])]
        parts += [f"{m['role']} {m['content']}" for m in body["messages"]]
        words = " ".join(parts).split()
        cached = self.peer.cached(words)
        peer = self.peer
        if peer.number("ends") and peer.count >= peer.number("ends"):
            os._exit(3)
        if peer.number("fails") and peer.count >= peer.number("fails"):
            self.answer(500, {"error": {"message": "the fake peer fails"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        tokens = [f"w{number} " for number in range(body["max_tokens"])]
        time.sleep(len(words[cached:]) * 1e-5)
        self.event({"role": "assistant", "content": ""})
        for text in ["".join(tokens)] if "buffers" in peer.modes else tokens:
            time.sleep(peer.number("slow"))
            self.event({"content": text})
        usage: dict[str, Any] = {
            "prompt_tokens": len(words),
            "completion_tokens": len(tokens),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        self.send(last if "mute" in peer.modes else {**last, "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, delta: dict[str, str]) -> None:
        self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def send(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def answer(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    port, home, *modes = sys.argv[1:]
    if "dies" in modes:
        sys.exit("the fake peer has no weights")
    Handler.peer = Peer(Path(home), modes)
    if "stays" in modes:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
