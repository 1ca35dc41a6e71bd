"""Logging: one handler on stderr, one line a record.

Knows nothing about the parts that log; never given prompts, tokens or keys.
"""

import logging
import sys
import time

LEVELS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


class _Formatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{stamp}.{int(record.msecs):03d}"


def setup(level: str, *, tag: str = "") -> None:
    """Send the "omlx" loggers to stderr at `level`; each line carries `tag` (an engine's model).

    Mutates the logging configuration of the process; call once, from an entry point.
    """
    handler = logging.StreamHandler(sys.stderr)
    mark = f" [{tag}]" if tag else ""
    handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)s %(name)s{mark} %(message)s"))
    logger = logging.getLogger("omlx")
    logger.handlers[:] = [handler]
    logger.setLevel(LEVELS[level])
    logger.propagate = False
