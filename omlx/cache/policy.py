"""Where the blocks of a request may be stored.

Knows nothing about who decides that; imports nothing, so that the server process may have it.
"""

from enum import Enum


class StorePolicy(Enum):
    """Both tiers, the memory tier only, or none; the values are those of the setting."""

    ALL = "all"
    MEMORY = "memory"
    OFF = "off"
