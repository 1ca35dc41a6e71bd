"""The admin page of the real server in Chromium: by mouse, by keyboard alone, and by axe."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from omlx.settings.keys import Scope, change_keys, new_key, with_key
from tests import models
from tests.browser import PHONE, Visit, browsing, texts
from tests.fakes.hub import FakeHub, model_files, serving
from tests.live import Live, chat, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.chromium]
HOSTILE = "<img src=x onerror=alert(document.domain)>"
SECTIONS = {
    "status": "Status", "requests": "Requests", "models": "Models", "cache": "Cache",
    "settings": "Settings", "keys": "API keys", "clients": "Clients", "logs": "Log",
}  # fmt: skip
LONG = "".join(f"{number} is followed by {number + 1}. " for number in range(150))


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub(repos={"org/name": model_files()})) as hub:
        yield hub


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def key(home: Path) -> str:
    made, sent = new_key("boss", now=datetime.now(UTC), scope=Scope.ADMIN)
    change_keys(home / "keys.toml", with_key(made))
    return sent


@pytest.fixture(scope="module")
def live(
    tmp_path_factory: pytest.TempPathFactory, home: Path, key: str, hub: FakeHub
) -> Iterator[Live]:
    """A server of two models, one of which has a name that means harm."""
    folder = tmp_path_factory.mktemp("models")
    tiny = models.tiny_served_model(folder)
    shutil.copytree(tiny, folder / HOSTILE)
    before = os.environ.get("HF_ENDPOINT")
    os.environ["HF_ENDPOINT"] = hub.url
    try:
        args = ("--model-dir", str(folder), "--default-model", "tiny", "--no-spare")
        more = ("--cache-write-delay", "100ms", "--cache-min-free", "0", "--cache-load", "always")
        with Keyed(*args, *more, home=home, key=key) as server:
            yield server
    finally:
        if before is None:
            del os.environ["HF_ENDPOINT"]
        else:
            os.environ["HF_ENDPOINT"] = before


class Keyed(Live):
    """Asks with a key."""

    def __init__(self, *args: str, home: Path, key: str) -> None:
        self.headers = {"x-api-key": key}
        super().__init__(*args, home=home)

    def get(self, path: str) -> object:
        with closing(self.connection()) as connection:
            connection.request("GET", path, headers=self.headers)
            return json.loads(connection.getresponse().read())

    def ask(self, text: str, **changed: int) -> None:
        code, answer = self.post(
            "/v1/chat/completions", chat("tiny", text, **changed), self.headers
        )
        assert code == 200, answer


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, live: Live, key: str) -> Iterator[Visit]:
    with Visit(browser, f"http://127.0.0.1:{live.port}") as visit:
        visit.open().sign_in(key)
        yield visit


def test_a_wrong_key_is_told_and_the_right_one_opens(
    browser: Browser, live: Live, key: str
) -> None:
    with Visit(browser, f"http://127.0.0.1:{live.port}") as visit:
        page = visit.open().page
        field = page.get_by_label("Admin key")
        expect(field).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_text("Enter a key.")).to_be_visible()
        field.fill("sk-wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("This is no key of this server.")).to_be_visible()
        assert field.get_attribute("aria-invalid") == "true"
        visit.sign_in(key)
        expect(page.get_by_role("heading", name="Status", level=1)).to_be_visible()
        assert key not in page.content()
        (cookie,) = visit.context.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["path"] == "/admin"
        page.reload()
        expect(page.get_by_role("heading", name="Status", level=1)).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(field).to_be_focused()
        visit.context.add_cookies([cookie])
        page.reload()
        expect(field).to_be_visible()


def test_a_model_is_loaded_pinned_and_unloaded(visit: Visit) -> None:
    visit.go("models", "Models")
    page = visit.page
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=HOSTILE))
    expect(row).to_contain_text("unloaded")
    load = page.get_by_role("button", name=f"Load {HOSTILE}", exact=True)
    load.focus()
    page.keyboard.press("Enter")
    expect(row.locator("[data-state=ready]")).to_be_visible()
    expect(load).to_be_focused()
    assert load.get_attribute("aria-disabled") == "true"
    page.get_by_role("button", name=f"Pin {HOSTILE}").click()
    expect(row).to_contain_text("pinned")
    page.get_by_role("button", name=f"Unload {HOSTILE}").click()
    expect(row.locator("[data-state=unloaded]")).to_be_visible()
    visit.said("unloaded")


def test_a_model_is_fetched_and_served(visit: Visit, hub: FakeHub) -> None:
    visit.go("models", "Models")
    page = visit.page
    name = page.get_by_label("Model on the hub")
    name.fill("no name")
    page.keyboard.press("Enter")
    expect(page.get_by_text("names no model")).to_be_visible()
    assert name.get_attribute("aria-invalid") == "true"
    hub.pauses["model.safetensors"] = 0.3
    name.fill("org/name")
    page.keyboard.press("Enter")
    row = page.get_by_role("row").filter(has_text="org/name").first
    expect(row).to_contain_text("running: download")
    page.get_by_role("button", name="Cancel the pull of org/name").click()
    expect(row).to_contain_text("cancelled")
    hub.pauses.clear()
    name.fill("org/name")
    page.keyboard.press("Enter")
    expect(page.get_by_text("served as name")).to_be_visible()
    expect(page.get_by_role("button", name="Load name", exact=True)).to_be_visible()


def test_a_request_is_watched_to_its_end_and_explained(visit: Visit, live: Keyed) -> None:
    live.ask(f"A {LONG}")
    visit.go("requests", "Requests")
    page = visit.page
    body = {**chat("tiny", f"B {LONG}", max_tokens=6000), "stream": True}
    with closing(live.connection()) as connection:
        headers = {"Content-Type": "application/json", **live.headers}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        running = page.get_by_role("table", name="Running")
        expect(running.locator("[data-stage=decode]")).to_be_visible()
        expect(running).to_contain_text("generated")
    expect(page.get_by_text("No request runs now.")).to_be_visible()
    why = page.get_by_role("button", name="Why did the request of").first
    why.click()
    dialog = page.get_by_role("dialog", name="Why this request missed")
    expect(dialog).to_contain_text("prompt tokens:")
    expect(dialog.get_by_role("table", name="Tokens by part")).to_be_visible()
    assert "is followed by" not in dialog.inner_text()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(why).to_be_focused()
    visit.go("status", "Status")
    assert len(texts(visit, ".card .big")) == 3
    expect(page.get_by_role("img", name="Hit rate of")).to_be_visible()
    expect(page.locator(".badge[data-verdict]").first).to_be_visible()


def test_the_cache_is_pruned(visit: Visit, live: Keyed) -> None:
    live.ask(f"Store this: {LONG}")
    wait_until(lambda: live.is_written())
    visit.go("cache", "Cache")
    page = visit.page
    page.get_by_label("Leave at most").fill("much")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".error", has_text="much")).to_be_visible()
    page.get_by_label("Leave at most").fill("")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Files that would go:")).to_have_count(2)
    page.get_by_role("button", name="Prune", exact=True).click()
    dialog = page.get_by_role("dialog", name="Prune the disk tier")
    dialog.get_by_role("button", name="Cancel").click()
    folder = live.home / "cache"
    assert list(folder.rglob("*.safetensors"))
    page.get_by_role("button", name="Prune", exact=True).click()
    dialog.get_by_role("button", name="Prune").click()
    visit.said("Files dropped:")
    assert not list(folder.rglob("*.safetensors"))


def test_a_setting_is_changed(visit: Visit, live: Live) -> None:
    visit.go("settings", "Settings")
    page = visit.page
    page.get_by_label("Filter settings").fill("cache.max_size")
    expect(page.get_by_text("Settings shown: 1")).to_be_visible()
    page.get_by_role("button", name="Edit cache.max_size").click()
    value = page.get_by_label("New value of cache.max_size")
    expect(value).to_be_focused()
    value.fill("a lot")
    page.keyboard.press("Enter")
    expect(page.locator(".error", has_text="a lot")).to_be_visible()
    assert not (live.home / "config.toml").exists()
    value.fill("8GB")
    page.keyboard.press("Enter")
    visit.said("cache.max_size is 8GB from the next start on.")
    expect(page.get_by_text("These wait for the next start")).to_contain_text("cache.max_size")
    assert 'max_size = "8GB"' in (live.home / "config.toml").read_text()
    page.get_by_role("button", name="Edit cache.max_size").click()
    page.get_by_role("button", name="Remove from file").click()
    expect(page.get_by_text("These wait for the next start")).to_be_hidden()
    assert "8GB" not in (live.home / "config.toml").read_text()
    page.get_by_label("Filter settings").fill("cache.write_delay")
    expect(page.locator(".setting:visible")).to_contain_text("flag")
    page.get_by_label("Filter settings").fill("server.api_key")
    expect(page.get_by_role("button", name="Edit server.api_key")).to_have_count(0)


def test_a_key_is_made_shown_once_and_revoked(visit: Visit, browser: Browser, live: Live) -> None:
    visit.go("keys", "API keys")
    page = visit.page
    page.get_by_label("Name").fill("no name")
    page.get_by_role("button", name="Create key").click()
    expect(page.locator(".error", has_text="name").first).to_be_visible()
    page.get_by_label("Name").fill("second")
    page.get_by_label("Scope").select_option("admin")
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog", name="The key second")
    sent = dialog.locator(".secret").inner_text()
    assert sent.startswith("omlx-")
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator("dialog")).to_have_count(0)
    assert sent not in page.content()
    with Visit(browser, visit.url) as other:
        other.open().sign_in(sent)
        page.get_by_role("button", name="Revoke second").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        visit.said("second is revoked.")
        expect(other.page.get_by_label("Admin key")).to_be_visible()
        other.said("The session has ended.")


def test_a_client_has_its_recipe(visit: Visit) -> None:
    visit.go("clients", "Clients")
    page = visit.page
    page.get_by_label("Model").select_option("tiny")
    page.get_by_role("button", name="Recipe for Claude Code").click()
    recipe = page.get_by_role("region", name="Recipe")
    expect(recipe).to_be_focused()
    expect(recipe).to_contain_text("omlx launch claude-code --model tiny")
    expect(recipe).to_contain_text(f"ANTHROPIC_BASE_URL={visit.url}")
    expect(recipe).to_contain_text("YOUR_API_KEY")


def test_the_log_is_followed(visit: Visit, live: Keyed) -> None:
    visit.go("logs", "Log")
    live.ask("For the log.")
    log = visit.page.get_by_role("region", name="End of the log")
    expect(log).to_contain_text("prompt tokens")
    visit.page.get_by_label("Filter lines").fill("no such words at all")
    expect(log).to_have_text("No such line.")


@pytest.mark.parametrize(
    ("locale", "lang", "title", "other"),
    [("de-AT", "de", "Einstellungen", "设置"), ("zh-TW", "zh-Hant", "設定", "Réglages")],
)
def test_the_language_is_the_browsers_and_can_be_switched(
    browser: Browser, live: Live, key: str, locale: str, lang: str, title: str, other: str
) -> None:
    chosen = {"设置": "zh-Hans", "Réglages": "fr"}[other]
    with Visit(browser, f"http://127.0.0.1:{live.port}", locale=locale) as visit:
        page = visit.open().page
        expect(page.locator("html")).to_have_attribute("lang", lang)
        visit.sign_in(key).go("settings", title)
        page.locator("#language select").select_option(chosen)
        expect(page.get_by_role("heading", name=other, level=1)).to_be_visible()
        expect(page.locator("html")).to_have_attribute("lang", chosen)
        page.reload()
        expect(page.get_by_role("heading", name=other, level=1)).to_be_visible()
        assert "{" not in page.locator("body").inner_text()


def test_by_keyboard_alone(browser: Browser, live: Live, key: str) -> None:
    """From signing in to a model that is loaded, and out again: no mouse, and the focus is seen."""
    with Visit(browser, f"http://127.0.0.1:{live.port}") as visit:
        page = visit.open().page
        press = page.keyboard.press
        expect(page.get_by_label("Admin key")).to_be_focused()
        page.keyboard.type(key)
        press("Enter")
        expect(page.locator("main")).to_be_focused()
        _tab_to(visit, 'nav a[data-section="models"]', backwards=True)
        outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        press("Enter")
        expect(page.get_by_role("heading", name="Models", level=1)).to_be_focused()
        _tab_to(visit, f'button[aria-label="Load {HOSTILE}"]')
        press("Space")
        visit.said(f"{HOSTILE}: ready")
        _tab_to(visit, f'button[aria-label="Unload {HOSTILE}"]')
        press("Enter")
        visit.said(f"{HOSTILE}: unloaded")
        _tab_to(visit, ".skip", backwards=True)
        press("Enter")
        expect(page.locator("main")).to_be_focused()
        seen = _round(visit)
        assert "BODY" in seen, "the focus never leaves the page: a trap"
        _tab_to(visit, "header button", backwards=False)
        press("Enter")
        expect(page.get_by_label("Admin key")).to_be_focused()


def _tab_to(visit: Visit, selector: str, *, backwards: bool = False) -> None:
    for _ in range(120):
        if visit.page.evaluate("(one) => document.activeElement?.matches(one) ?? false", selector):
            return
        visit.page.keyboard.press("Shift+Tab" if backwards else "Tab")
    raise AssertionError(f"no way to {selector} by Tab")


def _round(visit: Visit) -> list[str]:
    """What has the focus, from here until it has left the page."""
    seen: list[str] = []
    for _ in range(200):
        seen.append(visit.page.evaluate("() => document.activeElement?.tagName ?? ''"))
        if seen[-1] == "BODY" and len(seen) > 1:
            break
        visit.page.keyboard.press("Tab")
    return seen


def test_names_that_mean_harm_stay_text(visit: Visit) -> None:
    for section, title in SECTIONS.items():
        visit.go(section, title)
        visit.settled()
        assert visit.page.locator("img").count() == 0
    visit.go("models", "Models")
    expect(visit.page.get_by_role("rowheader", name=HOSTILE)).to_be_visible()
    refused = visit.page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken'; }"
        " catch (error) { return error.name; } }"
    )
    assert refused == "TypeError", "the policy lets no text become markup"
    visit.faults.clear()  # which the browser has said as well


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Browser, live: Live, key: str, scheme: str) -> None:
    with Visit(browser, f"http://127.0.0.1:{live.port}", scheme=scheme, size=PHONE) as visit:
        assert visit.open().violations() == []
        visit.sign_in(key)
        for section, title in SECTIONS.items():
            visit.go(section, title)
            visit.settled()
            assert visit.violations() == [], section
            assert visit.overflow() <= 0, section
        visit.page.set_viewport_size({"width": 1280, "height": 900})
        for section in ("status", "models", "keys"):
            visit.go(section, SECTIONS[section])
            visit.settled()
            assert visit.violations() == [], section
            assert visit.overflow() <= 0, section


def test_the_theme_can_be_switched(visit: Visit) -> None:
    page = visit.page

    def back() -> str:
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    light = back()
    page.get_by_label("Theme").select_option("dark")
    dark = back()
    assert dark != light
    page.reload()
    page.locator("nav").wait_for()
    assert back() == dark
    page.get_by_label("Theme").select_option("auto")
    assert back() == light
