"""While a client runs tools, what its next prompt will begin with is computed."""

import threading
import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from omlx.engine.request import EngineRequest, Event, FinishReason
from omlx.server import power
from omlx.server.run import wants_rerender
from omlx.settings.prompts import Prompt
from omlx.settings.schema import Cache, Settings
from tests.fakes.engine import ScriptedEngine, say
from tests.fakes.server import Plan, Running, running
from tests.fakes.templated import TemplatedText
from tests.live import wait_until
from tests.unit.server.test_warm import held
from tests.writers import TOOLS

LONG = "a/very/long/path/that/is/written/once/more"
OTHER_FORM = f'<tool_call>\n{{"arguments":{{"path":"{LONG}"}},"name":"read"}}\n</tool_call>'
OWN_FORM = f'<tool_call>\n{{"name": "read", "arguments": {{"path": "{LONG}"}}}}\n</tool_call>'
THOUGHT = "<think>\nI have to read\n</think>\n\n"


def plan(reply: str, **fields: Any) -> Plan:
    ok = say(reply)
    engine = ScriptedEngine(script=ok)
    text = TemplatedText("Qwen-Qwen3-0.6B", context_window=100_000)
    return Plan(engines=[engine], text=text, wants_rerender=lambda: True, **fields)


def ahead(server: Running) -> list[EngineRequest]:
    return [r for r in server.engine.submitted if r.id.startswith("rerender-")]


def ask(server: Running, messages: list[Any], **headers: str) -> Any:
    body = {"model": "fake", "messages": messages, "tools": TOOLS}
    answer = server.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def first() -> list[Any]:
    return [{"role": "user", "content": "Read it"}]


def counted(server: Running, name: str) -> str:
    lines = server.http.get("/metrics").text.splitlines()
    return " ".join(line for line in lines if line.startswith(f"omlx_{name}_total{{"))


@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_a_call_in_other_words_is_computed_as_it_will_be_printed(thought: str) -> None:
    with running(plan(thought + OTHER_FORM)) as server:
        messages = first()
        messages.append(ask(server, messages))
        wait_until(lambda: "done" in counted(server, "idle_rerenders"))
        [request] = ahead(server)
        assert counted(server, "idle_rerendered_tokens").endswith(f" {len(request.tokens)}.0")
        result = {"role": "tool", "content": "the file", "tool_call_id": "x"}
        ask(server, [*messages, result])
        after = server.engine.submitted[-1].tokens
        assert after[: len(request.tokens)] == request.tokens
        assert bytes(request.tokens).endswith(b"<tool_response>\n")
        assert (request.max_tokens, request.request_class.value) == (1, "batch")
        status = server.http.get("/admin/api/status").json()
        assert status["requests"]["finished"] == 2


@pytest.mark.parametrize(
    ("reply", "headers"),
    [
        (OWN_FORM, {}),
        ("No call at all", {}),
        (OTHER_FORM, {"X-Omlx-Cache-Store": "off"}),
    ],
)
def test_nothing_runs_where_nothing_is_missing(reply: str, headers: dict[str, str]) -> None:
    with running(plan(reply)) as server:
        ask(server, first(), **headers)
        time.sleep(0.5)
        assert ahead(server) == []


def test_a_call_that_a_limit_cut_is_not_run() -> None:
    with running(plan(OTHER_FORM)) as server:
        server.engine.script = say(OTHER_FORM, reason=FinishReason.LENGTH)
        ask(server, first())
        time.sleep(0.5)
        assert ahead(server) == []


def test_nothing_runs_where_it_is_not_wanted() -> None:
    unwanted = plan(OTHER_FORM)
    unwanted.wants_rerender = lambda: False
    with running(unwanted) as server:
        ask(server, first())
        time.sleep(0.5)
        assert ahead(server) == []


def test_a_users_request_ends_it_for_good() -> None:
    ok = say(OTHER_FORM)
    is_slow = threading.Event()

    def script(request: EngineRequest) -> Iterable[Sequence[Event]]:
        if request.id == "rerender-1":
            is_slow.set()
            return held(request)
        return ok(request) if not is_slow.is_set() else say("done")(request)

    with running(plan("")) as server:
        server.engine.script = script
        ask(server, first())
        assert is_slow.wait(10)
        ask(server, [{"role": "user", "content": "another"}])
        wait_until(lambda: "in the way" in counted(server, "idle_rerenders"))
        assert server.engine.aborted == ["rerender-1"]
        time.sleep(0.5)
        assert len(ahead(server)) == 1


def test_it_waits_for_all_answers() -> None:
    is_free, ok = threading.Event(), say(OTHER_FORM)

    def script(request: EngineRequest) -> Iterable[Sequence[Event]]:
        if b"slow" in bytes(request.tokens):
            is_free.wait(10)
            return say("done")(request)
        return ok(request)

    with running(plan("")) as server:
        server.engine.script = script
        slow = [{"role": "user", "content": "slow"}]
        asking = threading.Thread(target=lambda: ask(server, slow))
        asking.start()
        wait_until(lambda: len(server.engine.submitted) == 1)
        ask(server, first())
        time.sleep(0.4)
        assert ahead(server) == []
        is_free.set()
        asking.join()
        wait_until(lambda: len(ahead(server)) == 1)


@pytest.mark.parametrize(
    ("value", "is_on", "has_cache", "wanted"),
    [
        ("auto", True, True, True),
        ("auto", False, True, False),
        (True, False, True, True),
        (False, True, True, None),
        (True, True, False, None),
    ],
)
def test_the_setting(value, is_on, has_cache, wanted) -> None:
    made = Settings(prompt=Prompt(idle_rerender=value), cache=Cache(enabled=has_cache))
    wants = wants_rerender(made, lambda: is_on)
    assert (wants and wants()) == wanted


class Sensors:
    """What psutil tells of a battery, or how it fails to."""

    def __init__(self, found: object) -> None:
        self._found = found

    def sensors_battery(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.mark.parametrize(
    ("battery", "is_on"),
    [
        (None, True),
        (SimpleNamespace(power_plugged=True), True),
        (SimpleNamespace(power_plugged=False), False),
        (SimpleNamespace(power_plugged=None), True),
        (OSError("no"), False),
        (psutil.AccessDenied(), False),
    ],
)
def test_mains(battery: object, is_on: bool) -> None:
    assert power.is_on_mains(Sensors(battery)) is is_on


def test_a_system_without_batteries_is_on_mains() -> None:
    assert power.is_on_mains(object()) is True
    assert power.is_on_mains() in (True, False)
