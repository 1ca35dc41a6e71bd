"""A program that serves a scripted engine through the real entry, for tests of whole processes.

Called with one JSON object: home, models (a folder), settings by path, script. Prints the address
once it serves; at the end a JSON line on how it went.
"""

import itertools
import json
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from omlx.engine.request import Admitted, EngineRequest, Event, Token
from omlx.models.locate import discover
from omlx.server.run import run_server
from omlx.settings.build import load
from tests.fakes.engine import FakePool, ScriptedEngine, say


def endless(request: EngineRequest) -> Iterable[Sequence[Event]]:
    """A script without an end; each step waits until the one before it was taken."""
    yield [Admitted(request.id, 0, 0), Token(request.id, ord("x"))]
    pause = threading.Event()
    for _ in itertools.count():
        pause.wait(0.02)
        yield [Token(request.id, ord("x"))]


SCRIPTS = {"ok": say("Paris"), "endless": endless}
HEAVY = ("mlx", "mlx_lm", "numpy", "transformers", "click", "rich", "safetensors")


def main(options: dict) -> int:
    """Serve until a signal; the exit code."""
    home = Path(options["home"])
    resolved = load(cli=options["settings"], env={"OMLX_HOME": str(home)}, cwd=home)
    engine = ScriptedEngine(script=SCRIPTS[options["script"]])
    code = run_server(
        resolved,
        discover([Path(options["models"])]),
        on_ready=lambda address: print(address, flush=True),
        make_pool=lambda entries, _: FakePool(entries, [engine]),
    )
    heavy = sorted({name.partition(".")[0] for name in sys.modules} & set(HEAVY))
    report = {"code": code, "heavy": heavy, "stopped_with": engine.stopped_with}
    print(json.dumps(report), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
