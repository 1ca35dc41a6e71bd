"""Problems of each layer: place, key and the nearest right name, all at once.

Knows nothing about which layer wins.
"""

import os
from pathlib import Path

import pytest

from omlx.settings.layers import Layer, Scope, from_cli, from_env, from_toml


def _toml(tmp_path: Path, text: str | bytes, scope: Scope = Scope.ALL) -> Layer:
    path = tmp_path / "f.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return from_toml(path, shown="f.toml", scope=scope)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server]\nprot = 1", "f.toml:2: unknown key 'server.prot' (did you mean 'port'?)"),
        ("[sever]\nport = 1", "f.toml:1: unknown key 'sever' (did you mean 'server'?)"),
        ("port = 1", "f.toml:1: unknown key 'port' (did you mean 'server.port'?)"),
        (
            "[scheduler]\nblock_size = 16",
            "f.toml:2: unknown key 'scheduler.block_size' (did you mean 'cache.block_size'?)",
        ),
        ("[engine]\nzzzz = 16", "f.toml:2: unknown key 'engine.zzzz'; known: blas"),
        (
            '[models."q*"]\ncontext_window = 99',
            "f.toml:1: unknown key 'models.\"q*\"' (did you mean '[model.\"q*\"]'?)",
        ),
        ("server = 1", "f.toml:1: 'server' must be a table"),
        ("model = 1", "f.toml:1: 'model' must be a table such as [model.\"name\"]"),
        ("[model]\na = 1", "f.toml:2: 'model.a' must be a table such as [model.\"name\"]"),
        ("[model.a.server]\nport = 1", "f.toml:2: 'server.port' cannot be set for one model"),
        (
            "[model.a]\ntemperature = 1",
            "f.toml:2: unknown key 'model.a.temperature' (did you mean 'sampling.temperature'?)",
        ),
        (
            "[model.a]\nsampling.temprature = 1",
            "f.toml:2: unknown key 'model.a.sampling.temprature' (did you mean 'temperature'?)",
        ),
        (
            '[server]\nport = "x"',
            "f.toml:2: 'server.port': expected a whole number, got 'x'",
        ),
        ("[server]\nport = '80'", "f.toml:2: 'server.port': expected a whole number, got '80'"),
        (
            "[server]\nport = true",
            "f.toml:2: 'server.port': expected a whole number, got true or false",
        ),
        ("[server]\nport = 70000", "f.toml:2: 'server.port': 70000 is not within 0 to 65535"),
        ("server.host = ''", "f.toml:1: 'server.host': expected text, got an empty one"),
        ("server.api_key = ' '", "f.toml:1: 'server.api_key': expected text, got an empty one"),
        (
            'server.api_key = "a\\nb"',
            "f.toml:1: 'server.api_key': control characters are not allowed",
        ),
        (
            "[cache]\nmax_size = '8XB'",
            "f.toml:2: 'cache.max_size': '8XB' has an unknown unit 'XB'; "
            "known: b, k, kb, m, mb, g, gb, t, tb, kib, mib, gib, tib",
        ),
        (
            "[cache]\nmax_size = 1.5",
            "f.toml:2: 'cache.max_size': "
            'expected a size such as "8GB" or "512MiB" or "auto", got a number',
        ),
        (
            "[cache]\nwrite_delay = '2 weeks'",
            "f.toml:2: 'cache.write_delay': '2 weeks' has an unknown unit 'weeks'; "
            "known: ms, s, m, min, h, d",
        ),
        (
            "[cache]\nenabled = 'yes'",
            "f.toml:2: 'cache.enabled': expected true or false, got 'yes'",
        ),
        (
            "[log]\nlevel = 'loud'",
            "f.toml:2: 'log.level': expected one of debug, info, warning, error, got 'loud'",
        ),
        ("models.dir = 'x'", "f.toml:1: 'models.dir': expected a list of paths, got 'x'"),
        (
            "models.dir = [1]",
            "f.toml:1: 'models.dir': expected a list of paths, got a whole number",
        ),
        (
            "cache.dir = '~nobody-of-that-name/x'",
            "f.toml:1: 'cache.dir': '~nobody-of-that-name/x' names a user that does not exist",
        ),
        (
            "sampling.temperature = nan",
            "f.toml:1: 'sampling.temperature': expected a number, got one that is not finite",
        ),
        (
            "sampling.top_p = 1.5",
            "f.toml:1: 'sampling.top_p': 1.5 is not within 0 to 1",
        ),
        (
            "server.max_body = 10",
            "f.toml:1: 'server.max_body': 10 is not within 1kB to 1TB",
        ),
        ("a = 1\nb 2", "f.toml:2: not valid TOML: Expected '=' after a key in a key/value pair"),
        ("a = 1\n[b", "f.toml: not valid TOML: Expected ']' at the end of a table declaration"),
        (b"\xff\xfe", "f.toml: not UTF-8 text (byte 0)"),
        (b"\x00\x01\x02", "f.toml:1: not valid TOML: Invalid statement"),
        ("a = " + "[" * 50_000, "f.toml: not valid TOML: nested too deeply"),
        ("a = " + "1" * 10_000, "f.toml: not valid TOML: Exceeds the limit"),
        ("#" * 1_000_001, "f.toml: cannot be read: too large for a settings file"),
    ],
)
def test_one_problem_of_a_toml_file(tmp_path: Path, text: str | bytes, problem: str) -> None:
    layer = _toml(tmp_path, text)
    assert layer.entries == ()
    assert len(layer.problems) == 1
    assert layer.problems[0].startswith(problem)


def test_all_problems_of_a_file_are_reported_and_the_good_values_kept(tmp_path: Path) -> None:
    layer = _toml(tmp_path, "[server]\nprot = 1\nport = 2\nhost = 3\n[cache]\nblock_size = 1\n")
    assert [problem.split(":")[1] for problem in layer.problems] == ["2", "4", "6"]
    assert [(e.path, e.value, e.origin.where) for e in layer.entries] == [
        ("server.port", 2, "f.toml:3")
    ]


def test_paths_of_a_file_start_at_its_folder(tmp_path: Path) -> None:
    layer = _toml(tmp_path, "models.dir = ['a', '/b']")
    assert layer.entries[0].value == (tmp_path / "a", Path("/b"))


def test_units_become_numbers(tmp_path: Path) -> None:
    text = "[cache]\nmax_size = '8GB'\nmemory_size = '512MiB'\nmin_free = 5\nwrite_delay = '15m'"
    values = [entry.value for entry in _toml(tmp_path, text).entries]
    assert values == [8 * 10**9, 512 * 2**20, 5, 900.0]


def test_a_missing_file_says_nothing_and_other_paths_do(tmp_path: Path) -> None:
    assert from_toml(tmp_path / "none.toml", shown="x") == Layer()
    assert from_toml(tmp_path, shown="x").problems == ("x: cannot be read: not a file",)
    os.mkfifo(tmp_path / "fifo")
    assert from_toml(tmp_path / "fifo", shown="x").problems == ("x: cannot be read: not a file",)
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in from_toml(tmp_path / "loop", shown="x").problems[0]


def test_scopes_refuse_what_is_not_theirs(tmp_path: Path) -> None:
    tables = _toml(tmp_path, "[server]\nport = 1\n[model.a]\ncontext_window = 99", Scope.TABLES)
    assert tables.problems == (
        "f.toml:1: 'server' is not a table of a model, as [model.\"name\"] is",
    )
    assert [entry.glob for entry in tables.entries] == ["a"]
    beside = _toml(tmp_path, "server.port = 1\n[model.a]\nx = 1\n", Scope.ONE_MODEL)
    assert beside.problems == (
        "f.toml:1: 'server.port' cannot be set for one model",
        "f.toml:2: unknown key 'model'; known: context_window, thinking, cache, scheduler, engine, "
        "sampling, parser, prompt, agent, profile",
    )


def test_environment_values_are_text_of_any_type(tmp_path: Path) -> None:
    env = {
        "OMLX_SERVER_PORT": "9000",
        "OMLX_CACHE_ENABLED": "off",
        "OMLX_CACHE_MAX_SIZE": "1TB",
        "OMLX_SAMPLING_TOP_P": "0.9",
        "OMLX_MODELS_DIR": f"a{os.pathsep}/b",
        "OMLX_CONTEXT_WINDOW": "4096",
        "OMLX_CACHE_DIR": "",
        "OMLX_HOME": "x",
        "OTHER": "x",
    }
    layer = from_env(env, tmp_path)
    assert layer.problems == layer.warnings == ()
    assert {entry.path: entry.value for entry in layer.entries} == {
        "cache.enabled": False,
        "cache.max_size": 10**12,
        "context_window": 4096,
        "models.dir": (tmp_path / "a", Path("/b")),
        "sampling.top_p": 0.9,
        "server.port": 9000,
    }


def test_a_wrong_variable_is_a_problem_and_an_unknown_one_a_warning(tmp_path: Path) -> None:
    env = {
        "OMLX_SERVER_PORT": "70000",
        "OMLX_CACHE_BLOCK_SIZE": "\u0663\u0662",
        "OMLX_SERVER_PROT": "1",
        "OMLX_QQQQQQQQ": "1",
    }
    layer = from_env(env, tmp_path)
    assert layer.problems == (
        "environment: OMLX_CACHE_BLOCK_SIZE: expected a whole number, got '\u0663\u0662'",
        "environment: OMLX_SERVER_PORT: 70000 is not within 0 to 65535",
    )
    assert layer.warnings == (
        "environment: unknown variable OMLX_QQQQQQQQ",
        "environment: unknown variable OMLX_SERVER_PROT (did you mean 'OMLX_SERVER_PORT'?)",
    )


def test_command_line_values_may_be_typed_or_text(tmp_path: Path) -> None:
    layer = from_cli(
        {"server.port": 1, "cache.max_size": "2GB", "models.dir": ("a",), "log.level": None},
        tmp_path,
    )
    assert [entry.value for entry in layer.entries] == [1, 2 * 10**9, (tmp_path / "a",)]
    assert [str(entry.origin) for entry in layer.entries] == [
        "cli --port",
        "cli --cache-max-size",
        "cli --model-dir",
    ]
    wrong = from_cli({"server.prot": 1, "server.port": "x"}, tmp_path)
    assert wrong.problems == (
        "command line: unknown setting 'server.prot' (did you mean 'server.port'?)",
        "--port: expected a whole number, got 'x'",
    )


def test_a_secret_is_never_part_of_a_problem(tmp_path: Path) -> None:
    for value in ("sec\nret", "sec\udc80ret"):
        layer = from_env({"OMLX_SERVER_API_KEY": value}, tmp_path)
        assert len(layer.problems) == 1
        assert "sec" not in layer.problems[0]
