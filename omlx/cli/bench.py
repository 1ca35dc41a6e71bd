"""The group `omlx bench`.

Knows nothing about what its commands do.
"""

from omlx.cli.lazy import LazyCommand, LazyGroup
from omlx.cli.options import CONTEXT_SETTINGS

COMMANDS = {
    "throughput": LazyCommand(
        "omlx.cli.benching.throughput:throughput",
        "Measure prefill and decode at growing prompts, in a process and over HTTP.",
    ),
    "concurrency": LazyCommand(
        "omlx.cli.benching.concurrency:concurrency",
        "Measure streams side by side, and how near they come to what memory allows.",
    ),
    "cache": LazyCommand(
        "omlx.cli.benching.cache:cache",
        "Measure the time to the first token by where a prefix comes from.",
    ),
    "agent": LazyCommand(
        "omlx.cli.benching.agent:agent",
        "Replay traces of coding agents, any number of them at once.",
    ),
    "verify": LazyCommand(
        "omlx.cli.benching.verify:verify",
        "Check that the prefix cache hits when it should, and fail if it doesn't.",
    ),
    "compare": LazyCommand(
        "omlx.cli.benching.compare:compare",
        "Give several servers the same work, and show how far one is from the other.",
    ),
}

bench = LazyGroup(
    "bench",
    help="Measure models, servers and the prefix cache.",
    lazy=COMMANDS,
    context_settings=CONTEXT_SETTINGS,
)
