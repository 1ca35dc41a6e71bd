"""What the commands of `omlx bench` share: options, the model or server they measure, the result.

Knows nothing about what is measured.
"""

import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from omlx.cli.options import json_option, resolve, say, settings_options
from omlx.errors import ModelError, OmlxError, UsageError

if TYPE_CHECKING:
    from omlx.bench.client import Target
    from omlx.bench.result import Report
    from omlx.bench.step import OnStep
    from omlx.bench.workload import Words
    from omlx.models.locate import ModelEntry
    from omlx.settings.build import Resolved

SEED = 7
Callback = TypeVar("Callback", bound=Callable[..., Any])

_HTML = click.option(
    "--html",
    "html",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Also write a page with tables and charts, which needs no network.",
)
_SEED = click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0, 2**31),
    default=SEED,
    show_default=True,
    help="Make the same prompts again.",
)
_MODEL = click.option(
    "--model",
    metavar="ID",
    help="A model that omlx model list shows, or its folder; with --url, the server's name for it.",
)
_DEMO = click.option("--demo", is_flag=True, help="Take the demo model; get it if it is missing.")
_URL = click.option(
    "--url",
    metavar="URL",
    help="Ask this OpenAI-compatible server, instead of one that is started for the bench.",
)
_KEY = click.option(
    "--key",
    metavar="KEY",
    help="API key for --url; without it that of the settings (OMLX_SERVER_API_KEY), if any.",
)


def result_options(callback: Callback) -> Callback:
    """--seed, --json and --html: all commands have them."""
    return _SEED(json_option(_HTML(callback)))


def model_options(callback: Callback) -> Callback:
    """--model and --demo, with the settings that say where models are."""
    return _MODEL(_DEMO(settings_options("models.dir", "models.hub_cache")(callback)))


def server_options(callback: Callback) -> Callback:
    """--url and --key."""
    return _URL(_KEY(callback))


def rounds_option(default: int) -> Callable[[Callback], Callback]:
    """--rounds N."""
    return click.option(
        "--rounds",
        metavar="N",
        type=click.IntRange(1, 1000),
        default=default,
        show_default=True,
        help="Measure each figure so often, with fresh prompts.",
    )


def tokens_option(
    name: str, default: tuple[int, ...], help_text: str, *, low: int = 1
) -> Callable[[Callback], Callback]:
    """An option that takes numbers of tokens, with commas between them: "512,2k"."""
    return click.option(
        name,
        metavar="N,N,…",
        type=Numbers(low),
        default=",".join(_short(number) for number in default),
        show_default=True,
        help=help_text,
    )


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between them; 2k is 2,048."""

    name = "numbers"

    def __init__(self, low: int = 1) -> None:
        self._low = low

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers in order, each once."""
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for part in str(value).split(","):
            text = part.strip().lower()
            digits, factor = (text[:-1], 1024) if text.endswith("k") else (text, 1)
            if not (digits.isascii() and digits.isdigit()):
                self.fail(f"{part.strip()!r} is not a whole number, as in 512 or 2k", param, ctx)
            found.append(int(digits) * factor)
        least = min(found)
        if least < self._low:
            self.fail(f"{least} is less than {self._low}", param, ctx)
        return tuple(sorted(set(found)))


class Sizes(click.ParamType[tuple[int, ...]]):
    """Sizes with commas between them, such as 100MB,2GB; "none" is no size."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The sizes in bytes, in the order in which they were given."""
        from omlx.units import parse_size

        if isinstance(value, tuple):
            return value
        if str(value).strip() == "none":
            return ()
        found: list[int] = []
        for part in str(value).split(","):
            try:
                found.append(parse_size(part))
            except ValueError as error:
                self.fail(str(error), param, ctx)
            if not found[-1]:
                self.fail("a size of 0 bytes is of no use here", param, ctx)
        return tuple(dict.fromkeys(found))


def _short(number: int) -> str:
    return f"{number // 1024}k" if number >= 1024 and number % 1024 == 0 else str(number)


def local_model(
    ctx: click.Context, given: Mapping[str, object], name: str | None, *, demo: bool
) -> "ModelEntry":
    """The model that is meant: by id or folder, the demo model, or the only one there is."""
    from omlx.cli.found import discover_models, no_models, search
    from omlx.models.names import names_of

    resolved = resolve(ctx, given)
    if demo:
        if name is not None:
            raise UsageError("--model and --demo exclude each other")
        from omlx.cli.pull import pull_demo_model

        return search((pull_demo_model(resolved.home / "models"),)).models[0]
    if name is not None and (Path(name).expanduser() / "config.json").is_file():
        return _one_in(Path(name).expanduser())
    found = discover_models(resolved).models
    if name is not None:
        named = names_of(found, resolved).find(name)
        if named is None:
            raise ModelError(f"there is no model {name!r}", hint="omlx model list shows them")
        return named.entry
    if not found:
        raise no_models(resolved)
    if len(found) > 1:
        ids = ", ".join(entry.id for entry in found[:8])
        raise UsageError(f"--model says which of {len(found)} models: {ids}")
    return found[0]


def _one_in(folder: Path) -> "ModelEntry":
    from omlx.cli.found import search

    found = search((folder.resolve(),))
    if not found.models:
        reason = found.problems[0].reason if found.problems else "it holds no model"
        raise ModelError(f"{folder} can't be served: {reason}")
    return found.models[0]


def remote_target(
    ctx: click.Context, given: Mapping[str, object], url: str, model: str | None, key: str | None
) -> "Target":
    """The server at a URL and the model to ask of it: the only one, unless it is named."""
    from omlx.bench.client import Target
    from omlx.bench.listing import model_names

    found = key if key is not None else api_key(resolve(ctx, given))
    if model is None:
        names = model_names(Target(url, "", found))
        if len(names) != 1:
            shown = ", ".join(names[:8]) or "none"
            raise UsageError(f"--model says which model of {url} is meant; it has: {shown}")
        model = names[0]
    return Target(url, model, found, name=url)


def model_words(
    ctx: click.Context, given: Mapping[str, object], model: str | None
) -> "Words | None":
    """Texts counted by the tokenizer of a model here that has the name; None without one."""
    from omlx.bench.measured import Model

    if model is None:
        return None
    try:
        entry = local_model(ctx, given, model, demo=False)
    except ModelError:
        return None
    return Model(entry.id, entry.path, entry.context_window).words()


def api_key(resolved: "Resolved") -> str | None:
    """The API key of the settings, if there is one."""
    return resolved.settings.server.api_key


def check_html(html: str | None) -> Path | None:
    """The file of the page; OmlxError at once, not after the bench, if it can't be written."""
    if html is None:
        return None
    path = Path(html).expanduser()
    is_new = not path.exists()
    try:
        with path.open("a", encoding="utf-8"):
            pass
        if is_new:
            path.unlink()  # a bench that fails leaves no empty page
    except OSError as error:
        reason = error.strerror or str(error)
        raise OmlxError(f"--html: {path} cannot be written: {reason}") from None
    return path


def show(report: "Report", *, as_json: bool, html: Path | None) -> None:
    """Print a report, as tables or as one line of JSON, and write the page if it is asked for."""
    if html is not None:
        from omlx.bench.page import page

        html.write_text(page(report), encoding="utf-8")
        click.echo(f"page: {html}", err=True)
    if as_json:
        from omlx.bench.result import to_json

        say(to_json(report))
        return
    from omlx.cli.view.bench import print_report

    print_report(report)


@contextmanager
def reporting(title: str) -> Generator["OnStep"]:
    """What shows progress on stderr: a bar in a terminal, else a line a step."""
    if not sys.stderr.isatty():
        yield lambda step: click.echo(f"{title} {step.done}/{step.total}: {step.what}", err=True)
        return
    from omlx.cli.view.bench import StepBar

    with StepBar(title) as bar:
        yield bar


@contextmanager
def ending_servers() -> Generator[None]:
    """Have SIGTERM and SIGHUP end the bench as Ctrl-C does: what it started is ended first."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
