"""The real server over scripted engines: everything is as `omlx serve` has it but what computes.

usage: server.py OPTIONS

OPTIONS is one JSON object: home, models (a folder), settings by path, script, report.

Prints the address once it serves. Knows nothing about what is asked or measured.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from omlx import log
from omlx.engine.pool import Pool, engine_config
from omlx.engine.process import EngineProcess
from omlx.engine.spawn import Spawned
from omlx.models.locate import discover
from omlx.server.run import run_server
from omlx.settings.build import load


def spawn(script: str, report: str) -> Spawned:
    """Start a scripted engine as a real one is started."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("engine.py")), script, report]
            + [str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
    return Spawned(process, ours)


def main(options: dict) -> int:
    """Serve until a signal; the exit code."""
    home = Path(options["home"])
    resolved = load(cli=options["settings"], env={"OMLX_HOME": str(home)}, cwd=home)
    log.setup(resolved.settings.log.level)
    return run_server(
        resolved,
        discover([Path(options["models"])]),
        on_ready=lambda address: print(address, flush=True),
        make_pool=lambda entries, resolved: Pool(
            entries,
            lambda entry: EngineProcess(
                engine_config(entry, resolved),
                take=lambda: spawn(options["script"], options["report"]),
            ),
        ),
    )


def profiled(options: dict, path: str) -> int:
    """The same, with what the loop's thread spends its time on left in a file."""
    import cProfile

    profile = cProfile.Profile()
    try:
        return profile.runcall(main, options)
    finally:
        profile.dump_stats(path)


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    where = os.environ.get("BENCH_PROFILE")
    sys.exit(profiled(wanted, where) if where else main(wanted))
