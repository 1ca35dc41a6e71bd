"""`omlx cache inspect` and `omlx cache prune` over a store of real files."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.storage.fs import RealFileSystem
from tests.fakes.blocks import OTHER_ROOT, ROOT, Clock, Shelf, make_block, make_chain
from tests.fakes.http import JsonServer
from tests.unit.cli.conftest import Cli

CHAIN = make_chain(3)
TAIL = make_block(CHAIN[2].key.name, 5, count=2)
OTHERS = make_chain(2, root=OTHER_ROOT, seed=1)
DAY = 86_400.0
STATUS = {
    "version": "0.1.0",
    "models": [
        {
            "id": "tiny",
            "state": "ready",
            "memory": {"blocks": 2, "bytes": 3000, "budget_bytes": 4000},
            "disk": {"blocks": 6, "bytes": 3000, "budget_bytes": 9000},
            "counters": {
                "prompt_tokens": 1000,
                "cached_memory_tokens": 700,
                "cached_disk_tokens": 50,
                "bad": {"checksum": 1},
            },
        }
    ],
}


@pytest.fixture
def store(home: Path) -> Path:
    """Three blocks and a tail of one root, ten days old; two blocks of another, new; bad files."""
    directory = home / "cache"
    directory.mkdir(parents=True)
    directory.chmod(0o700)
    fs, now = RealFileSystem(), time.time()
    old = Shelf(fs, Clock(now - 10 * DAY), directory=directory, root=ROOT)
    new = Shelf(fs, Clock(now), directory=directory, root=OTHER_ROOT)
    for shelf, blocks in ((old, (*CHAIN, TAIL)), (new, OTHERS)):
        for block in blocks:
            shelf.put(block)
    for block in (*CHAIN, TAIL):
        os.utime(block.path(ROOT, directory), (now - 10 * DAY, now - 10 * DAY))
    OTHERS[1].path(OTHER_ROOT, directory).write_bytes(b"")
    (directory / "notes.txt").write_text("mine")
    return directory


@pytest.fixture
def server(home: Path) -> Iterator[JsonServer]:
    """A server that runs, as its state file says."""
    with JsonServer({"/admin/api/status": STATUS}) as fake:
        (home / "state").mkdir(parents=True)
        state = {"pid": os.getpid(), "address": fake.address, "version": "0.1.0"}
        (home / "state" / f"server-{fake.port}.json").write_text(json.dumps(state))
        yield fake


def test_an_empty_cache(cli: Cli, home: Path) -> None:
    outcome = cli("cache", "inspect")
    assert outcome.out == f"cache in {home}/cache\n\ntotal  0 B in 0 models\n"
    assert outcome.err.startswith("note: no server is running")
    assert not home.exists()


def test_inspect_without_a_server(cli: Cli, store: Path) -> None:
    outcome = cli("cache", "inspect")
    assert outcome.code == 0
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == f"cache in {store}"
    assert "tiny" in lines
    assert lines[3].startswith("disk 5 blocks (1 tail), 18 tokens, ")
    assert lines[4] == "last used 0 ms ago (newest), 10d 0h ago (oldest)" or lines[4].endswith(
        "10d 0h ago (oldest)"
    )
    assert "bad files empty 1" in lines
    assert "not of omlx 1 file, 4 B" in lines
    assert "note: no server is running" in outcome.err


def test_inspect_json_without_a_server(cli: Cli, store: Path) -> None:
    report = json.loads(cli("cache", "inspect", "--json").out)
    (model,) = report["models"]
    assert model["model"] == "tiny"
    assert (model["disk"]["blocks"], model["disk"]["tails"]) == (5, 1)
    assert model["disk"]["tokens"] == 18
    assert model["disk"]["bad"] == {"empty": 1}
    assert model["memory"] is model["hits"] is None
    assert {root["blocks"] for root in model["disk"]["roots"]} == {4, 1}
    assert report["unknown"] == {"files": 1, "bytes": 4}
    assert report["servers"] == []


def test_lossy_blocks_are_labelled(cli: Cli, store: Path) -> None:
    root16 = ROOT.hex()[:16]
    described = store / "blocks" / root16 / "root.json"
    content = json.loads(described.read_text())
    content["layout"] = {**content.get("layout", {}), "form": "8 bits, lossy"}
    described.write_text(json.dumps(content))
    lines = [" ".join(line.split()) for line in cli("cache", "inspect").out.splitlines()]
    assert f"form {root16} 8 bits, lossy" in lines
    report = json.loads(cli("cache", "inspect", "--json").out)
    forms = {root["root"]: root["form"] for root in report["models"][0]["disk"]["roots"]}
    assert forms == {root16: "8 bits, lossy", OTHER_ROOT.hex()[:16]: None}


def test_inspect_beside_a_server(cli: Cli, store: Path, server: JsonServer) -> None:
    outcome = cli("cache", "inspect")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "memory 2 blocks, 3.0 kB of 4.0 kB" in lines
    assert "hits 75.0 % of 1,000 prompt tokens: 700 from memory, 50 from disk" in lines
    assert "bad, dropped checksum 1" in lines
    assert outcome.err == ""
    report = json.loads(cli("cache", "inspect", "--json").out)
    (model,) = report["models"]
    assert model["hits"] == {"prompt_tokens": 1000, "memory_tokens": 700, "disk_tokens": 50}
    assert model["memory"]["blocks"] == 2
    assert model["dropped_bad"] == {"checksum": 1}
    assert [one["address"] for one in report["servers"]] == [server.address]


def test_the_api_key_of_the_settings_is_sent(
    cli: Cli, store: Path, server: JsonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.api_key = "hush"
    refused = cli("cache", "inspect")
    assert "asks for an API key" in refused.err
    monkeypatch.setenv("OMLX_SERVER_API_KEY", "hush")
    assert "75.0 %" in cli("cache", "inspect").out


def test_a_server_of_another_cache_is_left_out(
    cli: Cli, store: Path, server: JsonServer, home: Path
) -> None:
    (state,) = (home / "state").iterdir()
    said = json.loads(state.read_text())
    state.write_text(json.dumps({**said, "cache_dir": str(home / "elsewhere")}))
    assert "hits" not in cli("cache", "inspect").out
    state.write_text(json.dumps({**said, "cache_dir": str(store)}))
    assert "hits" in cli("cache", "inspect").out


def test_a_cache_folder_that_is_a_file_is_an_error(cli: Cli) -> None:
    Path("file").write_text("")
    for command in (["inspect"], ["prune", "--all"]):
        outcome = cli("cache", *command, "--cache-dir", "file")
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.startswith(f"error: the cache folder {Path.cwd()}/file cannot be read")


def _blocks(store: Path) -> int:
    return len(list(store.glob("blocks/*/*/*.safetensors")))


def test_prune_by_age(cli: Cli, store: Path) -> None:
    dry = cli("cache", "prune", "--older-than", "9d", "--dry-run")
    assert "would drop" in dry.out
    assert _blocks(store) == 6
    outcome = cli("cache", "prune", "--older-than", "9d")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1].startswith("dropped ")
    assert _blocks(store) == 2
    assert cli("cache", "prune", "--older-than", "9d").out == "nothing to drop\n"


def test_prune_all_leaves_foreign_files(cli: Cli, store: Path) -> None:
    report = json.loads(cli("cache", "prune", "--all", "--json").out)
    assert report["dry_run"] is False
    assert report["dropped"]["files"] == report["planned"]["files"] == len(report["files"])
    assert _blocks(store) == 0
    assert (store / "notes.txt").read_text() == "mine"


def test_prune_to_a_size(cli: Cli, store: Path) -> None:
    assert cli("cache", "prune", "--max-size", "1GB").out == "nothing to drop\n"
    report = json.loads(cli("cache", "prune", "--max-size", "9kB", "--json", "--dry-run").out)
    assert report["dropped"] is None
    assert report["planned"]["bytes"] > 0
    assert report["models"][0]["model"] == "tiny"
    assert _blocks(store) == 6


def test_prune_one_model(cli: Cli, store: Path) -> None:
    unknown = cli("cache", "prune", "--model", "tinny")
    assert unknown.code == 2
    assert unknown.err.startswith("error: no blocks of 'tinny' in ")
    assert "(did you mean 'tiny'?)" in unknown.err
    assert cli("cache", "prune", "--model", "tiny").code == 0
    assert _blocks(store) == 0


def test_a_name_that_a_terminal_would_act_on(cli: Cli, store: Path, server: JsonServer) -> None:
    """It is shown without that, and as it is in JSON; the server's figures are still its own."""
    name = "evil\x1b]2;owned\x07\x1b[31m"
    for path in (store / "blocks").glob("*/root.json"):
        told = json.loads(path.read_text())
        if told.get("model") == "tiny":
            path.write_text(json.dumps({**told, "model": name}))
    status = json.loads(json.dumps(STATUS))
    status["models"][0]["id"] = name
    server.answers = {"/admin/api/status": status}
    text = cli("cache", "inspect").out
    assert text.count("evil") == 1 and "\x1b" not in text and "\x07" not in text
    assert "700 from memory" in text
    shown = json.loads(cli("cache", "inspect", "--json").out)["models"]
    assert name in [one["model"] for one in shown]
    text = cli("cache", "prune", "--model", name, "--dry-run").out
    assert "evil" in text and "\x1b" not in text and "\x07" not in text
