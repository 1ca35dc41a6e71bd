"""Which layer wins, who set each value, and what holds for one model.

Knows nothing about the texts of problems.
"""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from omlx.errors import SettingsError
from omlx.settings.build import Resolved, load
from omlx.settings.leaf import leaves
from omlx.settings.places import data_dir, home
from omlx.settings.prompts import Prompt
from omlx.settings.schema import Settings


class Places:
    """The folders that settings are read from, all below one."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = root / "project"
        self.packaged = root / "packaged"
        self.model = root / "weights"
        for folder in (
            self.home / "profiles",
            self.project,
            self.packaged / "models",
            self.model,
        ):
            folder.mkdir(parents=True)

    def load(
        self,
        *,
        cli: dict[str, object] | None = None,
        env: dict[str, str] | None = None,
        profile: str | None = None,
    ) -> Resolved:
        return load(
            cli=cli or {},
            env={"OMLX_HOME": str(self.home), **(env or {})},
            cwd=self.project,
            profile=profile,
            profiles=self.packaged,
        )


@pytest.fixture
def at(tmp_path: Path) -> Places:
    return Places(tmp_path)


def _port(path: Path, port: int) -> None:
    path.write_text(f"[server]\nport = {port}\n")


def test_nothing_set_gives_the_defaults(at: Places) -> None:
    resolved = at.load()
    assert resolved.settings == Settings()
    assert resolved.shadowed == {}
    assert list(resolved.origins) == list(leaves())
    assert {str(origin) for origin in resolved.origins.values()} == {"default"}
    assert resolved.model_dirs == (at.home / "models",)
    assert resolved.cache_dir == at.home / "cache"
    assert resolved.state_dir == at.home / "state"


def test_each_layer_beats_the_one_below_and_shadows_it(at: Places) -> None:
    _port(at.packaged / "base.toml", 1)
    _port(at.home / "config.toml", 2)
    _port(at.project / "omlx.toml", 3)
    _port(at.packaged / "fast.toml", 4)
    env = {"OMLX_SERVER_PORT": "5"}
    steps = [
        (at.load(), 3, "file omlx.toml:2", 2),
        (at.load(profile="fast"), 4, f"profile {at.packaged / 'fast.toml'}:2", 3),
        (at.load(profile="fast", env=env), 5, "env OMLX_SERVER_PORT", 4),
        (at.load(profile="fast", env=env, cli={"server.port": 6}), 6, "cli --port", 5),
    ]
    for resolved, port, origin, shadowed in steps:
        assert resolved.settings.server.port == port
        assert str(resolved.origins["server.port"]) == origin
        assert len(resolved.shadowed["server.port"]) == shadowed
    lost = steps[-1][0].shadowed["server.port"]
    assert [item.value for item in lost] == [5, 4, 3, 2, 1]


def test_the_user_s_profile_beats_a_packaged_one_of_that_name(at: Places) -> None:
    _port(at.packaged / "fast.toml", 4)
    _port(at.home / "profiles" / "fast.toml", 5)
    assert at.load(env={"OMLX_PROFILE": "fast"}).settings.server.port == 5


@pytest.mark.parametrize("name", ["fats", "../config", "", "/etc/passwd", "a\0b"])
def test_an_unknown_profile_names_the_known(at: Places, name: str) -> None:
    _port(at.packaged / "fast.toml", 4)
    _port(at.packaged / "base.toml", 4)
    _port(at.home / "config.toml", 4)
    with pytest.raises(SettingsError) as caught:
        at.load(profile=name)
    assert caught.value.problems[0].startswith(f"--profile: unknown profile '{name}'")
    assert "fast" in caught.value.problems[0]
    assert "base" not in caught.value.problems[0]


def test_problems_of_all_layers_come_at_once(at: Places) -> None:
    (at.home / "config.toml").write_text("[server]\nprot = 1\n")
    (at.project / "omlx.toml").write_text("x =")
    (at.packaged / "models" / "a.toml").write_text("[server]\nport = 1\n")
    with pytest.raises(SettingsError) as caught:
        at.load(cli={"server.port": "70000"}, env={"OMLX_SERVER_HOST": " "}, profile="no")
    assert len(caught.value.problems) == 6
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_a_model_s_settings_come_from_the_most_specific_layer(at: Places) -> None:
    (at.project / "omlx.toml").write_text(
        "sampling.top_k = 1\n"
        "sampling.min_p = 0.1\n"
        "[model.'Smol*']\nsampling.temperature = 0.3\n"
        "[model.'*']\nsampling.temperature = 0.4\nsampling.top_p = 0.5\ncontext_window = 100\n"
    )
    (at.packaged / "models" / "smol.toml").write_text(
        "[model.'Smol*'.sampling]\npresence_penalty = 1\nfrequency_penalty = 1\n"
    )
    (at.model / "omlx.toml").write_text("sampling.presence_penalty = 2\ncontext_window = 50\n")
    (at.model / "generation_config.json").write_text(
        json.dumps({"temperature": 0.9, "repetition_penalty": 1.2, "top_k": 50, "do_sample": True})
    )
    resolved = at.load(cli={"sampling.top_k": 7})
    model = resolved.for_model("SmolLM2", at.model)
    assert model.sampling.top_k == 7
    assert model.sampling.temperature == 0.3
    assert model.sampling.top_p == 0.5
    assert model.sampling.min_p == 0.1
    assert model.sampling.presence_penalty == 2
    assert model.sampling.frequency_penalty == 1
    assert model.sampling.repetition_penalty == 1.2
    assert model.sampling.max_tokens is None
    assert model.context_window == 100
    assert str(model.origins["sampling.temperature"]) == "file omlx.toml:4"
    assert [item.value for item in model.shadowed["sampling.temperature"]] == [0.4, 0.9]
    assert "server.port" not in model.origins
    other = resolved.for_model("other", None)
    assert (other.sampling.temperature, other.sampling.presence_penalty) == (0.4, None)


def test_a_pattern_without_a_slash_matches_the_last_part_of_an_id(at: Places) -> None:
    (at.project / "omlx.toml").write_text("[model.'Smol*']\ncontext_window = 99\n")
    assert at.load().for_model("org/SmolLM2", None).context_window == 99
    assert at.load().for_model("org/smollm2", None).context_window is None


def test_what_is_done_to_prompts_and_counts_may_differ_by_model(at: Places) -> None:
    (at.project / "omlx.toml").write_text(
        "prompt.tool_order = false\nagent.scale_tokens = 'auto'\n"
        "[model.'Smol*']\nprompt.tool_order = true\nprompt.session_last = false\n"
        "agent.scale_tokens = 4000\n"
    )
    resolved = at.load(env={"OMLX_PROMPT_DROP_COUNTDOWN": "false"})
    model, other = (resolved.for_model(name, None) for name in ("SmolLM2", "other"))
    assert model.prompt == Prompt(drop_countdown=False, session_last=False)
    assert other.prompt == Prompt(drop_countdown=False, tool_order=False)
    assert (model.agent.scale_tokens, other.agent.scale_tokens) == (4000, "auto")
    (at.project / "omlx.toml").write_text("agent.scale_tokens = 10\nprompt.tool_ordre = true\n")
    with pytest.raises(SettingsError) as caught:
        at.load()
    assert "agent.scale_tokens" in str(caught.value)
    assert "did you mean" in str(caught.value)


def test_where_blocks_are_stored_may_differ_by_model(at: Places) -> None:
    (at.project / "omlx.toml").write_text(
        "cache.store = 'memory'\n[model.'Smol*']\ncache.store = 'off'\n"
    )
    resolved = at.load()
    assert resolved.for_model("SmolLM2", None).cache.store == "off"
    assert resolved.for_model("other", None).cache.store == "memory"
    (at.project / "omlx.toml").write_text("cache.store = 'disk'\n")
    with pytest.raises(SettingsError, match="omlx.toml:1: .*one of all, memory, off, got 'disk'"):
        at.load()


def test_a_model_that_does_not_sample_recommends_nothing(at: Places) -> None:
    text = json.dumps({"temperature": 0.9, "do_sample": False})
    (at.model / "generation_config.json").write_text(text)
    assert at.load().for_model("m", at.model).sampling.temperature is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "\0", "[" * 100_000, '{"temperature": "hot", "top_k": -1}']
)
def test_a_broken_generation_config_only_warns(at: Places, text: str) -> None:
    (at.model / "generation_config.json").write_text(text)
    model = at.load().for_model("m", at.model)
    assert model.sampling == Settings().sampling
    assert model.warnings


def test_a_wrong_file_beside_the_weights_is_an_error(at: Places) -> None:
    (at.model / "omlx.toml").write_text("\ncontext_windw = 1\n")
    with pytest.raises(SettingsError, match=r"omlx.toml:2: .*did you mean 'context_window'"):
        at.load().for_model("m", at.model)


def test_a_project_file_in_the_model_s_folder_is_read_once(at: Places) -> None:
    (at.project / "omlx.toml").write_text("server.port = 1\nsampling.top_k = 3\n")
    model = at.load().for_model("m", at.project)
    assert model.sampling.top_k == 3
    assert model.shadowed == {}


def test_home_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert home({"OMLX_HOME": "x", "HOME": "/h"}) == tmp_path / "x"
    assert home({"HOME": "/h"}) == Path("/h/.omlx")
    assert home({}) == Path.home() / ".omlx"
    with pytest.raises(SettingsError, match="OMLX_HOME"):
        load(env={"OMLX_HOME": "~nobody-of-that-name/x"}, cwd=tmp_path)


def test_a_home_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be read: Not a directory"):
        load(env={"OMLX_HOME": str(tmp_path / "file")}, cwd=tmp_path)


def test_the_profiles_that_come_with_omlx_load(tmp_path: Path) -> None:
    assert (data_dir("profiles") / "base.toml").is_file()
    resolved = load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path)
    assert resolved.settings == Settings()
    assert resolved.for_model("SmolLM2-135M-Instruct", None).sampling.temperature == 0.2


def test_settings_are_frozen_and_do_not_show_the_key(at: Places) -> None:
    resolved = at.load(cli={"server.api_key": "hush"})
    assert resolved.settings.server.api_key == "hush"
    assert "hush" not in repr(resolved.settings)
    with pytest.raises(FrozenInstanceError):
        resolved.settings.server.port = 1  # type: ignore[misc]
