"""Profiles of models, aliases, and the settings that a profile gives to its requests."""

from pathlib import Path

import pytest

from omlx.errors import SettingsError
from omlx.settings.build import Resolved, load

TABLES = """
[model."qwen*"]
sampling.temperature = 0.5
sampling.top_k = 5

[model."qwen*".profile.thinking]
sampling.temperature = 0.6
sampling.top_p = 0.95

[model."qwen3-8b".profile.thinking]
sampling.top_p = 0.9
context_window = 1000

[model."qwen3-8b".profile.plain]
"""


def resolved(tmp_path: Path, text: str = TABLES, **cli: object) -> Resolved:
    (tmp_path / "config.toml").write_text(text)
    return load(cli=cli, env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        resolved(tmp_path, text)
    return [p.removeprefix(str(tmp_path / "config.toml")) for p in caught.value.problems]


def test_which_models_have_which(tmp_path: Path) -> None:
    settings = resolved(tmp_path)
    assert sorted(settings.profiles_of("qwen3-8b", None)) == ["plain", "thinking"]
    assert sorted(settings.profiles_of("org/qwen3-8b", None)) == ["plain", "thinking"]
    assert [*settings.profiles_of("qwen3-1b", None)] == ["thinking"]
    assert settings.profiles_of("llama", None) == {}
    assert settings.profiles_of("qwen3-1b", None)["thinking"].where.endswith("config.toml:6")


def test_a_profile_beats_everything_the_closest_table_first(tmp_path: Path) -> None:
    settings = resolved(tmp_path, **{"sampling.temperature": "0.1", "sampling.top_k": "7"})
    own = settings.for_model("qwen3-8b", None, profile="thinking")
    assert (own.sampling.temperature, own.sampling.top_p) == (0.6, 0.9)
    assert (own.sampling.top_k, own.context_window) == (7, 1000)
    lost = [shadowed.value for shadowed in own.shadowed["sampling.temperature"]]
    assert lost == [0.1, 0.5]
    plain = settings.for_model("qwen3-8b", None)
    assert (plain.sampling.temperature, plain.sampling.top_p) == (0.1, None)
    assert plain.context_window is None
    assert settings.for_model("qwen3-8b", None, profile="plain").sampling == plain.sampling


def test_a_model_may_bring_profiles(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "omlx.toml").write_text(
        "sampling.top_k = 3\n[profile.greedy]\nsampling.temperature = 0.0\n"
    )
    settings = resolved(tmp_path, "")
    assert [*settings.profiles_of("m", folder)] == ["greedy"]
    assert settings.for_model("m", folder).sampling.temperature is None
    greedy = settings.for_model("m", folder, profile="greedy").sampling
    assert (greedy.temperature, greedy.top_k) == (0.0, 3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[model."a".profile.fast]\nport = 1\n',
         ":2: unknown key 'model.a.profile.fast.port'"),
        ('[model."a".profile.fast]\nserver.port = 1\n',
         ":2: 'server.port' cannot be set for one model"),
        ('[model."a".profile.fast]\nsampling.temperatur = 1\n',
         ":2: unknown key 'model.a.profile.fast.sampling.temperatur' "
         "(did you mean 'temperature'?)"),
        ('[model."a".profile.fast]\nsampling.top_p = 3\n',
         ":2: 'model.a.profile.fast.sampling.top_p': 3 is not within 0 to 1"),
        ('[model."a".profile]\nfast = 1\n',
         ":2: 'model.a.profile.fast' must be a table of settings"),
        ('[model."a"]\nprofile = "fast"\n', ":2: 'model.a.profile' must be a table such as"),
        ('[model."a".profile."a:b"]\n', ":1: 'model.a.profile.\"a:b\"': a profile's name has"),
        ('[model."a".profile."../x"]\n', ":1: 'model.a.profile.\"../x\"': a profile's name has"),
        ('[model."a".profil.fast]\n', ":1: unknown key 'model.a.profil' (did you mean 'profile'?)"),
        ("[profile.fast]\n", ":1: unknown key 'profile'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith(problem)


def test_aliases(tmp_path: Path) -> None:
    text = '[models.alias]\nsonnet = "qwen3-8b"\n"claude/opus:4" = "qwen3-8b:thinking"\n'
    settings = resolved(tmp_path, text)
    assert dict(settings.settings.models.alias) == {
        "sonnet": "qwen3-8b",
        "claude/opus:4": "qwen3-8b:thinking",
    }
    assert settings.origins["models.alias"].where.endswith("config.toml:1")
    settings = resolved(tmp_path, text, **{"models.alias": ("a=b", "c=d:e,f=g")})
    assert settings.settings.models.alias == (("a", "b"), ("c", "d:e"), ("f", "g"))
    env = {"OMLX_HOME": str(tmp_path), "OMLX_MODELS_ALIAS": "x = y"}
    assert load(env=env, cwd=tmp_path).settings.models.alias == (("x", "y"),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alias = 1", "'models.alias': expected a table such as"),
        ("alias = [\"a=b\"]", "'models.alias': expected a table such as"),
        ('alias.a = 1', "'models.alias': the name 'a' must stand for text"),
        ('alias.a = " "', "'models.alias': the name 'a' stands for nothing"),
        ('alias."a b" = "c"', "'models.alias': 'a b' is no name"),
        ('alias."" = "c"', "'models.alias': '' is no name"),
    ],
)  # fmt: skip
def test_aliases_that_are_none(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems(tmp_path, f"[models]\n{text}\n")
    assert found.split(": ", 1)[1].startswith(problem)


@pytest.mark.parametrize("value", ["a", "a=", "=b", "a=b,a=c"])
def test_aliases_on_the_command_line_that_are_none(tmp_path: Path, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolved(tmp_path, "", **{"models.alias": (value,)})
    assert caught.value.problems[0].startswith("--alias: ")


def test_the_hub_cache_is_read_where_no_folder_is_named(tmp_path: Path) -> None:
    env = {"OMLX_HOME": str(tmp_path), "HF_HUB_CACHE": "/hub"}
    assert load(env=env, cwd=tmp_path).hub_cache == Path("/hub")
    dirs = {"models.dir": ("m",)}
    assert load(cli=dirs, env=env, cwd=tmp_path).hub_cache is None
    both = {**dirs, "models.hub_cache": True}
    assert load(cli=both, env=env, cwd=tmp_path).hub_cache == Path("/hub")
    none = {"models.hub_cache": False}
    assert load(cli=none, env=env, cwd=tmp_path).hub_cache is None


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/d"}, "/c/huggingface/hub"),
        ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
    ],
)
def test_where_the_hub_cache_is(tmp_path: Path, env: dict[str, str], expected: str) -> None:
    env = {"OMLX_HOME": str(tmp_path), **env}
    assert load(env=env, cwd=tmp_path).hub_cache == Path(expected)
