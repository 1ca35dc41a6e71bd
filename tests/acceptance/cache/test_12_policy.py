"""Where a real server stores blocks: as the request, its class and the settings say; with an empty
memory tier, too, where a repeat is an exact hit and an end loses nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.live import Live, chat, wait_until

TEXT = "The parser reads one token ahead, and no more than that. " * 20


def ask(live: Live, text: str, **headers: str) -> dict[str, Any]:
    """One answer's usage."""
    status, answer = live.post("/v1/chat/completions", chat("tiny", text), headers=headers)
    assert status == 200, answer
    return answer["usage"]


def cached(usage: dict[str, Any]) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


def files(home: Path) -> int:
    return len(list((home / "cache").rglob("*.safetensors")))


def test_headers_and_settings_decide(tiny_model: Path, tmp_path: Path, figure: Figure) -> None:
    args = ("--model-dir", str(tiny_model.parent), "--cache-write-delay", "50ms")
    with Live(*args, home=tmp_path) as live:
        for headers in ({"X-Omlx-Cache-Store": "memory"}, {"X-Omlx-Class": "batch"}):
            first = ask(live, TEXT + str(headers), **headers)
            again = ask(live, TEXT + str(headers), **headers)
            assert cached(again) == first["prompt_tokens"] - 1
        ask(live, TEXT * 2, **{"X-Omlx-Cache-Store": "off"})
        assert cached(ask(live, TEXT * 2, **{"X-Omlx-Cache-Store": "off"})) < first["prompt_tokens"]
        bad = live.post(
            "/v1/messages", {**chat("tiny", "hi")}, headers={"X-Omlx-Cache-Store": "disk"}
        )
        assert bad[0] == 400 and "X-Omlx-Cache-Store" in bad[1]["error"]["message"]
        assert files(tmp_path) == 0
        wanted = ask(live, TEXT + "{'X-Omlx-Class': 'batch'}")
        assert cached(wanted) == wanted["prompt_tokens"] - 1
        wait_until(lambda: files(tmp_path) > 0)
        assert live.model_status()["writes"]["today_bytes"] > 0
    figure(f"{files(tmp_path)} files, all of the one request that was to be on disk")
    with Live(*args, "--cache-store", "off", home=tmp_path) as live:
        hit = ask(live, TEXT + "{'X-Omlx-Class': 'batch'}")
        assert cached(hit) == hit["prompt_tokens"] - 1, "look-ups go on"


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_without_a_memory_tier(tiny_model: Path, tmp_path: Path, figure: Figure, end: str) -> None:
    args = ("--model-dir", str(tiny_model.parent), "--cache-memory-size", "0")
    with Live(*args, home=tmp_path) as live:
        first = ask(live, TEXT)
        again = ask(live, TEXT)
        assert cached(again) == first["prompt_tokens"] - 1
        assert live.model_status()["memory"]["blocks"] == 0
        if end == "SIGTERM":
            assert live.stop() == 0
        else:
            live.kill()
    with Live(*args, home=tmp_path) as live:
        hit = ask(live, TEXT)
        lost = hit["prompt_tokens"] - 1 - cached(hit)
        assert lost == 0 if end == "SIGTERM" else lost >= 0
        figure(f"memory tier 0, {end}: {lost} of {hit['prompt_tokens']} tokens lost")
