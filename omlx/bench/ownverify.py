"""The four checks against servers that are started for them and ended again.

Knows nothing about terminals, or about how a miss is explained.
"""

from collections.abc import Mapping
from types import MappingProxyType

from omlx.bench.client import Target
from omlx.bench.result import Check
from omlx.bench.servers import Server
from omlx.bench.step import Steps
from omlx.bench.verify import NAMES, TOOLS, Explain, Verifier, Wanted, both

# What is checked is the cache, not whether this machine has room or would rather compute.
SETTINGS: Mapping[str, object] = MappingProxyType(
    {
        "cache.load": "always",
        "cache.min_free": 0,
        "cache.max_size": "2GB",
        "cache.write_delay": "100ms",
    }
)
PLAIN_PROMPTS: Mapping[str, object] = MappingProxyType(
    {
        "prompt.drop_attribution": False,
        "prompt.drop_countdown": False,
        "prompt.system_first": False,
        "prompt.session_last": False,
        "prompt.tool_order": False,
    }
)
NUM_STEPS = len(NAMES) + 1


def verify_own(
    server: Server, model: str, wanted: Wanted, steps: Steps, explain: Explain
) -> list[Check]:
    """All checks of a server that runs: it is restarted twice, then without stable prompts."""

    def restart() -> Target:
        server.restart()
        return server.target(model)

    verifier = Verifier(server.target(model), wanted, steps, restart=restart, explain=explain)
    checks = verifier.all()
    server.restart(PLAIN_PROMPTS)
    plain = Verifier(server.target(model), wanted, steps, explain=explain)
    off = plain.run(TOOLS, plain.tools)
    steps.end()
    place = NAMES.index(TOOLS)
    checks[place] = both(checks[place], off)
    return checks
