"""Man pages, completions and reference pages: complete, fresh, and the same each time."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from omlx.cli.docs import comparison, costs
from omlx.cli.docs.commands import pages
from omlx.cli.docs.files import stale, texts, write
from omlx.cli.main import omlx
from omlx.settings.leaf import leaves

ROOT = Path(__file__).parents[3]
MADE = texts()


def test_every_command_has_a_man_page() -> None:
    expected = {f"man/{'-'.join(page.words)}.1" for page in pages(omlx)}
    assert expected == {place for place in MADE if place.startswith("man/")}
    assert {"man/omlx.1", "man/omlx-serve.1", "man/omlx-cache-inspect.1"} <= expected


def test_every_setting_is_in_the_references() -> None:
    for leaf in leaves().values():
        assert f"`{leaf.env}`" in MADE["docs/reference/settings.md"]
        assert leaf.flag in MADE["docs/reference/cli.md"]
        assert leaf.flag.replace("-", "\\-") in MADE["man/omlx-serve.1"]


def test_the_texts_are_the_same_each_time() -> None:
    assert texts() == MADE


def test_what_is_in_the_repository_is_fresh() -> None:
    assert stale(ROOT, MADE) == []


def test_writing_makes_changed_missing_and_extra_files_right(tmp_path: Path) -> None:
    made = {"man/a.1": "a\n", "docs/b.md": "b\n"}
    (tmp_path / "man").mkdir()
    (tmp_path / "man" / "a.1").write_text("old\n")
    (tmp_path / "man" / "gone.1").write_text("x\n")
    (tmp_path / "man" / "README").write_text("stays\n")
    assert stale(tmp_path, made) == ["docs/b.md", "man/a.1", "man/gone.1"]
    assert write(tmp_path, made) == ["docs/b.md", "man/a.1", "man/gone.1"]
    assert stale(tmp_path, made) == []
    assert sorted(path.name for path in (tmp_path / "man").iterdir()) == ["README", "a.1"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
@pytest.mark.parametrize("place", sorted(place for place in MADE if place.startswith("man/")))
def test_man_pages_have_no_roff_warnings(place: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-z"],
        input=MADE[place],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_bash_completion_is_bash() -> None:
    script = MADE["completions/omlx.bash"]
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_guide_has_the_measured_costs(tmp_path: Path) -> None:
    guide, result = tmp_path / costs.GUIDE, tmp_path / costs.RESULT
    guide.parent.mkdir(parents=True)
    result.parent.mkdir(parents=True)
    begin = "a\n<!-- made by scripts/gen: costs -->\n"
    guide.write_text(f"{begin}old\n<!-- end -->\nb\n")
    assert costs.guide_with_costs(tmp_path) == {}, "nothing was measured"
    turn = {"prompt": 12345, "cached": 12344, "uncached": 1, "new": 0}
    turns = [{"turn": "cold", **turn}, {"turn": "again", **turn}]
    agent = {"turns": turns, "peers": {"again": 7400}}
    result.write_text(json.dumps({"agents": {"pi": agent}}))
    made = costs.guide_with_costs(tmp_path)[costs.GUIDE]
    assert made.startswith(begin) and made.endswith("<!-- end -->\nb\n") and "old" not in made
    assert "| pi | 12,345 | 1 of 0 new (7,400) | - |" in made


def measured(name: str, of: str, unit: str, median: float, at_once: int = 1) -> dict[str, object]:
    label = {"process": "warm", "start": "miss", "concurrency": at_once}
    shared = {"name": name, "case": {"of": of}, "label": label}
    return {**shared, "side": "omlx", "unit": unit, "spread": {"median": median}}


def test_the_readme_has_the_measured_comparison(tmp_path: Path) -> None:
    readme, result = tmp_path / comparison.PAGE, tmp_path / comparison.RESULT
    result.parent.mkdir(parents=True)
    begin = "a\n<!-- made by scripts/gen: comparison -->\n"
    readme.write_text(f"{begin}old\n<!-- end -->\nb\n")
    assert comparison.readme_with_comparison(tmp_path) == {}, "nothing was measured"
    cold, rate = (
        measured("ttft", "cold", "s", 2.5),
        measured("rate", "streams", "tokens/s", 30.2, 2),
    )
    span = {"ratio": 1.25, "low95": 1.0, "high95": 33.0}
    document = {
        "model": "small", "options": {"rounds": 5, "head_tokens": 1024},
        "machine": {"system": "Linux x86_64", "cores": 2, "commit": "0123456789"},
        "sides": {"omlx": {"title": "omlx serve"}, "other": {"title": "Other", "version": "7.1"}},
        "measures": [cold, measured("ttft", "again", "s", 0.0212), rate],
        "ratios": [
            {**cold, "side": "other", "base": "omlx", **span},
            {**rate, "side": "omlx", "base": "other", **span, "ratio": 0.5, "high95": None},
        ],
    }  # fmt: skip
    result.write_text(json.dumps(document))
    made = comparison.readme_with_comparison(tmp_path)[comparison.PAGE]
    assert made.startswith(begin) and made.endswith("<!-- end -->\nb\n") and "old" not in made
    assert "| | omlx | Other 7.1 |" in made
    assert "| first token, nothing known | 2.50 s | 1.25× (1.00–33) |" in made
    assert "| the same prompt again | 21 ms | - |" in made
    assert "| 2 streams | 30.2 tokens/s | 0.50× |" in made
    assert "commit 0123456" in made and "5 rounds" in made
