"""A first token that takes a minute and a half: no agent gives up, none asks again.

The server answers one request at a time, and a long one of somebody else's is running.
"""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from omlx.storage.history import History
from tests import clients
from tests.acceptance.conftest import Figure
from tests.acceptance.launch.course import MODEL
from tests.agents import AGENTS, Desk, Ran
from tests.fakes.agent import agent_model
from tests.live import Live, wait_until

WAIT_S = 90.0
_START_S = 300.0  # until an agent has sent its request
_GROUPS = [
    ["claude-code", "codex", "opencode", "copilot"],
    ["pi", "vibe", "hermes", "qwen-code", "aider"],
    ["openclaw", "cline", "kilo", "continue"],
]


class _Blocker:
    """A request that generates until it is closed."""

    def __init__(self, live: Live) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=600)
        body = {
            "model": MODEL, "prompt": "one two three", "max_tokens": 10**6, "min_tokens": 10**6,
            "stream": True,
        }  # fmt: skip
        headers = {"Content-Type": "application/json", "X-Omlx-Class": "interactive"}
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200
        assert self._response.readline()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError, http.client.HTTPException):  # closed while it is read
            while self._response.fp is not None and self._response.read1(65536):
                pass

    def close(self) -> None:
        sock = self._connection.sock
        if sock is not None:
            sock.shutdown(2)
        self._thread.join(10)
        self._connection.close()


def test_every_agent_is_in_a_group() -> None:
    assert sorted(sum(_GROUPS, [])) == sorted(AGENTS)


@pytest.mark.parametrize("names", _GROUPS, ids="+".join)
def test_nobody_gives_up_or_asks_again(
    names: list[str], tmp_path: Path, demo: Path, figure: Figure
) -> None:
    for name in names:
        clients.install(name)
    agent_model(demo, tmp_path / "models" / MODEL)
    home = tmp_path / "omlx"
    args = ("--model-dir", str(tmp_path / "models"), "--journal-text")
    with Live(*args, "--max-concurrent-requests", "1", home=home) as live:
        blocker = _Blocker(live)
        with ThreadPoolExecutor(len(names)) as pool:
            desks = [Desk(AGENTS[name], tmp_path / name, home, model=MODEL) for name in names]
            texts = [f"Greet the {name} team" for name in names]
            running = [pool.submit(desk.ask, text) for desk, text in zip(desks, texts, strict=True)]
            wait_until(lambda: _num_waiting(live) >= len(names), timeout_s=_START_S)
            time.sleep(WAIT_S)
            blocker.close()
            ran = [one.result() for one in running]
        rows = History(home / "state" / "journal.sqlite3").of_model(MODEL, 200)
    shown: list[str] = []
    for name, text, one in zip(names, texts, ran, strict=True):
        own = [row for row in rows if text in (row.text or "") and row.outcome == "stop"]
        assert own, _told(name, one)
        assert one.code == 0 and one.says("tree done"), _told(name, one)
        size = max(row.prompt_tokens for row in own)
        main = [row for row in own if row.prompt_tokens > size // 2]
        assert len({row.text for row in main}) == len(main), f"{name} asked again"
        ttft_s = max(row.parts.ttft_s for row in main if row.parts is not None)
        assert ttft_s >= WAIT_S
        shown.append(f"{name} {ttft_s:.0f} s")
    aborted = [row for row in rows if row.outcome != "stop" and "team" in (row.text or "")]
    assert not aborted, "somebody closed its connection"
    figure(f"first token after: {', '.join(shown)}; no request was sent twice or given up")


def _num_waiting(live: Live) -> int:
    requests = live.status()["requests"]
    return int(requests["active"]) - 1


def _told(name: str, ran: Ran) -> str:
    return f"{name}: {ran.code}\n{ran.stdout[-1500:]}\n{ran.stderr[-1500:]}"
