"""Pulling from a hub: what is fetched, how it goes on after a break, what it refuses."""

import errno
import fcntl
import inspect
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import huggingface_hub.errors
import pytest

from omlx.errors import ModelError, OmlxError, UsageError
from omlx.models import hub as hub_module
from omlx.models.demo import Progress, Stage
from omlx.models.destination import Destination, HubCache, ModelFolder
from omlx.models.hub import Hub, Repo
from omlx.models.locate import PULL_RECORD, discover
from omlx.models.pull import Pulled, parse_repo, pull
from tests.fakes.hub import COMMIT, FakeHub, model_files, serving

NAME = "owner/small-model"
REPO = Repo(NAME)
WEIGHTS = "model.safetensors"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with serving(FakeHub(repos={NAME: model_files()})) as hub:
        yield hub
    huggingface_hub.close_session()


class Pulls:
    """Calls the pull and keeps what it reports and how long it would have waited."""

    def __init__(self, fake: FakeHub, models: Path) -> None:
        self.models = models
        self.destination: Destination = ModelFolder(models)
        self.fake = fake
        self.waits: list[float] = []
        self.seen: list[Progress] = []

    def __call__(self, repo: Repo = REPO, **options: object) -> Pulled:
        hub = Hub(self.fake.url, sleep=self.waits.append)
        return pull(repo, self.destination, hub=hub, progress=self.seen.append, **options)

    @property
    def target(self) -> Path:
        return self.models / NAME

    @property
    def staging(self) -> Path:
        return self.models / ".pull" / NAME.replace("/", "--")


@pytest.fixture
def pulls(fake: FakeHub, tmp_path: Path) -> Pulls:
    return Pulls(fake, tmp_path / "models")


def refusal(pulls: Pulls, repo: Repo = REPO, **options: object) -> OmlxError:
    with pytest.raises(OmlxError) as caught:
        pulls(repo, **options)
    assert not pulls.target.exists()
    assert not discover([pulls.models]).models
    return caught.value


def test_only_what_a_model_needs(fake: FakeHub, pulls: Pulls) -> None:
    fake.repos[NAME] |= {
        "modeling_own.py": b"import os",
        "pytorch_model.bin": b"x",
        "consolidated.safetensors": b"x",
        "onnx/model.safetensors": b"x",
        "chat_template.jinja": b"{{ x }}",
        "additional_chat_templates/tool_use.jinja": b"{{ y }}",
    }
    done = pulls()
    assert done.path == pulls.target and done.commit == COMMIT
    files = sorted(p.relative_to(done.path).as_posix() for p in done.path.rglob("*.*"))
    assert files == [
        PULL_RECORD,
        "additional_chat_templates/tool_use.jinja",
        "chat_template.jinja",
        "config.json",
        WEIGHTS,
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (done.path / WEIGHTS).read_bytes() == fake.repos[NAME][WEIGHTS]
    assert [entry.id for entry in discover([pulls.models]).models] == ["small-model"]
    assert not (pulls.models / ".pull").exists()
    assert done.fetched_bytes == pulls.seen[-1].done == pulls.seen[-1].total
    assert {p.stage for p in pulls.seen} == {Stage.DOWNLOAD}


def test_again_fetches_nothing(fake: FakeHub, pulls: Pulls) -> None:
    pulls()
    fake.requests.clear()
    assert pulls().fetched_bytes == 0
    assert len(fake.requests) == 1  # the listing


@pytest.mark.parametrize("at", [0, 1, 500_000])
def test_a_cut_connection_goes_on_at_its_byte(fake: FakeHub, pulls: Pulls, at: int) -> None:
    fake.cuts[WEIGHTS] = [at]
    done = pulls()
    assert (done.path / WEIGHTS).read_bytes() == fake.repos[NAME][WEIGHTS]
    ranges = fake.asked_for(WEIGHTS)
    assert len(ranges) == 2 and ranges[0] is None
    assert ranges[1] == (f"bytes={at}-" if at else None)


def test_many_cuts_are_survived_while_bytes_come(fake: FakeHub, pulls: Pulls) -> None:
    fake.cuts[WEIGHTS] = [50_000] * 12
    assert (pulls().path / WEIGHTS).read_bytes() == fake.repos[NAME][WEIGHTS]
    assert pulls.waits == []
    assert len(fake.asked_for(WEIGHTS)) == 13


def test_given_up_after_five_that_bring_nothing_and_taken_up_again(
    fake: FakeHub, pulls: Pulls
) -> None:
    fake.cuts[WEIGHTS] = [300_000, 0, 0, 0, 0, 0]
    error = refusal(pulls)
    assert "gave nothing 5 times in a row at byte 300,000 of 1,024,010" in error.message
    assert "kept" in error.hint
    assert pulls.waits == [2.0, 4.0, 8.0, 16.0]
    fake.requests.clear()
    done = pulls()
    assert fake.asked_for(WEIGHTS) == ["bytes=300000-"]
    assert fake.asked_for("config.json") == []
    assert done.fetched_bytes == 1_024_010 - 300_000
    assert (done.path / WEIGHTS).read_bytes() == fake.repos[NAME][WEIGHTS]


def test_ctrl_c_keeps_what_was_fetched(fake: FakeHub, pulls: Pulls) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done > 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(REPO, pulls.destination, hub=Hub(fake.url), progress=interrupt)
    assert not discover([pulls.models]).models
    fake.requests.clear()
    pulls()
    (asked,) = fake.asked_for(WEIGHTS)
    assert asked is not None and int(asked[6:-1]) > 300_000
    assert (pulls.target / WEIGHTS).read_bytes() == fake.repos[NAME][WEIGHTS]


def test_a_hub_that_ignores_ranges(fake: FakeHub, pulls: Pulls) -> None:
    fake.cuts[WEIGHTS] = [100_000]
    fake.ignores_ranges = True
    assert (pulls().path / WEIGHTS).read_bytes() == fake.repos[NAME][WEIGHTS]


def test_a_wrong_range_is_refused_and_begun_anew(fake: FakeHub, pulls: Pulls) -> None:
    fake.cuts[WEIGHTS] = [100_000]
    fake.wrong_ranges = True
    assert "another part" in refusal(pulls).message
    assert pulls().fetched_bytes == 1_024_010


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_trouble_that_passes(fake: FakeHub, pulls: Pulls, status: int) -> None:
    fake.statuses["api"] = [status]
    fake.statuses[WEIGHTS] = [status, status]
    fake.retry_after = "7"
    pulls()
    assert pulls.waits == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("status", [429, 500])
def test_trouble_that_stays(fake: FakeHub, pulls: Pulls, status: int) -> None:
    fake.statuses["api"] = [status] * 9
    error = refusal(pulls)
    assert f"{fake.url} answers with {status} when asked about {NAME}" in error.message
    assert len(fake.requests) == 5
    fake.statuses["api"] = []
    fake.statuses[WEIGHTS] = [status] * 9
    message = refusal(pulls).message
    assert "gave nothing 5 times" in message and f"it answers with {status}" in message


def test_a_model_that_is_not_there(fake: FakeHub, pulls: Pulls) -> None:
    error = refusal(pulls, Repo("owner/none"))
    assert error.message == f"there is no model owner/none at {fake.url}, or it is private"
    assert "HF_TOKEN" in error.hint


def test_a_revision_that_is_not_there(fake: FakeHub, pulls: Pulls) -> None:
    assert refusal(pulls, Repo(NAME, "v9")).message == f"{NAME} has no revision 'v9'"


def test_a_gated_model_needs_its_token(
    fake: FakeHub, pulls: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.gated.add(NAME)
    fake.token = "hf_right"
    error = refusal(pulls)
    assert "is gated" in error.message and f"{fake.url}/{NAME}" in error.hint
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    error = refusal(pulls)
    assert "(401)" in error.message and "hf_wrong" not in error.message + error.hint
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert pulls().path.exists()


def test_the_token_stays_with_the_hub(
    fake: FakeHub, pulls: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    with serving(FakeHub(repos=fake.repos)) as other:
        fake.cdn = other.url
        pulls()
    assert {token for _, _, token in fake.requests} == {"Bearer hf_right"}
    assert other.requests and {token for _, _, token in other.requests} == {None}


def test_nobody_answers(fake: FakeHub, pulls: Pulls) -> None:
    fake.url = "http://127.0.0.1:9"
    error = refusal(pulls)
    assert error.message.startswith("http://127.0.0.1:9 can't be reached: ")
    assert "HF_ENDPOINT" in error.hint
    assert len(pulls.waits) == 4


def test_offline(fake: FakeHub, pulls: Pulls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert refusal(pulls).message == "HF_HUB_OFFLINE forbids to ask the hub"


@pytest.mark.parametrize("body", [b"", b"[1]", b"<html>", b"{}", b'{"id": "x", "siblings": [{}]}'])
def test_answers_of_something_else(fake: FakeHub, pulls: Pulls, body: bytes) -> None:
    fake.api_body = body
    assert fake.url in refusal(pulls).message


def test_more_bytes_than_were_said(fake: FakeHub, pulls: Pulls) -> None:
    fake.sent[WEIGHTS] = fake.repos[NAME][WEIGHTS] + b"x"
    error = refusal(pulls)
    assert "sends more than the 1,024,010 bytes" in error.message


def test_fewer_bytes_than_were_said(fake: FakeHub, pulls: Pulls) -> None:
    fake.sent[WEIGHTS] = fake.repos[NAME][WEIGHTS][:-10]
    assert "is shorter at" in refusal(pulls).message
    fake.ignores_ranges = True
    message = refusal(pulls).message
    assert "at byte 1,024,000 of 1,024,010" in message and "too short" in message


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_bytes_that_were_changed_on_the_way(fake: FakeHub, pulls: Pulls, name: str) -> None:
    right = fake.repos[NAME][name]
    fake.sent[name] = bytes([right[0] ^ 1]) + right[1:]
    assert f"{name} is not what" in refusal(pulls).message
    fake.sent.clear()
    assert (pulls().path / name).read_bytes() == right


@pytest.mark.parametrize("size", [None, -1, "many"])
def test_sizes_that_are_none(fake: FakeHub, pulls: Pulls, size: object) -> None:
    fake.said_sizes["tokenizer.json"] = size
    assert "how large 'tokenizer.json' is" in refusal(pulls).message


@pytest.mark.parametrize(
    "name", ["../../evil.json", "/etc/evil.json", "a/../b.json", "a\\..\\b.json", "a\nb.json", "."]
)
def test_names_that_lead_elsewhere(fake: FakeHub, pulls: Pulls, tmp_path: Path, name: str) -> None:
    fake.repos[NAME][name] = b"{}"
    assert "which no honest one does" in refusal(pulls).message
    assert not list(tmp_path.rglob("*evil*"))
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({WEIGHTS: b"x"}, "no config.json"),
        ({"config.json": b"{}"}, "no model*.safetensors"),
        ({"config.json": b"{}", "m.gguf": b"", "p.bin": b""}, "(it has .bin, .gguf)"),
    ],
)
def test_repositories_of_other_things(
    fake: FakeHub, pulls: Pulls, files: dict[str, bytes], message: str
) -> None:
    fake.repos[NAME] = files
    assert message in refusal(pulls).message


def test_room_is_asked_for_first(fake: FakeHub, pulls: Pulls) -> None:
    error = refusal(pulls, free=lambda _: 64_000_000)
    sizes = [len(data) for name, data in fake.repos[NAME].items() if name != "README.md"]
    assert f"({64_000_000 + sum(sizes):,} bytes)" in error.message
    assert "64.0 MB (64,000,000 bytes) are free" in error.message
    assert fake.asked_for("config.json") == []
    pulls(free=lambda _: 66_000_000)


def test_what_is_there_needs_no_room(fake: FakeHub, pulls: Pulls) -> None:
    fake.cuts[WEIGHTS] = [1_000_000, 0, 0, 0, 0, 0]
    refusal(pulls)
    pulls(free=lambda _: 64_000_000 + 24_100)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up(
    fake: FakeHub, pulls: Pulls, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(fd: int) -> None:
        raise OSError(code, "full")

    with monkeypatch.context() as patched:
        patched.setattr(hub_module.os, "fsync", fail)
        error = refusal(pulls)
    assert f"the disk of {pulls.models} is full" in error.message
    assert "kept" in error.hint
    fake.requests.clear()
    pulls()
    assert fake.asked_for("config.json") == []


def test_a_disk_that_is_really_full(fake: FakeHub, pulls: Pulls) -> None:
    pulls.models.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(pulls.models)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("file systems can't be mounted here")
    try:
        error = refusal(pulls)
        assert "there is no room" in error.message
        assert "kB (524,288 bytes) are free" in error.message
        error = refusal(pulls, free=lambda _: 10**12)
        assert f"the disk of {pulls.models} is full" in error.message
        kept = sum(part.stat().st_size for part in pulls.staging.iterdir())
        assert kept > 400_000
        more = ["mount", "-o", "remount,size=4m", str(pulls.models)]
        subprocess.run(more, check=True)
        fake.requests.clear()
        pulls(free=lambda _: 10**12)
        (asked,) = fake.asked_for(WEIGHTS)
        assert asked is not None and int(asked[6:-1]) > 400_000
    finally:
        subprocess.run(["umount", str(pulls.models)], check=True)


def test_a_folder_that_cannot_be_written(fake: FakeHub, pulls: Pulls) -> None:
    pulls.models.write_text("a file")
    with pytest.raises(ModelError, match="can't be used"):
        pulls()


def test_a_newer_commit_takes_over_what_is_the_same(fake: FakeHub, pulls: Pulls) -> None:
    pulls()
    newer = COMMIT[::-1]
    fake.commits[NAME, "main"] = newer
    fake.repos[NAME] |= {"config.json": b'{"model_type": "llama", "new": 1}', "extra.json": b"{}"}
    del fake.repos[NAME]["tokenizer_config.json"]
    fake.requests.clear()
    done = pulls()
    assert done.commit == newer
    assert fake.asked_for(WEIGHTS) == []
    assert json.loads((done.path / "config.json").read_text())["new"] == 1
    assert (done.path / "extra.json").exists()
    assert not (done.path / "tokenizer_config.json").exists()
    assert (done.path / WEIGHTS).read_bytes() == fake.repos[NAME][WEIGHTS]
    assert not (pulls.models / ".pull").exists()


def test_what_the_user_put_beside_it_stays(fake: FakeHub, pulls: Pulls) -> None:
    pulls()
    (pulls.target / "omlx.toml").write_text("thinking = true")
    (pulls.target / "config.json").write_text('{"model_type": "llama", "edited": true}')
    assert pulls().fetched_bytes == 0
    assert "edited" in (pulls.target / "config.json").read_text()
    fake.commits[NAME, "main"] = COMMIT[::-1]
    pulls()
    assert (pulls.target / "omlx.toml").read_text() == "thinking = true"
    assert "edited" not in (pulls.target / "config.json").read_text()


def test_weights_that_lost_their_end_are_fetched_again(fake: FakeHub, pulls: Pulls) -> None:
    pulls()
    os.truncate(pulls.target / WEIGHTS, 1000)
    assert pulls().fetched_bytes == 1_024_010
    assert (pulls.target / WEIGHTS).read_bytes() == fake.repos[NAME][WEIGHTS]


def test_the_old_version_stays_while_the_new_one_fails(fake: FakeHub, pulls: Pulls) -> None:
    pulls()
    old = fake.repos[NAME][WEIGHTS]
    fake.commits[NAME, "main"] = COMMIT[::-1]
    fake.repos[NAME][WEIGHTS] = old[::-1]
    fake.cuts[WEIGHTS] = [1000, 0, 0, 0, 0, 0]
    with pytest.raises(ModelError):
        pulls()
    assert (pulls.target / WEIGHTS).read_bytes() == old
    pulls()
    assert (pulls.target / WEIGHTS).read_bytes() == old[::-1]


def test_a_part_of_another_commit_is_not_gone_on_with(fake: FakeHub, pulls: Pulls) -> None:
    fake.cuts[WEIGHTS] = [1000, 0, 0, 0, 0, 0]
    refusal(pulls)
    fake.commits[NAME, "main"] = COMMIT[::-1]
    fake.repos[NAME][WEIGHTS] = fake.repos[NAME][WEIGHTS][::-1]
    fake.requests.clear()
    pulls()
    assert fake.asked_for(WEIGHTS) == [None]


def test_a_revision(fake: FakeHub, pulls: Pulls) -> None:
    fake.commits[NAME, "v1.0"] = "f" * 40
    fake.commits[NAME, "f" * 40] = "f" * 40
    assert pulls(Repo(NAME, "v1.0")).commit == "f" * 40
    assert json.loads((pulls.target / PULL_RECORD).read_text())["revision"] == "v1.0"


def test_a_folder_of_the_users_own_is_left_alone(fake: FakeHub, pulls: Pulls) -> None:
    pulls.target.mkdir(parents=True)
    (pulls.target / "mine").write_text("x")
    with pytest.raises(ModelError, match="is in the way"):
        pulls()
    assert (pulls.target / "mine").read_text() == "x"


def test_two_pulls_of_one_model(fake: FakeHub, pulls: Pulls) -> None:
    pulls.staging.mkdir(parents=True)
    with pulls.staging.with_name(f"{pulls.staging.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another omlx gets" in refusal(pulls).message
    pulls()


def test_the_config_is_looked_at_before_the_weights(fake: FakeHub, pulls: Pulls) -> None:
    def refuse(config: object) -> None:
        raise ModelError("unknown architecture")

    assert refusal(pulls, check_config=refuse).message == "unknown architecture"
    assert fake.asked_for(WEIGHTS) == []


@pytest.mark.parametrize(
    "text",
    ["", "name", "a/b/c", "../b", "a/..", "a/b--c", "-a/b", "a/.b", "https://x/y", "a/b@", "a/b@..",
     "a/b@x y", "a b/c", "a/" + "b" * 97, "a/b@/etc"],
)  # fmt: skip
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_repo(text)


def test_names() -> None:
    assert parse_repo("Org-1/Qwen3-0.6B_4bit") == Repo("Org-1/Qwen3-0.6B_4bit")
    assert parse_repo("o/n@refs/pr/1") == Repo("o/n", "refs/pr/1")
    assert str(parse_repo("o/n@v1")) == "o/n@v1"


def test_a_model_is_never_seen_half(fake: FakeHub, pulls: Pulls) -> None:
    """Looked at with every report, so at every piece of every file."""
    found: list[int] = []

    def look(progress: Progress) -> None:
        found.append(len(discover([pulls.models]).models))

    fake.repos[NAME]["model-2.safetensors"] = os.urandom(300_000)
    pull(REPO, pulls.destination, hub=Hub(fake.url), progress=look)
    assert len(found) > 8 and set(found) == {0}
    assert len(discover([pulls.models]).models) == 1


def test_contract_with_the_hubs_library() -> None:
    """What `hub` relies on beyond the documented: the base of its errors is that of transport."""
    base = huggingface_hub.errors.HfHubHTTPError.__mro__[1]
    assert base.__name__ == "HTTPError" and not issubclass(base, OSError)
    names = inspect.signature(huggingface_hub.HfApi.model_info).parameters
    assert {"revision", "files_metadata", "timeout"} <= set(names)


@pytest.fixture
def cached(fake: FakeHub, tmp_path: Path) -> Pulls:
    pulls = Pulls(fake, tmp_path / "hub")
    pulls.destination = HubCache(pulls.models)
    return pulls


def test_into_the_hub_cache(fake: FakeHub, cached: Pulls) -> None:
    fake.repos[NAME]["additional_chat_templates/t.jinja"] = b"{{ y }}"
    done = cached()
    folder = cached.models / "models--owner--small-model"
    assert done.path == folder / "snapshots" / COMMIT
    assert (folder / "refs" / "main").read_text() == COMMIT
    for name in (WEIGHTS, "config.json", "additional_chat_templates/t.jinja"):
        assert (done.path / name).is_symlink()
        assert (done.path / name).read_bytes() == fake.repos[NAME][name]
        assert (done.path / name).resolve().parent == folder / "blobs"
    (entry,) = discover([], hub_cache=cached.models).models
    assert (entry.id, entry.revision) == ("small-model", COMMIT)
    assert not (cached.models / ".pull").exists()
    assert cached().fetched_bytes == 0
    from_library = huggingface_hub.try_to_load_from_cache(NAME, WEIGHTS, cache_dir=cached.models)
    assert from_library == str(done.path / WEIGHTS)


def test_into_the_hub_cache_in_two_tries(fake: FakeHub, cached: Pulls) -> None:
    fake.cuts[WEIGHTS] = [300_000, 0, 0, 0, 0, 0]
    with pytest.raises(ModelError, match="gave nothing"):
        cached()
    assert not discover([], hub_cache=cached.models).models
    assert not (cached.models / "models--owner--small-model").exists()
    fake.requests.clear()
    cached()
    assert fake.asked_for(WEIGHTS) == ["bytes=300000-"]
    assert len(discover([], hub_cache=cached.models).models) == 1


def test_a_snapshot_that_another_tool_has_begun(fake: FakeHub, cached: Pulls) -> None:
    snapshot = cached.models / "models--owner--small-model" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "README.md").write_text("theirs")
    (snapshot / "config.json").symlink_to("../../blobs/gone")
    done = cached()
    assert (done.path / "README.md").read_text() == "theirs"
    assert (done.path / "config.json").read_bytes() == fake.repos[NAME]["config.json"]


def test_the_hub_cache_by_revision(fake: FakeHub, cached: Pulls) -> None:
    fake.commits[NAME, "v1.0"] = "f" * 40
    fake.commits[NAME, "f" * 40] = "f" * 40
    cached()
    cached(Repo(NAME, "v1.0"))
    refs = cached.models / "models--owner--small-model" / "refs"
    assert {ref.name: ref.read_text() for ref in refs.iterdir()} == {
        "main": COMMIT,
        "v1.0": "f" * 40,
    }
    # Both commits have the same four files, and two of those the same content.
    assert len([*(refs.parent / "blobs").iterdir()]) == 3
