"""The supervisor of this machine.

Knows nothing about services.
"""

import os
import sys
from collections.abc import Mapping

from omlx.launch.service.launchd import Launchd
from omlx.launch.service.spec import Supervisor
from omlx.launch.service.systemd import Systemd
from omlx.launch.service.tool import Tool, run_tool


def this_supervisor(
    *,
    platform: str = sys.platform,
    env: Mapping[str, str] | None = None,
    run: Tool = run_tool,
) -> Supervisor | None:
    """launchd or systemd, whether or not one answers; None on any other system."""
    env = os.environ if env is None else env
    if platform == "darwin":
        return Launchd(env, run, uid=os.getuid())
    if platform == "linux":
        return Systemd(env, run)
    return None
