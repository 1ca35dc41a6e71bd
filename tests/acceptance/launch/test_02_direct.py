"""What no other server gets right: crashes, aborts, reminders, reordered tools, twins, ids."""

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

from omlx.storage.history import History
from tests.acceptance.conftest import Figure
from tests.acceptance.launch.course import SLACK
from tests.acceptance.serve.test_03_restart import words
from tests.fakes.agent import agent_model
from tests.fakes.shuffle import shuffled
from tests.live import Live, wait_until

MODEL = "agent"
_LONG = 40_000  # tokens, seconds of prefill
_TOOLS_FIRST = """\
{%- if tools -%}{{- '<tools>' -}}
{%- for tool in tools -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}
{{- '</tools>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def _tool(number: int) -> dict[str, Any]:
    return {
        "name": f"tool_{number}",
        "description": words(200, number),
        "input_schema": {
            "type": "object",
            "properties": {
                name: {"type": "string", "description": words(20, number)}
                for name in ("path", "text", "limit")
            },
            "required": ["path"],
        },
    }


def _serve(folder: Path, demo: Path, *, template: str | None = None) -> Live:
    path = folder / "models" / MODEL
    if not path.exists():
        agent_model(demo, path)
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    args = ("--model-dir", str(folder / "models"), "--journal-text")
    return Live(*args, home=folder / "home")


def _ask(live: Live, messages: list[Any], **more: Any) -> tuple[int, int]:
    """A message; its prompt tokens, and how many of them were computed."""
    body = {"model": MODEL, "max_tokens": 64, "temperature": 0, "messages": messages, **more}
    status, answer = live.post("/v1/messages", body)
    assert status == 200, answer
    usage = answer["usage"]
    cached = usage["cache_read_input_tokens"]
    total = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
    return total, total - cached


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_after_kill_9_nothing_is_prefilled_again(
    tmp_path: Path, demo: Path, figure: Figure
) -> None:
    messages = [_user(words(6000, 1))]
    live = _serve(tmp_path, demo)
    _ask(live, messages)
    wait_until(live.is_written)
    live.kill()
    with _serve(tmp_path, demo) as live:
        total, uncached = _ask(live, messages)
    figure(f"kill -9: {uncached} of {total} computed again; others: all of them")
    assert uncached <= SLACK


def test_an_aborted_prefill_is_kept(tmp_path: Path, demo: Path, figure: Figure) -> None:
    body = {"model": MODEL, "max_tokens": 8, "messages": [_user(words(_LONG, 2))], "stream": True}
    with _serve(tmp_path, demo) as live:
        connection = live.connection()
        connection.request("POST", "/v1/messages", json.dumps(body))
        wait_until(lambda: live.model_status()["prefilling"] == 1)
        time.sleep(3)
        connection.sock.shutdown(2)
        connection.close()
        wait_until(lambda: live.status()["requests"]["active"] == 0)
        total, uncached = _ask(live, body["messages"])
        first = History(tmp_path / "home" / "state" / "journal.sqlite3").of_model(MODEL, 9)[-1]
    figure(
        f"retry after an abort at {first.computed} of {total} tokens: {uncached} computed; "
        "others: all but 3 to 20"
    )
    assert first.outcome == "aborted" and 0 < first.computed < total
    assert uncached <= total - first.computed + 256, "a block at most is lost"


def test_a_reminder_in_mid_conversation_stays_there(
    tmp_path: Path, demo: Path, figure: Figure
) -> None:
    messages: list[Any] = [_user(words(3000, 3))]
    system = words(500, 4)
    with _serve(tmp_path, demo) as live:
        for turn in range(2):
            _, answer = live.post(
                "/v1/messages",
                {"model": MODEL, "max_tokens": 64, "temperature": 0, "system": system,
                 "messages": messages},
            )  # fmt: skip
            messages += [
                {"role": "assistant", "content": answer["content"]}, _user(f"turn {turn}")
            ]  # fmt: skip
        plain = _ask(live, messages, system=system)
        reminded = [*messages, {"role": "system", "content": "Mind the tree."}]
        total, uncached = _ask(live, reminded, system=system)
    figure(f"a reminder in turn 3: {uncached} of {total} computed; others: 3,162 of 3,980")
    assert plain[1] <= 40
    assert uncached <= 40


def test_tools_and_their_keys_in_another_order(tmp_path: Path, demo: Path, figure: Figure) -> None:
    tools = [_tool(number) for number in range(8)]
    rng = random.Random(5)

    messages = [_user("Use a tool.")]
    with _serve(tmp_path, demo) as live:
        _ask(live, messages, tools=tools)
        total, reverse = _ask(live, messages, tools=tools[::-1])
        _, keys = _ask(live, messages, tools=[shuffled(tool, rng) for tool in tools])
    with _serve(tmp_path, demo) as live:
        _, later = _ask(live, messages, tools=[shuffled(tool, rng) for tool in tools[::-1]])
    figure(
        f"of {total} tokens computed: tools in reverse {reverse}, keys shuffled {keys}, both after "
        "a restart {later}; others: all but 72 to 212".replace("{later}", str(later))
    )
    assert max(reverse, keys, later) <= SLACK


def test_two_identical_prompts_at_once(tmp_path: Path, demo: Path, figure: Figure) -> None:
    messages = [_user(words(12_000, 6))]
    found: list[tuple[int, int]] = []
    with _serve(tmp_path, demo) as live:
        threads = [
            threading.Thread(target=lambda: found.append(_ask(live, messages))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.5)
        for thread in threads:
            thread.join()
    total = found[0][0]
    computed = sum(uncached for _, uncached in found)
    figure(f"two identical prompts of {total} tokens at once: {computed} computed for both")
    assert computed <= total + 2 * 256


def test_where_tools_come_first_an_id_in_the_system_costs_only_what_follows(
    tmp_path: Path, demo: Path, figure: Figure
) -> None:
    tools = [_tool(number) for number in range(8)]
    with _serve(tmp_path, demo, template=_TOOLS_FIRST) as live:
        for session in ("11111111-aaaa", "22222222-bbbb"):
            total, uncached = _ask(
                live,
                [_user("hello")],
                tools=tools,
                system=f"You help. Session {session}. Be brief.",
            )
    figure(f"another session id after the tools: {uncached} of {total} computed")
    assert uncached <= 64
