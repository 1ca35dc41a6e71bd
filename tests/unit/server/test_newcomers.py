"""Models that join a running server: their names, settings and profiles; who is not let in."""

from pathlib import Path

import pytest

from omlx.errors import ModelError
from omlx.models.locate import discover
from omlx.server.newcomers import Newcomers
from omlx.settings.build import load
from tests.fakes.engine import FakePool, ScriptedEngine
from tests.fakes.model_folder import write_model_folder


class Served:
    def __init__(self, home: Path, *folders: Path) -> None:
        found = discover(folders).models
        self.pool = FakePool(found, [ScriptedEngine(entry.id) for entry in found])
        self.settings = {}
        self.profiles = {}
        resolved = load(env={"OMLX_HOME": str(home)}, cwd=home)
        self.newcomers = Newcomers(resolved, self.pool, self.settings, self.profiles)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        '[model."late*"]\ncontext_window = 99\n[model."late*".profile.exact]\n'
        "sampling.temperature = 0.0\n"
    )
    return tmp_path / "home"


def test_it_gets_its_name_settings_and_profiles(tmp_path, home):
    served = Served(home, write_model_folder(tmp_path / "models", "first"))
    folder = write_model_folder(tmp_path / "models" / "org", "late")
    assert served.newcomers.take(str(folder)) == "late"
    assert [entry.id for entry in served.pool.models()] == ["first", "late"]
    assert served.settings["late"].context_window == 99
    assert served.settings["late:exact"].sampling.temperature == 0.0
    assert served.profiles == {"late": ["exact"]}


def test_one_that_is_served_already_stays(tmp_path, home):
    folder = write_model_folder(tmp_path / "models", "first")
    served = Served(home, folder)
    assert served.newcomers.take(str(folder)) == "first"
    assert len(served.pool.models()) == 1


def test_a_name_that_is_taken_gets_its_owners_before_it(tmp_path, home):
    served = Served(home, write_model_folder(tmp_path / "models", "same"))
    folder = write_model_folder(tmp_path / "models" / "org", "same")
    assert served.newcomers.take(str(folder)) == "org/same"
    again = write_model_folder(tmp_path / "others" / "org", "same")
    with pytest.raises(ModelError, match="another model"):
        served.newcomers.take(str(again))


def test_a_folder_without_a_model_is_none(tmp_path, home):
    served = Served(home, write_model_folder(tmp_path / "models", "first"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="there is no model in it"):
        served.newcomers.take(str(tmp_path / "empty"))
