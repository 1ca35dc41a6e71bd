"""The files of services: what is written comes back, whatever is in paths and options."""

import plistlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.errors import ServerError
from omlx.launch.service.plist import plist_bytes, read_plist
from omlx.launch.service.seal import is_sealed, sealed
from omlx.launch.service.spec import Spec, spec_of
from omlx.launch.service.unit import quoted, read_unit, unit_text, words_of
from omlx.settings.build import load

ODD = "/tmp/a b%h$HOME\"q's\\x;#é"
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
# Kinds that launchd.plist(5) gives for the keys that are used.
KINDS = {
    "Label": str, "ProgramArguments": list, "WorkingDirectory": str, "EnvironmentVariables": dict,
    "RunAtLoad": bool, "KeepAlive": dict, "ThrottleInterval": int, "ExitTimeOut": int,
    "ProcessType": str, "SoftResourceLimits": dict, "StandardOutPath": str,
    "StandardErrorPath": str, "Umask": int,
}  # fmt: skip


def spec(home: str = ODD, *arguments: str) -> Spec:
    return Spec(
        program=(f"{home}/bin/python", "-m", "omlx"),
        arguments=arguments or (f"--model-dir={home}", "--port=1"),
        home=Path(home),
        output=Path(home) / "logs" / "service.log",
        stop_s=25.4,
        environment={"OMLX_HOME": home, "PATH": "/bin:/x y"},
    )


@given(st.lists(TEXTS, min_size=1))
def test_words_come_back_from_a_unit(words: list[str]) -> None:
    assert words_of(" ".join(map(quoted, words))) == tuple(words)


@given(TEXTS)
def test_no_word_ends_its_line_or_is_expanded(word: str) -> None:
    shown = quoted(word)
    assert not any(ord(char) < 32 or ord(char) == 127 for char in shown)
    assert "%" not in shown.replace("%%", "")


def test_a_unit_says_what_it_was_made_of() -> None:
    said = read_unit(unit_text(spec(), version=None))
    assert said.words == spec().words
    assert said.environment == spec().environment
    assert (said.home, said.output) == (Path(ODD), spec().output)
    assert said.program == f"{ODD}/bin/python"
    assert said.arguments == (f"--model-dir={ODD}", "--port=1")


def test_a_unit_starts_again_after_failures_only_and_not_for_ever() -> None:
    lines = unit_text(spec(), version=None).splitlines()
    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "KillMode=mixed"} <= {*lines}
    assert "StartLimitBurst=8" in lines and "TimeoutStopSec=25s" in lines
    assert {"RestartSec=2s", "RestartSteps=6", "RestartMaxDelaySec=2min"} <= {*lines}


def test_an_old_systemd_gets_only_what_it_knows() -> None:
    lines = unit_text(spec(), version=252).splitlines()
    assert "RestartSec=15s" in lines and not any("Steps" in line for line in lines)
    # Eight starts, 15 s apart, must fall into the interval, else they never end.
    assert "StartLimitIntervalSec=5min" in lines and 8 * 15 < 5 * 60


@pytest.mark.parametrize("home", ["/a\nb", "/a ", "/a\\", "/a\x7fb"])
def test_a_folder_that_no_unit_can_name_is_refused(home: str) -> None:
    with pytest.raises(ServerError, match="can't be written in a unit file"):
        unit_text(spec(home), version=None)


def test_a_word_with_nul_is_refused() -> None:
    with pytest.raises(ServerError, match="can't be written") as caught:
        quoted("a\0b")
    assert "NUL" in caught.value.hint


def test_a_plist_says_what_it_was_made_of() -> None:
    said = read_plist(plist_bytes(spec()))
    assert said.words == spec().words
    assert said.environment == spec().environment
    assert (said.home, said.output) == (Path(ODD), spec().output)


def test_the_keys_of_a_plist_are_those_of_launchd() -> None:
    tree = plistlib.loads(plist_bytes(spec()))
    assert {key: type(value) for key, value in tree.items()} == KINDS
    assert tree["KeepAlive"] == {"SuccessfulExit": False}
    assert tree["ThrottleInterval"] >= 10  # what launchd itself waits
    assert (tree["Umask"], tree["ExitTimeOut"]) == (0o077, 25)


def test_a_plist_can_hold_no_control_characters() -> None:
    with pytest.raises(ServerError, match="property list"):
        plist_bytes(spec("/a\x01b"))


@pytest.mark.parametrize(
    "data", [b"", b"no", b"<?xml version='1.0'?><a/>", b"bplist00", plistlib.dumps([1])]
)
def test_what_is_no_plist_says_nothing(data: bytes) -> None:
    assert read_plist(data).words == () and read_plist(data).home is None


@pytest.mark.parametrize("data", [unit_text(spec(), version=None).encode(), plist_bytes(spec())])
def test_a_file_that_was_edited_is_known(data: bytes) -> None:
    written = sealed(data)
    assert is_sealed(written)
    assert not is_sealed(data)
    assert not is_sealed(written.replace(b"serve", b"sErve"))
    assert not is_sealed(written + b"\n# more\n")
    assert read_plist(written).words == read_plist(data).words  # the mark is a comment


def test_a_service_gets_its_places_and_nothing_else_of_the_terminal(tmp_path: Path) -> None:
    resolved = load(cli={"server.port": "8123"}, env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path)
    env = {"PATH": "/bin", "OMLX_SERVER_API_KEY": "hush", "SECRET": "hush", "HF_HOME": "/hf"}
    made = spec_of(("--port=8123",), resolved, env)
    assert made.environment["OMLX_HOME"] == str(tmp_path)
    assert made.environment["OMLX_LOG_FILE"] == str(tmp_path / "logs" / "serve-8123.log")
    assert made.environment["PATH"] == "/bin" and made.environment["HF_HOME"] == "/hf"
    assert "hush" not in str(made)
    assert made.stop_s > resolved.settings.server.drain_timeout
