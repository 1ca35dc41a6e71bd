"""Point 5: what is the same for the model hits on a real server, whatever clients vary.

The cases A1, A13, A14, A15, P13 and P19.
"""

import json
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.engine.request import Admitted
from omlx.models.text import TextModel
from omlx.server.context import Timing
from tests import models
from tests.acceptance.conftest import Figure
from tests.acceptance.serve.test_03_restart import words
from tests.fakes.chains import KINDS, step
from tests.fakes.engine import say
from tests.fakes.server import Plan, running
from tests.fakes.shuffle import shuffled
from tests.fakes.templated import template_names
from tests.live import Live, run_omlx

_TEMPLATES = Path(__file__).resolve().parents[2] / "data" / "templates"
LINE = "x-anthropic-billing-header: cc_version=2.1.332.%03x; cc_entrypoint=cli; cch=%05d;"
LEFT = "<total_tokens>%d tokens left</total_tokens>"
WINDOW = 16384
Body = dict[str, Any]


def tools(num: int, seed: int) -> list[Body]:
    return [
        {
            "name": f"tool_{seed}_{idx}",
            "description": words(60, seed + idx),
            "input_schema": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": words(8, idx)},
                    "count": {"type": "integer", "minimum": 1},
                    "mode": {"enum": ["b", "a"]},
                },
                "required": ["path", "mode"],
            },
        }
        for idx in range(num)
    ]


def as_functions(given: list[Body]) -> list[Body]:
    functions = [
        {"name": one["name"], "description": one["description"], "parameters": one["input_schema"]}
        for one in given
    ]
    return [{"type": "function", "function": function} for function in functions]


def reordered(given: list[Body], seed: int) -> list[Body]:
    """Tools and all their keys in another order."""
    rng = random.Random(seed)
    made = shuffled(given, rng)
    rng.shuffle(made)
    return made


def block(text: str, **more: Any) -> Body:
    return {"type": "text", "text": text, **more}


def message(user: Any = "hi", **fields: Any) -> Body:
    messages = fields.pop("messages", [{"role": "user", "content": user}])
    return {"model": "tiny", "max_tokens": 2, "temperature": 0, "messages": messages, **fields}


def ask(live: Live, body: Body, path: str = "/v1/messages") -> tuple[int, int]:
    """Prompt tokens, and how many of them came from the cache."""
    status, answer = live.post(path, body)
    assert status == 200, answer
    usage = answer["usage"]
    if path == "/v1/messages":
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached
    if path == "/v1/responses":
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def changes(live: Live, folder: Path) -> Body:
    """What was done to the last prompt, as `omlx cache inspect` tells it."""
    deadline = time.monotonic() + 20
    args = ("--request", "last", "--json", "--model-dir", str(folder))
    while True:
        done = run_omlx("cache", "inspect", *args, home=live.home)
        if done.returncode == 0:
            return json.loads(done.stdout)["request"]["changes"]
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a template that prints the system before the tools."""
    where = tmp_path_factory.mktemp("models")
    path = models.tiny_served_model(where, window=WINDOW)
    shutil.copy(_TEMPLATES / "Qwen-Qwen3-0.6B.jinja", path / "chat_template.jinja")
    return where


@pytest.fixture(scope="module")
def live(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live("--model-dir", str(folder), home=tmp_path_factory.mktemp("home")) as server:
        yield server


# ---- A1


VARIANTS = {
    "first block": lambda line, text: [block(line), block(text)],
    "last block": lambda line, text: [block(text), block(line)],
    "top of a string": lambda line, text: f"{line}\n{text}",
    "top of a block": lambda line, text: [block(f"{line}\n{text}")],
}


def test_a1_the_attribution_line(live: Live, folder: Path, figure: Figure) -> None:
    """A1: variants of where it is, one after the other, each with a text of its own."""
    found: list[str] = []
    for number, (name, make) in enumerate(VARIANTS.items()):
        text = words(4000, 100 + number)
        bodies = [message(system=make(LINE % (n, n), text)) for n in (11111, 22222)]
        size, _ = ask(live, bodies[0])
        again, cached = ask(live, bodies[1])
        assert (again, cached) == (size, size - 1)
        assert size >= 4000
        found.append(f"{name} {cached} of {size}")
    assert changes(live, folder) == {"attribution": 1}
    plain = live.post("/v1/messages/count_tokens", message())[1]
    for system in (LINE % (1, 1), [block(LINE % (1, 1))]):
        assert live.post("/v1/messages/count_tokens", message(system=system))[1] == plain
    quoting = live.post("/v1/messages/count_tokens", message(LINE % (1, 1)))[1]
    assert quoting["input_tokens"] > plain["input_tokens"] + 30, "a user's own text is untouched"
    figure(f"A1, cached tokens with a new nonce: {', '.join(found)}")


# ---- P19, and everything else that varies


def everything(seed: int, nonce: int, given: list[Body], *, is_list: bool) -> Body:
    """A conversation of Claude Code's kind, in which all that may vary does."""

    def wrap(text: str, **more: Any) -> Any:
        return [block(text, **more)] if is_list else text

    use = {"type": "tool_use", "id": "toolu_1", "name": given[0]["name"], "input": {"path": "a"}}
    use["name"] = f"tool_{seed}_0"
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": wrap(words(200, seed))}
    mark = {"cache_control": {"type": "ephemeral"}} if is_list else {}
    messages = [
        {"role": "user", "content": wrap("look around", **mark)},
        {"role": "system", "content": wrap(LEFT % (900_000 - nonce))},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
        {"role": "system", "content": wrap(LEFT % (800_000 - nonce))},
    ]
    system = [block(LINE % (nonce, nonce)), block(words(1500, seed), **mark)]
    return message(messages=messages, system=system, tools=given)


def test_p19_what_varies_hits(live: Live, folder: Path, figure: Figure) -> None:
    """P19: tools and keys in another order, nonce, countdown, marks, text or blocks."""
    given = tools(12, 500)
    size, _ = ask(live, everything(500, 1, given, is_list=False))
    for number in range(2, 6):
        body = everything(500, number, reordered(given, number), is_list=number % 2 == 0)
        assert ask(live, body) == (size, size - 1)
    counted = changes(live, folder)
    assert counted["tool_order"] > 0
    assert (counted["attribution"], counted["countdown"]) == (1, 2)
    functions = as_functions(given)
    chat = message(tools=functions)
    first, _ = ask(live, chat, "/v1/chat/completions")
    again = message(tools=shuffled(functions, random.Random(4))[::-1])
    assert ask(live, again, "/v1/chat/completions") == (first, first - 1)
    flat = [{"type": "function", **function["function"]} for function in functions]
    respond = {"model": "tiny", "input": "hi", "max_output_tokens": 2, "tools": flat}
    second, _ = ask(live, respond, "/v1/responses")
    respond = {**respond, "tools": reordered(flat, 9)}
    assert ask(live, respond, "/v1/responses") == (second, second - 1)
    figure(f"P19: 4 variations of one request, all else varied too: {size - 1} of {size} cached")


def test_a_changed_user_text_costs_the_end_only(live: Live, figure: Figure) -> None:
    given = tools(12, 600)
    system = [block(words(1500, 600))]
    size, _ = ask(live, message("one thing", system=system, tools=given))
    other = message("something else", system=system, tools=reordered(given, 1))
    again, cached = ask(live, other)
    assert again - cached < 40
    figure(f"a changed text of the user's: {again - cached} of {again} tokens computed")
    assert size > 2000


def test_orders_survive_a_restart(folder: Path, tmp_path: Path, figure: Figure) -> None:
    """P19: and a server on the same folder of another home has an order of its own."""
    given = tools(12, 700)
    args = ("--model-dir", str(folder))
    with Live(*args, home=tmp_path) as server:
        size, _ = ask(server, message(tools=given))
    with Live(*args, home=tmp_path) as server:
        found = ask(server, message(tools=reordered(given, 3)))
    assert found == (size, size - 1)
    figure(f"P19 after a restart: {found[1]} of {found[0]} cached")


def test_a_sessions_folder_costs_no_tools(live: Live, folder: Path, figure: Figure) -> None:
    """Copilot names it in the middle of its system text, before all tools."""

    def body(uuid: str) -> Body:
        where = f"/home/user/.copilot/session-state/{uuid}"
        told = f"<session_context>\nSession folder: {where}\nPlan file: {where}/plan.md\n"
        system = f"{words(1500, 800)}\n\n{told}</session_context>\n\n{words(300, 801)}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]
        return message(messages=messages, tools=as_functions(tools(12, 800)))

    path = "/v1/chat/completions"
    ask(live, body("0b6e2a52-91c4-4f0e-8f3e-6a3c3a1d2b11"), path)
    size, cached = ask(live, body("f3a1c9d0-1111-4222-8333-444455556666"), path)
    assert size - cached < 200
    assert changes(live, folder) == {"session": 1}
    figure(f"a new session of Copilot's kind: {size - cached} of {size} tokens computed")


def test_a_tool_that_is_loaded_later(live: Live, figure: Figure) -> None:
    given = tools(12, 900)
    late = {**given[5], "name": "tool_900_5b", "defer_loading": True}
    before = message(messages=[{"role": "user", "content": "look"}], tools=given)
    size, _ = ask(live, before)
    use = {"type": "tool_use", "id": "toolu_1", "name": "tool_900_0", "input": {}}
    reference = {"type": "tool_reference", "tool_name": "tool_900_5b"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    after = message(messages=messages, tools=[*given[:6], late, *given[6:]])
    _, cached = ask(live, after)
    assert cached >= size - 10
    figure(f"a tool that is loaded later: {cached} of the {size} tokens before it cached")


# ---- A13


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_a13_an_overflow_and_the_request_after_it(live: Live, path: str, figure: Figure) -> None:
    """A13"""
    text, name = words(WINDOW + 31, 5), path.rpartition("/")[2]
    status, answer = live.post(path, message(text))
    error = answer["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith("prompt is too long: ")
    assert f"> {WINDOW} maximum" in error["message"]
    assert name != "completions" or error["code"] == "context_length_exceeded"
    assert live.post(path, message("summarise"))[0] == 200
    fitting = {**message(words(WINDOW - 200, 5)), "max_tokens": 10 * WINDOW}
    status, answer = live.post(path, fitting)
    assert status == 200, "a budget that does not fit is cut, not refused"
    listed = live.get("/v1/models")["data"]
    assert listed[0]["context_window"] == WINDOW
    figure(f"A13 {name}: {error['message'][:48]}")


def test_a13_scaled_counts(folder: Path, tmp_path: Path, figure: Figure) -> None:
    """A13: a client that takes the window to be 200,000 tokens is told so many."""
    args = ("--model-dir", str(folder), "--scale-tokens", "auto")
    with Live(*args, home=tmp_path) as server:
        text = words(WINDOW // 2, 6)
        size, _ = ask(server, message(text))
        counted = server.post("/v1/messages/count_tokens", message(text))[1]
        assert counted == {"input_tokens": size}
        assert 90_000 < size < 120_000
        error = server.post("/v1/messages", message(words(WINDOW + 31, 5)))[1]["error"]
        assert "> 200000 maximum" in error["message"]
        recent = server.status()["recent"][-1]
        assert recent["prompt_tokens"] < WINDOW
    figure(f"scaled: {recent['prompt_tokens']} tokens of {WINDOW} are told as {size} of 200000")


# ---- A14


def test_a14_a_prefill_in_one_long_step(figure: Figure) -> None:
    """A14: 25 s without a word of the engine's, for clients that wait 12 s for each byte."""
    release = threading.Event()

    def script(request):
        yield [Admitted(request.id, 0, 0)]
        release.wait(60)
        yield from list(say("ok")(request))[1:]

    found: dict[str, list[float]] = {}
    with running(Plan(timing=Timing())) as server:
        server.engine.script = script

        def run(path: str) -> None:
            body = {"model": "fake", "max_tokens": 5, "stream": True}
            body["messages"] = [{"role": "user", "content": "hi"}]
            began, times = time.monotonic(), []
            with httpx.stream("POST", server.url + path, json=body, timeout=12) as response:
                times.append(time.monotonic() - began)
                for part in response.iter_bytes():
                    if part:
                        times.append(time.monotonic() - began)
            found[path] = times

        threads = [
            threading.Thread(target=run, args=(path,))
            for path in ("/v1/messages", "/v1/chat/completions")
        ]
        for thread in threads:
            thread.start()
        time.sleep(25)
        release.set()
        for thread in threads:
            thread.join(30)
    for path, times in found.items():
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        figure(
            f"A14 {path}: headers {times[0]:.2f} s, event {times[1]:.2f} s, gaps {max(gaps):.1f} s"
        )
        assert times[1] < 2
    assert len(found) == 2


# ---- A15


def test_a15_probes_names_and_background_calls(
    folder: Path, tmp_path: Path, figure: Figure
) -> None:
    """A15"""
    args = ("--model-dir", str(folder), "--api-key", "secret")
    both = ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"})
    body = message(system=[block(words(2000, 9))])
    with Live(*args, home=tmp_path) as server:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
            assert client.head("/").status_code == 200
            for headers in both:
                listed = client.get("/v1/models", headers=headers)
                assert listed.json()["data"][0]["id"] == "tiny"
            assert client.get("/v1/models").status_code == 401
        status, answer = server.post(
            "/v1/messages?beta=true", {**body, "model": "claude-haiku-4-5"}, both[0]
        )
        assert (status, answer["error"]["type"]) == (404, "not_found_error")
    with Live(*args[:2], "--default-model", "tiny", home=tmp_path) as server:
        size, _ = ask(server, body)
        for number in range(3):
            small = {**message(words(300, number)), "model": "claude-haiku-4-5"}
            assert server.post("/v1/messages?beta=true", small)[0] == 200
        assert ask(server, body) == (size, size - 1)
    figure(f"A15: after background calls for another name {size - 1} of {size} tokens are cached")


# ---- P13


@pytest.mark.parametrize("kind", KINDS)
def test_p13_the_next_turn(kind: str, demo: Path, figure: Figure) -> None:
    """P13: the first token in which the next turn's prompt leaves this one's, by template."""
    text = TextModel.load(demo)
    rows: list[str] = []
    for name in template_names():
        found = step(name, kind)
        first, second = text.encode(found.first), text.encode(found.second)
        pairs = enumerate(zip(first, second, strict=False))
        left = next((at for at, (one, other) in pairs if one != other), len(first))
        is_whole = left >= len(first) - 1  # the last one may be joined with what follows
        rows.append(f"{name} " + ("append-only" if is_whole else f"{left} of {len(first)}"))
        if kind == "echoed":
            assert is_whole, name
        if kind == "dropped":
            assert len(first) - left <= 4, name
    figure(f"P13 {kind}: {'; '.join(rows)}")
