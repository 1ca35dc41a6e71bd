"""The admin page in headless Chromium: started, watched for faults of scripts, looked at by axe.

A page that loads anything from another host, breaks its own policy or opens a dialog fails.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

AXE = (Path(__file__).parent / "data" / "axe" / "axe.min.js").read_text()
PATIENCE_MS = 60_000
SERIOUS = ("serious", "critical")
PHONE, DESKTOP = (360, 740), (1280, 900)
_EXPECTED = ("Failed to load resource",)  # an answer that is an error, which the page shows


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found is not None, "Chromium is needed: apt-get install chromium"
    return found


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser, without the library that is put before others for a model's sake."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), env=env, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


class Visit:
    """A visitor of the page: cookies and storage of their own, and all that went wrong."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        size: tuple[int, int] = DESKTOP,
        scheme: str = "light",
        locale: str = "en-US",
    ) -> None:
        self.url = url
        self.faults: list[str] = []
        self.context: BrowserContext = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,  # type: ignore[arg-type]
            locale=locale,
            reduced_motion="reduce",
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("console", self._heard)
        self.page.on("request", self._asked)
        self.page.on("dialog", self._alerted)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(_EXPECTED):
            self.faults.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.faults.append(f"asks another host: {request.url}")

    def _alerted(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, section: str = "") -> "Visit":
        """Go to a section by its address."""
        self.page.goto(f"{self.url}/admin{f'#/{section}' if section else ''}")
        return self

    def go(self, section: str, title: str) -> "Visit":
        """Go to a section by the way between them, and wait for its heading."""
        menu = self.page.locator("button.menu")
        if menu.is_visible() and menu.get_attribute("aria-expanded") == "false":
            menu.click()
        self.page.locator(f'nav a[data-section="{section}"]').click()
        self.page.get_by_role("heading", name=title, level=1).wait_for()
        return self

    def sign_in(self, key: str) -> "Visit":
        """Enter a key and wait until the page is there."""
        self.page.locator("input[type=password]").fill(key)
        self.page.keyboard.press("Enter")
        self.page.locator("nav").wait_for()
        return self

    def settled(self) -> None:
        """Wait until the section has what it first asked for."""
        self.page.wait_for_function(
            "() => document.querySelector('main').childElementCount > 1"
            " && ![...document.querySelectorAll('main .table')].some("
            "table => table.querySelector('tbody').childElementCount === 0"
            " && !table.hidden && !table.querySelector('table').hidden)"
        )
        self.page.wait_for_timeout(150)

    def said(self, text: str) -> None:
        """Wait until the page says so to everyone."""
        self.page.locator(".notice", has_text=text).wait_for()

    def violations(self) -> list[str]:
        """What axe finds that is serious or critical, each with its place.

        It is put in over the debugger, since the page's own policy lets no other script in.
        """
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(f"() => {{ {AXE}; window.axe = axe; }}")
        found = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['impact']} {one['id']}: {node['target']} {node['failureSummary']}"
            for one in found["violations"]
            if one["impact"] in SERIOUS
            for node in one["nodes"]
        ]

    def overflow(self) -> float:
        """By how many pixels the page is wider than the window; tables of their own may scroll."""
        return self.page.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def picture(self, path: Path) -> None:
        """Keep the whole page as a picture."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=True, animations="disabled")

    def close(self) -> None:
        """Leave; nothing may have gone wrong."""
        self.context.close()
        assert self.faults == []

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            print(json.dumps(self.faults, indent=1))
            self.context.close()


def texts(visit: Visit, selector: str) -> Sequence[str]:
    """The texts of all elements that are seen."""
    return [one for one in visit.page.locator(selector).all_inner_texts() if one]
