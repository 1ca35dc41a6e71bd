"""Watches the cache of a running server: a picture in a terminal, plain or JSON lines elsewhere.

Knows nothing about what a status looks like.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from omlx.cli.following import is_end, is_screen, print_what_can_be
from omlx.cli.live import LINE_INTERVAL_S, LIVE_INTERVAL_S
from omlx.cli.options import say, warn
from omlx.cli.view.status import read_status
from omlx.errors import ServerError

if TYPE_CHECKING:
    from rich.console import Console

    from omlx.settings.build import Resolved

Status = Mapping[str, object]
Pause = Callable[[float], str | None]


class View(Protocol):
    """Something that can show a status as a server sends it."""

    def show(self, status: Status) -> None:
        """Show it."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class CacheLines:
    """One line for each status on stdout, in words or as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, status: Status) -> None:
        """Print the line."""
        from omlx.cli.view.recent import cache_line

        say(json.dumps(status) if self._as_json else cache_line(read_status(status)))
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing to do."""


class CachePicture:
    """A picture that fills the terminal; the first status opens it."""

    def __init__(
        self,
        console: "Console | None" = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        from omlx.cli.view.store import Flows
        from omlx.cli.view.trend import Trends

        self._clock = clock
        self._flows = Flows()
        self._trends = Trends()
        self._console = console or Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def show(self, status: Status) -> None:
        """Draw it."""
        from omlx.cli.view.recent import render_cache

        self._live.start()
        read = read_status(status)
        picture = render_cache(
            read,
            width=self._console.width,
            flow=self._flows.add(read, self._clock()),
            trend=self._trends.add(read.recent),
        )
        self._live.update(picture, refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def watch_server(resolved: "Resolved", *, as_json: bool, pause: Pause | None = None) -> None:
    """Watch the first running server that uses this cache, until q, Ctrl-C or its end; ServerError.

    Without `pause` the keyboard is read between two pictures.
    """
    from omlx.cli.found import live_servers
    from omlx.cli.keyboard import Keyboard
    from omlx.client import get_json

    servers, problems = live_servers(resolved, resolved.cache_dir)
    if not servers:
        warn(problems)
        hint = "omlx serve starts one" if not problems else ""
        raise ServerError(f"no server that uses {resolved.cache_dir} can be watched", hint=hint)
    if len(servers) > 1:
        warn(
            [f"{len(servers)} servers use this cache; the one at {servers[0][0].address} is shown"]
        )
    server, key = servers[0][0], resolved.settings.server.api_key
    is_picture = is_screen() and not as_json
    print_what_can_be()
    with Keyboard() as keyboard:
        watch(
            lambda: get_json(
                server.address, "/admin/api/status", api_key=key, certificate=server.certificate
            ),
            CachePicture() if is_picture else CacheLines(as_json=as_json),
            interval_s=LIVE_INTERVAL_S if is_picture else LINE_INTERVAL_S,
            pause=pause or keyboard.wait,
        )


def watch(
    fetch: Callable[[], Status],
    view: View,
    *,
    interval_s: float,
    pause: Pause = time.sleep,
) -> None:
    """Show what `fetch` returns, again and again; what it raises ends that, or a key of `pause`."""
    try:
        view.show(fetch())
        while not is_end(pause(interval_s)):
            view.show(fetch())
    finally:
        view.close()
