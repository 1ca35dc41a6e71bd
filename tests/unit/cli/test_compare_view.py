"""Servers side by side as text, at two widths, and the command's own checks of what it is given.

Knows nothing about how figures are measured.
"""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from omlx.bench.result import Check, Label, Measure, Process, Ratio, Report, Start
from omlx.bench.spread import paired_ratio
from omlx.cli.view.comparison import print_comparison, render
from tests.fakes import tiny
from tests.golden import same_as_golden
from tests.unit.bench.test_sides import FAKE
from tests.unit.cli.conftest import Cli

COLD = Label(Process.WARM, Start.MISS)
EIGHT = Label(Process.WARM, Start.MISS, 8)
MACHINE = {"system": "Linux x86_64", "cores": 2, "memory_bytes": 8 * 10**9, "omlx": "0.1.0"}


def two(
    name: str, unit: str, label: Label, of: str, samples: tuple[tuple[float, ...], ...]
) -> tuple[tuple[Measure, ...], Ratio]:
    """A figure of both sides, and how far omlx is ahead."""
    sides = ("omlx", "llama-cpp")
    measures = tuple(
        Measure(name, unit, values, label, side, {"of": of, "tokens": 1024})
        for side, values in zip(sides, samples, strict=True)
    )
    order = sides if unit == "tokens/s" else sides[::-1]
    found = dict(zip(sides, samples, strict=True))
    interval = paired_ratio(found[order[0]], found[order[1]])
    return measures, Ratio(name, *order, label, interval, measures[0].case)


def report() -> Report:
    cold, cold_ratio = two("ttft", "s", COLD, "cold", ((2.5, 2.6, 2.4), (1.2, 1.3, 1.25)))
    again, again_ratio = two("ttft", "s", COLD, "again", ((0.021, 0.02, 0.022), (0.05, 0.06, 0.04)))
    rate, rate_ratio = two("rate", "tokens/s", EIGHT, "streams", ((30.0,), (31.0,)))
    memory, _ = two("memory", "bytes", EIGHT, "memory", ((1.2e9,), (0.9e9,)))
    return Report(
        "compare",
        7,
        "SmolLM2-135M",
        MACHINE,
        sides={"omlx": {}, "llama-cpp": {}, "gone": {}},
        measures=(*cold, *again, *rate, memory[0]),
        ratios=(cold_ratio, again_ratio, rate_ratio),
        checks=(
            Check("omlx answers", True, "all rounds without a fault"),
            Check("gone answers", False, "round 1, start: gone was not ready after 180 s"),
        ),
        notes=("llama-cpp had 900 tokens of the cold prompt already",),
    )


def drawn(shown: Report, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(render(shown, width=width), highlight=False)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


@pytest.mark.parametrize("width", [80, 200])
def test_side_by_side(width: int) -> None:
    text = drawn(report(), width)
    assert max(map(len, text.splitlines())) <= width
    same_as_golden(f"view/compare-{width}.txt", text)


def test_one_round_has_no_interval() -> None:
    text = drawn(report(), 80)
    (line,) = [line for line in text.splitlines() if "0.97×" in line]
    assert "–" not in line


def test_a_name_from_elsewhere_can_not_steer_the_terminal() -> None:
    sides = {"omlx": {}, "\x1b[2Jevil": {}}
    assert "\x1b" not in drawn(replace(report(), sides=sides), 100)


def test_it_is_plain_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=False)
    print_comparison(report(), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b" not in text and "TTFT, nothing known" in text


def model_folder(tmp_path: Path) -> str:
    """A folder that counts as a model; the fake peers never read it."""
    config = {**tiny.CONFIGS["llama"], "max_position_embeddings": 4096}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (folder / "tokenizer.json").write_text(tiny_tokenizer())
    return str(folder)


def tiny_tokenizer() -> str:
    from tests.unit.models.tiny import byte_level

    return byte_level().to_str()


def recipe(tmp_path: Path, name: str, *modes: str) -> str:
    path = tmp_path / f"{name}.toml"
    words = json.dumps(["{python}", "-P", str(FAKE), "{port}", "{home}", *modes])
    path.write_text(f'command = {words}\nready = "/health"\nready_s = 20\n')
    return str(path)


def test_two_recipes_are_compared(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.bench.sides._SETTLE_S", 0.0)
    done = cli(
        "bench", "compare", "--json", "--no-own", "--model", model_folder(tmp_path),
        "--recipe", recipe(tmp_path, "first", "keeps"), "--recipe", recipe(tmp_path, "second"),
        "--rounds", "2", "--tokens", "200", "--streams", "1,2", "--reply", "4",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out.splitlines()[-1])
    assert found["kind"] == "compare" and [*found["sides"]] == ["first", "second"]
    assert {one["base"] for one in found["ratios"] if one["name"] == "ttft"} == {"first"}
    assert found["options"]["rounds"] == 2 and found["options"]["traces"] == []
    assert "compare 0/4: round 1, first: cold" in done.err


def test_a_side_that_fails_makes_the_command_fail(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = cli(
        "bench", "compare", "--no-own", "--model", model_folder(tmp_path), "--html", str(page),
        "--recipe", recipe(tmp_path, "good"), "--recipe", recipe(tmp_path, "bad", "dies"),
        "--rounds", "1", "--tokens", "100", "--case", "cold",
    )  # fmt: skip
    assert done.code == 1
    assert "bad answers" in done.out and "FAIL" in done.out
    assert "TTFT, nothing known" in done.out
    assert "bad answers" in page.read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "nothing to compare with"),
        (("--peer", "ollama"), "no peer 'ollama'"),
        (("--peer", "mlx-lm", "--peers-dir", "/nowhere"), "mlx-lm is not installed"),
        (("--url", "x"), "--url takes NAME="),
        (("--url", "a=http://127.0.0.1:1", "--url-model", "b=m"), "--url-model b=… is of no --url"),
        (("--url-key", "a=k"), "--url-key a=… is of no --url"),
        (("--url", "a=http://x", "--url", "a=http://y"), "--url has a twice"),
        (("--tokens", "5000", "--peer", "mlx-lm"), "do not fit the 4,096"),
        (("--case", "agent", "--peer", "mlx-lm"), "--case agent needs --trace"),
        (("--trace", "/nowhere.json"), "can't be read"),
        (("--limit", "soon"), "--limit: 'soon'"),
        (("--total", "0s"), "--total: 0s is no time"),
        (("--streams", "1,x"), "whole number"),
        (("--recipe", "/nowhere.toml"), "can't be read"),
    ],
)
def test_what_can_not_be_compared_is_said_at_once(
    cli: Cli, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    done = cli("bench", "compare", "--model", model_folder(tmp_path), *args)
    assert done.code in (1, 2) and not done.out
    assert words in done.err


def test_two_sides_of_one_name_are_refused(cli: Cli, tmp_path: Path) -> None:
    path = recipe(tmp_path, "same")
    model = model_folder(tmp_path)
    done = cli("bench", "compare", "--model", model, "--recipe", path, "--recipe", path)
    assert done.code == 2 and "two sides are called same" in done.err


def test_a_url_without_a_server_is_told(cli: Cli, tmp_path: Path) -> None:
    model = model_folder(tmp_path)
    done = cli("bench", "compare", "--model", model, "--url", "gone=http://127.0.0.1:9")
    assert done.code == 1 and "gone" in done.err
