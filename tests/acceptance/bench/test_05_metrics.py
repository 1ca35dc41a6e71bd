"""Point 5: metrics that Prometheus takes, with as many series for a thousand names as for few."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omlx.settings.keys import new_key, write_keys
from omlx.settings.server import Server
from tests.acceptance.conftest import Figure
from tests.fakes.engine import ScriptedEngine, say
from tests.fakes.server import Plan, entry, running
from tests.live import REPOSITORY, Live, chat

NUM = 1000
# As a header can have them; Python's clients refuse line ends themselves.
HOSTILE = ("other", 'a"b', "back\\slash", "{}", "é", "x" * 300, "../..", "<script>", "%0a", "0")


def promtool(*args: str, given: str = "") -> str | None:
    """What promtool objects to, empty for nothing; None where it is not installed."""
    tool = shutil.which("promtool")
    if tool is None:
        return None
    done = subprocess.run(
        [tool, *args], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 and not done.stderr.strip() else done.stdout + done.stderr


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by its name and labels, each there once, as Prometheus' own parser reads it."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


@pytest.mark.timeout(600)
def test_series_for_a_thousand_models_keys_and_clients(tmp_path: Path, figure: Figure) -> None:
    """Each of a thousand requests has a model, a key and a client of its own."""
    now, path = datetime.now(UTC), tmp_path / "keys.toml"
    made = [new_key(f"key{i}", now=now) for i in range(NUM)]
    write_keys(path, [key for key, _ in made])
    names = [f"model{i}" for i in range(NUM)]
    plan = Plan(
        server=Server(port=0, metrics_key="scrape"),
        entries=[entry(name) for name in names],
        engines=[ScriptedEngine(name, say("hello", memory=3)) for name in names],
        keys_path=path,
    )
    with running(plan) as server:

        def ask(i: int) -> int:
            body = {"model": names[i], "messages": [{"role": "user", "content": "hi"}]}
            agent = f"{HOSTILE[i % len(HOSTILE)]}{i}" if i % 3 else f"client{i}/1.0"
            headers = {"x-api-key": made[i][1], "user-agent": agent.encode("latin-1")}
            return server.http.post("/v1/chat/completions", json=body, headers=headers).status_code

        def scrape() -> str:
            bearer = {"authorization": "Bearer scrape"}
            return server.stranger.get("/metrics", headers=bearer).raise_for_status().text

        with ThreadPoolExecutor(4) as pool:
            assert {*pool.map(ask, range(200))} == {200}
            few = scrape()
            assert {*pool.map(ask, range(NUM))} == {200}
        many = scrape()
        assert server.stranger.get("/metrics").status_code == 401
    before, after = series(few), series(many)
    assert before.keys() == after.keys()
    total = sum(v for (name, _), v in after.items() if name == "omlx_requests_total")
    assert total == NUM + 200
    objections = promtool("check", "metrics", given=many)
    assert not objections
    by = {label: len({dict(ls)[label] for _, ls in after if label in dict(ls)})
          for label in ("model", "client", "key")}  # fmt: skip
    assert by["model"] == 33 and by["key"] == 65 and by["client"] <= 33
    figure(
        f"{len(after):,} series after 200 and {NUM:,} models, keys and clients; labels: {by}; "
        f"promtool: {'not installed' if objections is None else 'clean'}"
    )


def test_metrics_of_a_server_at_work(tiny_model: Path, tmp_path: Path, figure: Figure) -> None:
    """The real server, engine and store: what Prometheus would get, with the key of its own."""
    args = ("--model-dir", str(tiny_model.parent), "--metrics-key", "scrape", "--api-key", "secret")
    with Live(*args, home=tmp_path) as live:
        url = f"http://127.0.0.1:{live.port}"
        with closing(httpx.Client(base_url=url, timeout=60)) as http:
            key = {"x-api-key": "secret"}
            for _ in range(2):
                answer = http.post("/v1/chat/completions", json=chat("tiny", "hi"), headers=key)
                assert answer.status_code == 200, answer.text
            scrape = {"authorization": "Bearer scrape"}
            statuses = [
                http.get("/metrics").status_code,
                http.get("/metrics", headers={"x-api-key": "wrong"}).status_code,
                http.get("/metrics", headers=key).status_code,
                http.get("/v1/models", headers=scrape).status_code,
                http.get("/admin/api/status", headers=scrape).status_code,
            ]
            assert statuses == [401, 401, 200, 401, 401]
            text = http.get("/metrics", headers=scrape).raise_for_status().text
    found = series(text)
    names = {name for name, _ in found}
    for name in ("omlx_ttft_seconds_bucket", "omlx_itl_seconds_count", "omlx_queue_seconds_sum",
                 "omlx_ttft_part_seconds_bucket", "omlx_tokens_total", "omlx_cache_blocks",
                 "omlx_cache_bytes", "omlx_cache_hit_rate", "omlx_cache_events_total",
                 "omlx_engine_restarts_total", "omlx_engine_memory_bytes"):  # fmt: skip
        assert name in names
    assert not promtool("check", "metrics", given=text)
    rules = promtool("check", "rules", str(REPOSITORY / "docs" / "monitoring" / "alerts.yml"))
    assert not rules
    figure(
        f"a real server: {len(found)} series, parsed; promtool on metrics and alert rules: "
        f"{'not installed' if rules is None else 'clean'}"
    )
