"""A service as a property list for launchd, and back.

Knows nothing about launchd beyond the keys of its files (launchd.plist(5)).
"""

import plistlib
from pathlib import Path
from typing import Any, cast
from xml.parsers.expat import ExpatError

from omlx.errors import ServerError
from omlx.launch.service.spec import NUM_FILES, Spec, Written

LABEL = "local.omlx"
_THROTTLE_S = 30


def plist_bytes(spec: Spec) -> bytes:
    """The property list; ServerError for text that XML can't hold."""
    tree = {
        "Label": LABEL,
        "ProgramArguments": list(spec.words),
        "WorkingDirectory": str(spec.home),
        "EnvironmentVariables": dict(spec.environment),
        "RunAtLoad": True,
        # Started again whenever it did not end well, also where the system killed it.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _THROTTLE_S,
        "ExitTimeOut": round(spec.stop_s),
        # Else the system slows down its CPU and disk for the sake of what is in front.
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": NUM_FILES},
        "StandardOutPath": str(spec.output),
        "StandardErrorPath": str(spec.output),
        "Umask": 0o077,
    }
    try:
        return plistlib.dumps(tree, sort_keys=False)
    except (ValueError, UnicodeError) as error:
        raise ServerError(f"the service can't be written as a property list: {error}") from None


def read_plist(data: bytes) -> Written:
    """What a property list says of what it runs."""
    try:
        tree: object = plistlib.loads(data)
    except (plistlib.InvalidFileException, ExpatError, ValueError, LookupError):
        return Written()
    if not isinstance(tree, dict):
        return Written()
    found = cast(dict[str, Any], tree)
    words, environment = found.get("ProgramArguments"), found.get("EnvironmentVariables")
    output = found.get("StandardErrorPath")
    return Written(
        tuple(map(str, cast(list[object], words))) if isinstance(words, list) else (),
        {str(k): str(v) for k, v in cast(dict[object, object], environment).items()}
        if isinstance(environment, dict)
        else {},
        Path(output) if isinstance(output, str) else None,
    )
