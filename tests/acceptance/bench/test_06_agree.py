"""Point 6: after 200 mixed requests and a restart, all figures agree to the token.

Streams and single answers in four dialects, given up in every phase, wrong in several ways, served
from memory, from disk and from nothing, by two clients and two API keys. Then what clients were
told, the rows of the journal, `/metrics`, `cache inspect` and `omlx usage` are compared.
"""

import json
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.conftest import Figure
from tests.live import Live, run_omlx, wait_until

NUM = 200
CLIENTS = ("claude-cli/2.1", "codex_exec/0.99")
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
}
KINDS = ("memory", "disk", "computed", "generated")
# What is told of one request, or counted of many.
Tokens = Counter[str]


@dataclass(frozen=True)
class Job:
    """One request of the course; `leave_after` is how many lines of a stream are read."""

    idx: int
    dialect: str
    text: str
    is_stream: bool
    leave_after: int | None = None
    num_choices: int = 1
    wrong: str = ""
    key: str = ""

    @property
    def client(self) -> str:
        return CLIENTS[self.idx % 2]

    def body(self) -> dict[str, Any]:
        size = 400 if self.leave_after is not None else 6
        common = {"model": "tiny", "temperature": 0, "stream": self.is_stream}
        said = [{"role": "user", "content": self.text}]
        match self.dialect:
            case "responses":
                body = {**common, "input": self.text, "max_output_tokens": max(size, 16)}
            case "completions":
                body = {**common, "prompt": self.text, "max_tokens": size}
            case "messages":
                body = {**common, "messages": said, "max_tokens": size}
            case _:
                body = {**common, "messages": said, "max_tokens": size, "n": self.num_choices}
        if self.is_stream and self.dialect in ("chat", "completions"):
            body["stream_options"] = {"include_usage": True}
        match self.wrong:
            case "model":
                body["model"] = "none-such"
            case "field":
                body["temperature"] = "warm"
            case "window":
                body["prompt" if self.dialect == "completions" else "messages"] = (
                    "word " * 9000 if self.dialect == "completions"
                    else [{"role": "user", "content": "word " * 9000}]
                )  # fmt: skip
            case _:
                pass
        return body


def course(rng: random.Random, start: int, keys: Mapping[str, str]) -> Iterator[Job]:
    """Half of the requests: few long heads that come back, in another order each time."""
    heads = [
        f"Conversation {i}. " + " ".join(f"fact {i * j}" for j in range(120)) for i in range(6)
    ]
    for idx in range(start, start + NUM // 2):
        dialect = rng.choice([*PATHS])
        text = f"{rng.choice(heads)} Question {rng.randrange(8)}?"
        key = rng.choice([*keys])
        draw = rng.random()
        if draw < 0.06:
            wrong = rng.choice(["model", "field", "window"])
            dialect = dialect if dialect in ("chat", "completions") else "chat"
            yield Job(idx, dialect, text, is_stream=False, wrong=wrong, key=key)
        elif draw < 0.2:  # at once, while it is computed, and amid the answer
            cold = f"Cold {idx}. {text}"
            yield Job(
                idx, dialect, cold, is_stream=True, leave_after=rng.choice([-1, 0, 8]), key=key
            )
        elif draw < 0.24:
            yield Job(idx, "chat", text, is_stream=bool(idx % 2), num_choices=2, key=key)
        else:
            yield Job(idx, dialect, text, is_stream=rng.random() < 0.5, key=key)


@dataclass(frozen=True)
class Told:
    """What a client was told: the request's id, and its usage where the answer was whole."""

    job: Job
    status: int
    request_id: str = ""
    prompt: int = 0
    cached: int = 0
    generated: int = 0


def ask(live: Live, job: Job, key: str) -> Told:
    headers = {"content-type": "application/json", "user-agent": job.client, "x-api-key": key}
    with closing(live.connection()) as connection:
        connection.request("POST", PATHS[job.dialect], json.dumps(job.body()), headers)
        if job.leave_after == -1:
            return Told(job, 0)
        response = connection.getresponse()
        name = "request-id" if job.dialect == "messages" else "x-request-id"
        request_id = (response.getheader(name) or "").removeprefix("req_")
        if response.status != 200 or job.leave_after is not None:
            for _ in range(job.leave_after or 0):
                response.readline()
            return Told(job, response.status, request_id)
        usage = _usage(response.read().decode(), is_stream=job.is_stream)
    return Told(job, 200, request_id, *usage)


def _usage(text: str, *, is_stream: bool) -> tuple[int, int, int]:
    """Prompt, cached and generated tokens, as the dialect has them."""
    found: dict[str, Any] = {}
    lines = text.splitlines() if is_stream else [f"data: {text}"]
    for line in lines:
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            for holder in (event, event.get("message") or {}, event.get("response") or {}):
                found.update(holder.get("usage") or {})
    if "cache_read_input_tokens" in found:
        cached = found["cache_read_input_tokens"]
        return found["input_tokens"] + cached, cached, found["output_tokens"]
    if "input_tokens" in found:
        details = found["input_tokens_details"]
        return found["input_tokens"], details["cached_tokens"], found["output_tokens"]
    details = found["prompt_tokens_details"]
    return found["prompt_tokens"], details["cached_tokens"], found["completion_tokens"]


def scrape(live: Live, key: str) -> list[Any]:
    with closing(live.connection()) as connection:
        connection.request("GET", "/metrics", headers={"x-api-key": key})
        text = connection.getresponse().read().decode()
    return [one for family in text_string_to_metric_families(text) for one in family.samples]


def counted(samples: list[Any], name: str, label: str) -> dict[str, Tokens]:
    """The tokens of a metric by a label and by kind."""
    found: dict[str, Tokens] = {}
    for one in samples:
        if one.name == name and one.value:
            kind = one.labels["kind"].removeprefix("cached_")
            found.setdefault(one.labels[label], Tokens())[kind] += int(one.value)
    return found


def total(samples: list[Any], name: str, **labels: str) -> float:
    return sum(
        one.value for one in samples if one.name == name and labels.items() <= one.labels.items()
    )


def inspected(home: Path, key: str) -> Tokens:
    """What `cache inspect` says of hits."""
    done = run_omlx("cache", "inspect", "--json", "--api-key", key, home=home)
    assert done.returncode == 0, done.stderr
    (model,) = [one for one in json.loads(done.stdout)["models"] if one["model"] == "tiny"]
    hits = model["hits"]
    return Tokens(
        prompt=hits["prompt_tokens"], memory=hits["memory_tokens"], disk=hits["disk_tokens"]
    )


def used(home: Path, name: str) -> dict[str, Tokens]:
    """What `omlx usage` says, by the name of a table."""
    done = run_omlx("usage", "--days", "2", "--json", home=home)
    assert done.returncode == 0, done.stderr
    singular = name.removesuffix("s")
    return {
        one[singular]: Tokens(
            memory=one["cached_memory"],
            disk=one["cached_disk"],
            computed=one["computed"],
            generated=one["generated"],
        )  # fmt: skip
        for one in json.loads(done.stdout)[name]
    }


def rows(home: Path) -> list[dict[str, Any]]:
    """The journal."""
    with closing(sqlite3.connect(home / "state" / "journal.sqlite3")) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM requests")]


def summed(found: list[dict[str, Any]], column: str) -> dict[str, Tokens]:
    """The rows' tokens by what a column has."""
    sums: dict[str, Tokens] = {}
    for row in found:
        cached = row["cached_memory"] + row["cached_disk"]
        sums.setdefault(row[column], Tokens()).update(
            memory=row["cached_memory"], disk=row["cached_disk"],
            computed=row["computed"] - cached, generated=row["generated"],
        )  # fmt: skip
    return sums


def plus(one: dict[str, Tokens], other: dict[str, Tokens]) -> dict[str, Tokens]:
    return {name: one.get(name, Tokens()) + other.get(name, Tokens()) for name in {*one, *other}}


def run_half(live: Live, jobs: list[Job], keys: Mapping[str, str]) -> list[Told]:
    """Four at a time; then nothing runs any more."""
    with ThreadPoolExecutor(4) as pool:
        told = [*pool.map(lambda job: ask(live, job, keys[job.key]), jobs)]
    any_key = next(iter(keys.values()))
    wait_until(lambda: total(scrape(live, any_key), "omlx_active_requests") == 0, timeout_s=60)
    return told


@dataclass(frozen=True)
class Half:
    """What one server said at its end."""

    told: list[Told]
    samples: list[Any]
    hits: Tokens


@pytest.mark.timeout(900)
def test_figures_agree(tiny_model: Path, tmp_path: Path, figure: Figure) -> None:
    keys = dict[str, str]()
    for name in ("laptop", "desk"):
        scope = ("--scope", "admin") if name == "desk" else ()
        done = run_omlx("key", "create", name, *scope, home=tmp_path)
        assert done.returncode == 0, done.stderr
        keys[name] = done.stdout.strip()
    rng = random.Random(7)
    args = ("--model-dir", str(tiny_model.parent), "--cache-write-delay", "100ms",
            "--cache-memory-size", "3MB", "--cache-load", "always")  # fmt: skip
    halves = list[Half]()
    for start in (0, NUM // 2):
        live = Live(*args, home=tmp_path)
        with live:
            told = run_half(live, [*course(rng, start, keys)], keys)
            samples = scrape(live, keys["desk"])
            halves.append(Half(told, samples, inspected(tmp_path, keys["desk"])))
            before = len(rows(tmp_path))
            wait_until(lambda n=before: len(rows(tmp_path)) == n, timeout_s=5)
            if start:
                wait_until(lambda: num_rows(tmp_path) >= num_closed(halves))
                live.kill()  # what is kept must hold all of it
    found = rows(tmp_path)
    check_told([one for half in halves for one in half.told], found)
    check_counted(halves, found, tmp_path)
    report(halves, found, figure)


def num_rows(home: Path) -> int:
    return len(rows(home))


def num_closed(halves: list[Half]) -> int:
    return int(sum(total(half.samples, "omlx_requests_total") for half in halves))


def check_told(told: list[Told], found: list[dict[str, Any]]) -> None:
    """Each answer's usage is that of its rows, one for each of its choices."""
    by_id = dict[str, list[dict[str, Any]]]()
    for row in found:
        by_id.setdefault(row["request_id"].partition(".")[0], []).append(row)
    wrong = [one for one in told if one.job.wrong]
    assert wrong and all(one.status in (400, 404) for one in wrong)
    assert not any(one.request_id in by_id for one in wrong), "what was refused has no row"
    whole = [one for one in told if one.status == 200 and one.job.leave_after is None]
    assert len(whole) > NUM * 0.7
    for one in whole:
        mine = sorted(by_id[one.request_id], key=lambda row: row["request_id"])
        assert len(mine) == one.job.num_choices
        first = mine[0]
        assert one.prompt == first["prompt_tokens"], one
        assert one.cached == first["cached_memory"] + first["cached_disk"], one
        assert one.generated == sum(row["generated"] for row in mine), one
        assert {row["client"] for row in mine} == {one.job.client.partition("/")[0]}
        assert {row["key_name"] for row in mine} == {one.job.key}


def check_counted(halves: list[Half], found: list[dict[str, Any]], home: Path) -> None:
    """The sums of the rows are those of everything else."""
    for column, metric, label, table in (
        ("model", "omlx_tokens_total", "model", "models"),
        ("client", "omlx_client_tokens_total", "client", "clients"),
        ("key_name", "omlx_key_tokens_total", "key", "keys"),
    ):
        by_rows = summed(found, column)
        one, other = (counted(half.samples, metric, label) for half in halves)
        assert plus(one, other) == by_rows, metric
        assert used(home, table) == by_rows, table
    admitted = [row for row in found if row["admitted"]]
    prompt = sum(row["prompt_tokens"] for row in admitted)
    memory, disk = (sum(row[f"cached_{tier}"] for row in found) for tier in ("memory", "disk"))
    hits = sum((half.hits for half in halves), Tokens())
    assert hits == Tokens(prompt=prompt, memory=memory, disk=disk)

    def both(name: str, **labels: str) -> float:
        return sum(total(half.samples, name, **labels) for half in halves)

    assert both("omlx_prompt_tokens_total") == prompt
    assert both("omlx_cached_prompt_tokens_total", tier="memory") == memory
    assert both("omlx_cached_prompt_tokens_total", tier="disk") == disk
    assert both("omlx_generated_tokens_total") == sum(row["generated"] for row in found)
    outcomes = Counter(row["outcome"] for row in found)
    assert both("omlx_requests_total") == len(found)
    for outcome, num in outcomes.items():
        assert both("omlx_requests_total", outcome=outcome) == num
    assert both("omlx_turn_uncached_tokens_count") == len(admitted)
    assert both("omlx_turn_uncached_tokens_sum") == prompt - memory - disk
    assert both("omlx_journal_lost_rows_total") == 0
    started = [row for row in found if row["ttft_s"] is not None]
    assert both("omlx_ttft_seconds_count") == len(started)
    whole_s = sum(row["ttft_s"] for row in started)
    assert both("omlx_ttft_part_seconds_sum") == pytest.approx(whole_s, rel=1e-6)


def report(halves: list[Half], found: list[dict[str, Any]], figure: Figure) -> None:
    """What the course had in it: it must have had everything."""
    outcomes = Counter(row["outcome"] for row in found)
    tokens = sum(summed(found, "model").values(), Tokens())
    given_up = [row for row in found if row["outcome"] == "aborted"]
    partly = [row for row in given_up if row["admitted"] and row["ttft_s"] is None]
    num_told = sum(
        one.status == 200 and one.job.leave_after is None for h in halves for one in h.told
    )
    assert all(tokens[kind] > 0 for kind in KINDS), tokens
    assert given_up and len(halves[1].told) == NUM // 2
    figure(
        f"{sum(len(half.told) for half in halves)} requests, {len(found)} rows, {dict(outcomes)}; "
        f"given up: {len(given_up)}, {len(partly)} of them while computed; "
        f"{num_told} answers told the usage of their rows"
    )
    figure(
        "journal = /metrics = cache inspect = usage, over a restart and a kill -9: "
        + ", ".join(f"{kind} {tokens[kind]:,}" for kind in KINDS)
    )
