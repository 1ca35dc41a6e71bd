"""Follows a running server frame by frame, through its end and its next start.

Knows nothing about how a frame looks.
"""

import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from omlx.cli.live import LINE_INTERVAL_S
from omlx.cli.options import say, warn
from omlx.cli.running import meant
from omlx.errors import OmlxError, ServerError

if TYPE_CHECKING:
    from rich.console import Console

    from omlx.cli.view.top import Frame
    from omlx.client import RunningServer
    from omlx.settings.build import Resolved

INTERVAL_S = 1.0
_ENDS = "qQ\x03\x04"
Answer = Mapping[str, object]
Wait = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Told:
    """What a server says at one moment, as it says it."""

    status: Answer
    requests: Answer


class Source:
    """Asks the server that is meant, and looks for it anew each time that none answers."""

    def __init__(
        self,
        find: Callable[["RunningServer | None"], "RunningServer"],
        ask: Callable[["RunningServer", str], Answer],
    ) -> None:
        self._find = find
        self._ask = ask
        self._server: RunningServer | None = None
        self._is_lost = True

    def latest(self) -> Told:
        """What it says now (mutates); OmlxError where none runs or the one does not answer."""
        if self._server is None or self._is_lost:
            self._server = self._find(self._server)
        self._is_lost = True
        status = self._ask(self._server, "/admin/api/status")
        requests = self._ask(self._server, "/admin/api/requests")
        self._is_lost = False
        return Told(status, requests)


class View(Protocol):
    """Something that can show what a server says."""

    def show(self, told: Told) -> None:
        """Show it."""
        ...

    def lost(self, reason: str) -> None:
        """Say that there is nothing new, and why."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Lines:
    """One JSON object a line on stdout."""

    def show(self, told: Told) -> None:
        """Print the line."""
        say(json.dumps({"status": told.status, "requests": told.requests.get("requests")}))
        sys.stdout.flush()

    def lost(self, reason: str) -> None:
        """Say it on stderr."""
        warn([reason])

    def close(self) -> None:
        """Nothing to do."""


class _Frames:
    """Makes frames of what a server says."""

    def __init__(self) -> None:
        from omlx.cli.view.trend import Trends

        self._trends = Trends()
        self._last: Frame | None = None

    def of(self, told: Told) -> "Frame":
        """The frame of what is told now (mutates)."""
        from omlx.cli.view.running import read_running
        from omlx.cli.view.status import read_status
        from omlx.cli.view.top import Frame

        status = read_status(told.status)
        trend = self._trends.add(status.recent)
        self._last = Frame(status, read_running(told.requests), trend)
        return self._last

    def without(self, reason: str) -> "Frame":
        """The last frame, whose requests have no future, with a note."""
        from omlx.cli.view.status import Status
        from omlx.cli.view.text import harmless
        from omlx.cli.view.top import Frame

        last = self._last or Frame(Status())
        note = f"{harmless(reason)}; waiting for one"
        return Frame(last.status, (), last.trend, note=note)


class Pages:
    """Frames as plain text on stdout, an empty line between two."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(color_system=None, force_terminal=False, highlight=False)
        self._frames = _Frames()
        self._is_first = True

    def show(self, told: Told) -> None:
        """Print the frame."""
        from omlx.cli.view.top import render

        with self._console.capture() as captured:
            picture = render(self._frames.of(told), width=self._console.width)
            self._console.print(picture)
        encoding = self._console.encoding
        text = captured.get().encode(encoding, "replace").decode(encoding)
        lines = [line.rstrip() for line in text.splitlines()]
        say("\n".join(lines if self._is_first else ["", *lines]))
        self._is_first = False
        sys.stdout.flush()

    def lost(self, reason: str) -> None:
        """Say it on stderr."""
        warn([reason])

    def close(self) -> None:
        """Nothing to do."""


class Picture:
    """A picture that fills the terminal; the first frame opens it."""

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(highlight=False)
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._frames = _Frames()

    def show(self, told: Told) -> None:
        """Draw it."""
        self._draw(self._frames.of(told))

    def lost(self, reason: str) -> None:
        """Draw the last frame with the reason."""
        self._draw(self._frames.without(reason))

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()

    def _draw(self, frame: "Frame") -> None:
        from omlx.cli.view.top import render

        self._live.start()
        width, height = self._console.size
        self._live.update(render(frame, width=width, height=height), refresh=True)


def follow(
    resolved: "Resolved",
    *,
    port: int | None,
    interval_s: float | None,
    is_once: bool,
    as_json: bool,
) -> None:
    """Show frames until a key or a signal ends it; ServerError if no server runs at the start."""
    from omlx.cli.keyboard import Keyboard

    source = _source(resolved, port)
    first = source.latest()
    is_picture = not (as_json or is_once) and is_screen()
    print_what_can_be()
    if interval_s is None:
        interval_s = INTERVAL_S if is_picture else LINE_INTERVAL_S
    with Keyboard() as keyboard:
        view: View = Lines() if as_json else Picture() if is_picture else Pages()
        try:
            view.show(first)
            if not is_once:
                show_all(source, view, wait=keyboard.wait, interval_s=interval_s)
        finally:
            view.close()


def show_all(source: Source, view: View, *, wait: Wait, interval_s: float) -> None:
    """Show what a source says at an interval, until `wait` returns a key that ends it."""
    reason = ""
    while not is_end(wait(interval_s)):
        try:
            told = source.latest()
        except OmlxError as error:
            if error.message != reason or isinstance(view, Picture):
                view.lost(error.message)
            reason = error.message
        else:
            reason = ""
            view.show(told)


def _source(resolved: "Resolved", port: int | None) -> Source:
    from omlx.client import get_json, running_servers

    def find(before: "RunningServer | None") -> "RunningServer":
        servers = running_servers(resolved.state_dir)
        again = [one for one in servers if before is not None and one.address == before.address]
        servers = again or meant(servers, port)
        if servers:
            return servers[0]
        where = "" if port is None else f" on port {port}"
        raise ServerError(f"no server is running{where}", hint="omlx serve starts one")

    def ask(server: "RunningServer", path: str) -> Answer:
        key = resolved.settings.server.api_key
        return get_json(server.address, path, api_key=key, certificate=server.certificate)

    return Source(find, ask)


def is_end(keys: str | None) -> bool:
    """Whether one of the keys says that it is enough."""
    return not set(_ENDS).isdisjoint(keys or "")


def print_what_can_be() -> None:
    """Have a terminal that lacks a character show another one instead."""
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        stdout.reconfigure(errors="replace")


def is_screen() -> bool:
    """Whether stdout is a terminal that can be drawn on."""
    from rich.console import Console

    return sys.stdout.isatty() and not Console().is_dumb_terminal
