"""Point 3: the admin page on the demo model in Chromium, kept as pictures in docs/bench/screens.

What it does by mouse and keyboard is in tests/e2e/test_page.py, which runs here as well.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from omlx.server.page.assets import FOLDER
from omlx.settings.keys import Scope, change_keys, new_key, with_key
from omlx.settings.leaf import leaves
from tests.acceptance.conftest import Figure
from tests.browser import DESKTOP, PHONE, Visit, browsing
from tests.e2e.test_page import SECTIONS, Keyed
from tests.live import REPOSITORY, chat

SCREENS = REPOSITORY / "docs" / "bench" / "screens"
LONG = "".join(f"{number} is followed by {number + 1}. " for number in range(250))
LANGUAGES = sorted(path.stem for path in (FOLDER / "locales").glob("*.json"))
_OF = re.compile(r"([\d,]+) of ([\d,]+) tokens")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    home = tmp_path_factory.mktemp("home")
    made, sent = new_key("boss", now=datetime.now(UTC), scope=Scope.ADMIN)
    change_keys(home / "keys.toml", with_key(made))
    yield home, sent


@pytest.fixture(scope="module")
def live(demo: Path, key: tuple[Path, str]) -> Iterator[Keyed]:
    home, sent = key
    args = ("--model-dir", str(demo.parent), "--default-model", demo.name)
    with Keyed(*args, "--cache-write-delay", "200ms", home=home, key=sent) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


def stream(live: Keyed, model: str, text: str, client: str) -> Iterator[bytes]:
    """A streamed answer to an agent; the request is sent with the first next."""
    body = {**chat(model, text, max_tokens=4), "stream": True}
    headers = {"Content-Type": "application/json", "User-Agent": client, **live.headers}
    with closing(live.connection(600)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield from response


def test_what_ci_runs(figure: Figure) -> None:
    """Signing in, a wrong key, models, requests, prune, settings, keys, languages, keyboard."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-m", "pytest", "-q", "tests/e2e/test_page.py"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().splitlines()[-1]
    figure(f"tests/e2e/test_page.py: {last.strip('= ')}")
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_prefill_moves(browser: Browser, live: Keyed, demo: Path, figure: Figure) -> None:
    """What the page shows of a long prompt at work, against what the server says of it."""
    with Visit(browser, f"http://127.0.0.1:{live.port}") as visit:
        visit.open().sign_in(live.headers["x-api-key"]).go("requests", "Requests")
        running = visit.page.get_by_role("table", name="Running")
        seen: list[tuple[int, int]] = []
        answer = stream(live, demo.name, LONG, "claude-cli/2.0")
        next(answer)
        stage = running.locator("[data-stage]")
        expect(running.locator("[data-stage=prefill]")).to_be_visible()
        while stage.count() and stage.first.get_attribute("data-stage") == "prefill":
            found = _OF.search(running.inner_text())
            if found:
                done, total = (int(text.replace(",", "")) for text in found.groups())
                seen.append((done, total))
            visit.page.wait_for_timeout(200)
        list(answer)
        expect(visit.page.get_by_text("No request runs now.")).to_be_visible()
    steps = sorted({done for done, _ in seen})
    assert len(steps) >= 2, "the bar did not move"
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len({total for _, total in seen}) == 1
    figure(f"a prefill of {seen[0][1]:,} tokens was seen at {len(steps)} places")


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_section_in_every_theme_and_width(
    browser: Browser, live: Keyed, figure: Figure, size: tuple[int, int], scheme: str
) -> None:
    """No serious or critical fault by axe, nothing wider than the window, and pictures of it."""
    name = "phone" if size == PHONE else "desktop"
    with Visit(browser, f"http://127.0.0.1:{live.port}", size=size, scheme=scheme) as visit:
        visit.open()
        expect(visit.page.locator("input[type=password]")).to_be_visible()
        assert visit.violations() == []
        visit.sign_in(live.headers["x-api-key"])
        for section, title in SECTIONS.items():
            visit.go(section, title).settled()
            visit.page.wait_for_timeout(500)
            assert visit.violations() == [], section
            assert visit.overflow() <= 0, section
            if section in ("status", "requests"):
                visit.picture(SCREENS / f"page-{section}-{name}-{scheme}.png")
    figure(f"{name}, {scheme}: {len(SECTIONS) + 1} pages, axe finds nothing serious")


def test_every_language(browser: Browser, live: Keyed, figure: Figure) -> None:
    """Each section in each language: no key and no placeholder is left, nothing is too wide."""
    with Visit(browser, f"http://127.0.0.1:{live.port}", size=PHONE) as visit:
        page = visit.open().sign_in(live.headers["x-api-key"]).page
        for language in LANGUAGES:
            words = json.loads((FOLDER / "locales" / f"{language}.json").read_text())
            page.locator("#language select").select_option(language)
            expect(page.locator("html")).to_have_attribute("lang", language)
            for section in SECTIONS:
                visit.go(section, words[f"section.{section}"]).settled()
                text = page.locator("body").inner_text()
                left = [one for one in words if one in text.split() and one not in leaves()]
                assert left == [] and not re.search(r"\{\w+\}", text), (language, section)
                assert visit.overflow() <= 0, (language, section)
    figure(f"{len(LANGUAGES)} languages, {len(SECTIONS)} sections each")


def test_the_policy(browser: Browser, live: Keyed, figure: Figure) -> None:
    """As a browser got it with the page."""
    with Visit(browser, f"http://127.0.0.1:{live.port}") as visit:
        answer = visit.page.goto(f"{visit.url}/admin")
        assert answer is not None
        policy = answer.header_value("content-security-policy") or ""
    assert "unsafe" not in policy and "default-src 'none'" in policy
    figure(policy)
