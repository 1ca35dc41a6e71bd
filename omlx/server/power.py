"""Where this machine's power comes from.

Knows nothing about what is done with it.
"""

import logging
from typing import Any

import psutil

_log = logging.getLogger("omlx.server")


def is_on_mains(sensors: Any = psutil) -> bool:
    """Whether the machine is plugged in, or has no battery; a battery that can't be read is one."""
    try:
        battery = sensors.sensors_battery()
    except (psutil.Error, OSError, ValueError, AttributeError) as error:
        # A system that psutil knows no batteries of has no such function.
        _log.debug("the battery can't be read: %s", error)
        return isinstance(error, AttributeError)
    return battery is None or battery.power_plugged is not False
