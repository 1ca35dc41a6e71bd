"""Point 1: the vendors' clients, over a scripted engine; every answer they get is strict."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omlx.settings.schema import Server
from tests import clients, sdktypes
from tests.acceptance.conftest import Figure
from tests.clients import Line
from tests.fakes import talk
from tests.fakes.engine import ScriptedEngine
from tests.fakes.proxy import Exchange, recording
from tests.fakes.server import Plan, Running, running
from tests.fakes.text import FakeText

MODEL = "local-model"
RUNS: dict[str, Callable[[str, Path], list[Line]]] = {
    "py": clients.run_python,
    "js": clients.run_javascript,
}


@dataclass(frozen=True, slots=True)
class Run:
    """What the clients of a kind said, and what they got."""

    kind: str
    versions: str
    lines: list[Line]
    exchanges: list[Exchange]


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    plan = Plan(
        server=Server(port=0, api_key="local"),
        text=FakeText(context_window=100_000, template=talk.TEMPLATE),
        engines=[ScriptedEngine(script=talk.talk)],
        aliases={MODEL: "fake"},
    )
    with running(plan) as server:
        server.http.headers["authorization"] = "Bearer local"
        yield server


@pytest.fixture(scope="module", params=sorted(RUNS))
def run(
    request: pytest.FixtureRequest, served: Running, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    kind = request.param
    versions = clients.install(kind)
    with recording(served.port) as kept:
        lines = RUNS[kind](kept.url, tmp_path_factory.mktemp(f"home-{kind}"))
    return Run(kind, versions, lines, kept.exchanges)


def is_as_wanted(line: Line) -> bool:
    """Embeddings are a 404 in this version; all the rest works."""
    if "embedding" in line.name:
        return not line.is_ok and "404" in line.text
    return line.is_ok


def test_clients(run: Run, figure: Figure) -> None:
    for line in run.lines:
        print(line)
    wrong = [str(line) for line in run.lines if not is_as_wanted(line)]
    num_ok = sum(line.is_ok for line in run.lines)
    num_not_found = len(run.lines) - num_ok - sum("embedding" not in w for w in wrong)
    figure(f"{run.versions}: {num_ok} of {len(run.lines)} lines OK, {num_not_found} embeddings 404")
    assert num_ok and not wrong, "\n".join(wrong)


def test_answers_are_strict(run: Run, figure: Figure) -> None:
    found = [
        problem
        for exchange in run.exchanges
        if "embeddings" not in exchange.path
        for problem in sdktypes.problems(exchange)
    ]
    paths = Counter(exchange.path.partition("?")[0] for exchange in run.exchanges)
    figure(f"{run.kind}: {len(run.exchanges)} answers checked, {len(paths)} endpoints")
    assert run.exchanges and not found, "\n".join(dict.fromkeys(found))


PROMPTS = {
    sdktypes.CHAT: "messages",
    sdktypes.COMPLETIONS: "prompt",
    sdktypes.RESPONSES: "input",
    sdktypes.MESSAGES: "messages",
}
# What the clients above don't ask for, by path.
RARE: list[tuple[str, dict[str, Any]]] = [
    (sdktypes.CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2}),
    (sdktypes.CHAT, {"max_tokens": 3, "stream_options": {"include_usage": True}}),
    (sdktypes.CHAT, {"stop": ["there"]}),
    (sdktypes.CHAT, {"response_format": {"type": "json_object"}}),
    (sdktypes.CHAT, {"temperature": -1}),
    (sdktypes.COMPLETIONS, {"n": 2, "echo": True}),
    (sdktypes.COMPLETIONS, {"logprobs": 2}),
    (sdktypes.COMPLETIONS, {"max_tokens": 3, "stream_options": {"include_usage": True}}),
    (sdktypes.COMPLETIONS, {"stop": "there"}),
    (sdktypes.COMPLETIONS, {"temperature": -1}),
    (sdktypes.RESPONSES, {"max_output_tokens": 16, "instructions": "Be brief."}),
    (sdktypes.RESPONSES, {"store": False, "metadata": {"a": "b"}}),
    (sdktypes.RESPONSES, {"temperature": -1}),
    (sdktypes.MESSAGES, {"max_tokens": 3}),
    (sdktypes.MESSAGES, {"stop_sequences": ["there"]}),
    (sdktypes.MESSAGES, {"temperature": -1}),
]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "more"), RARE, ids=lambda value: json.dumps(value)[:60])
def test_rare_requests_are_strict(
    served: Running, path: str, more: dict[str, Any], is_stream: bool
) -> None:
    exchange = ask(served, path, "hi", {"stream": is_stream, **more})
    assert exchange.status == (400 if more.get("temperature") == -1 else 200), exchange.body
    assert sdktypes.problems(exchange) == []


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
def test_failures_are_strict(served: Running, path: str, is_stream: bool) -> None:
    exchange = ask(served, path, talk.FAILS, {"stream": is_stream})
    assert exchange.status == (200 if is_stream else 500), exchange.body
    assert b"the engine died" in exchange.body
    assert sdktypes.problems(exchange) == []


def ask(served: Running, path: str, prompt: str, more: dict[str, Any]) -> Exchange:
    """An exchange with a prompt under the name that it has at an endpoint."""
    turns = [{"role": "user", "content": prompt}]
    name = PROMPTS[path]
    body = {"model": MODEL, "max_tokens": 50, name: turns if name == "messages" else prompt}
    response = served.http.post(path, json={**body, **more})
    return Exchange(
        "POST", path, {}, response.request.content, response.status_code,
        response.headers["content-type"], response.content,
    )  # fmt: skip
