"""Point 8: `cache inspect` names the swapped tool, the changed date, the inserted line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.live import Live, run_omlx, wait_until
from tests.unit.models import templates

DATA = Path(__file__).parents[2] / "data" / "explain"
PAIRS = [
    ("tool-swapped", 'tool 1 "Bash"', "order changed"),
    ("date-changed", "system block 0", "value changed"),
    ("line-inserted", "system block 0", "inserted"),
]


def body(pair: str, name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{pair}-{name}.json").read_text())


def inspect(home: Path, *args: str) -> dict[str, Any]:
    done = run_omlx("cache", "inspect", *args, "--json", home=home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("pair", "place", "change"), PAIRS)
def test_two_bodies(
    tiny_model: Path, tmp_path: Path, figure: Figure, pair: str, place: str, change: str
) -> None:
    """Without a server or a cache; the template is one that prints tools."""
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    for file in tiny_model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(templates.QWEN)
    files = ("--prompt", str(DATA / f"{pair}-b.json"), "--against", str(DATA / f"{pair}-a.json"))
    found = inspect(tmp_path, *files)
    divergence = found["divergence"]
    assert (divergence["place"], divergence["change"]) == (place, change)
    plain = run_omlx("cache", "inspect", *files, home=tmp_path).stdout
    assert f"in {place}: {change}" in plain
    figure(
        f"{pair}: token {divergence['token']} of {found['tokens']}, {divergence['place']}, "
        f"{divergence['change']}"
    )


@pytest.mark.parametrize(("pair", "place", "change"), PAIRS[1:])
def test_the_last_request_of_a_server(
    tiny_model: Path, tmp_path: Path, figure: Figure, pair: str, place: str, change: str
) -> None:
    """The same from the journal and the blocks on disk, beside the server and after its end."""
    args = ("--model-dir", str(tiny_model.parent), "--cache-write-delay", "100ms")
    with Live(*args, home=tmp_path) as live:
        for name in "ab":
            status, answer = live.post("/v1/chat/completions", body(pair, name))
            assert status == 200, answer
            request_id = answer["id"]
            wait_until(lambda: is_written(live))
        recent = live.status()["recent"]
        assert [one["miss"] for one in recent] == ["diverged", "cold"]
        assert recent[0]["part"] == place
        prompt = inspect(tmp_path, "--prompt", str(DATA / f"{pair}-b.json"),
                         "--model-dir", str(tiny_model.parent))  # fmt: skip
        assert prompt["uncached"] == 1 and prompt["tokens"] == recent[0]["prompt_tokens"]
        found = inspect(tmp_path, "--request", "last", "--model-dir", str(tiny_model.parent))
        check(found, place, change)
        parts = found["request"]["ttft_parts_s"]
        metrics = samples(live)
    again = inspect(tmp_path, "--request", request_id, "--model-dir", str(tiny_model.parent))
    assert again == found
    assert sum(parts.values()) == pytest.approx(found["request"]["ttft_s"])
    whole = metrics["omlx_ttft_seconds_sum"]
    assert sum(v for k, v in metrics.items() if "ttft_part_seconds_sum" in k) == (
        pytest.approx(whole)
    )
    journal = b"".join(file.read_bytes() for file in (tmp_path / "state").glob("journal*"))
    assert b"library" not in journal, "no prompt text"
    named = ", ".join(f"{name} {seconds * 1000:.1f}" for name, seconds in parts.items())
    figure(
        f"{pair}: token {found['divergence']['token']} of {found['tokens']}, "
        f"{found['cached']} cached, {place}, {change}; ttft in ms: {named}"
    )


def check(found: dict[str, Any], place: str, change: str) -> None:
    """The row is that of the second body, and names what it changed."""
    divergence = found["divergence"]
    assert (divergence["place"], divergence["change"]) == (place, change), found
    assert found["request"]["miss"] == "diverged"
    assert divergence["token"] == found["cached"] > 0
    assert "library" in divergence["before"] + divergence["there"]
    assert divergence["here"] != divergence["there"]
    assert sum(row["tokens"] for row in found["parts"]) == found["tokens"]


def is_written(live: Live) -> bool:
    """Whether all that is kept is on disk too, and the row of the last request in the journal."""
    model = live.model_status()
    blocks = model["disk"]["blocks"]
    return blocks > 0 and blocks >= model["memory"]["blocks"] and bool(live.status()["recent"])


def samples(live: Live) -> dict[str, float]:
    """The sums in /metrics, without the model's name in those of a single label."""
    found: dict[str, float] = {}
    connection = live.connection()
    connection.request("GET", "/metrics")
    for line in connection.getresponse().read().decode().splitlines():
        if "_sum{" in line:
            name, _, value = line.rpartition(" ")
            key = name.replace('{model="tiny"}', "")
            found[key] = float(value)
    connection.close()
    return found
