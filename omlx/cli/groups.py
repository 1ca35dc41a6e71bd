"""The groups of commands: service, cache, model, kernel, key, config.

Knows nothing about what their commands do.
"""

import click

from omlx.cli.lazy import LazyCommand, LazyGroup
from omlx.cli.options import CONTEXT_SETTINGS


def _group(name: str, help_text: str, lazy: dict[str, LazyCommand]) -> click.Group:
    return LazyGroup(name, help=help_text, lazy=lazy, context_settings=CONTEXT_SETTINGS)


service = _group(
    "service",
    "Have a server started at login, and again when it crashes.",
    {
        "install": LazyCommand(
            "omlx.cli.service:install",
            "Have a server started at login, and again when it crashes.",
        ),
        "uninstall": LazyCommand(
            "omlx.cli.service:uninstall", "End the service and remove its file."
        ),
        "status": LazyCommand(
            "omlx.cli.service:status", "Show how the service stands, and its server."
        ),
    },
)

cache = _group(
    "cache",
    "Look into the prefix cache and prune it.",
    {
        "inspect": LazyCommand(
            "omlx.cli.cache:inspect", "Show what the prefix cache holds, or why a prompt misses it."
        ),
        "prune": LazyCommand("omlx.cli.cache:prune", "Drop blocks from the disk tier."),
        "verify": LazyCommand(
            "omlx.cli.verify:verify", "Read every file of the disk tier and verify it."
        ),
    },
)

model = _group(
    "model",
    "List models, get new ones, load and unload them.",
    {
        "list": LazyCommand("omlx.cli.model:list_models", "List the models that can be served."),
        "pull": LazyCommand("omlx.cli.model:pull", "Get a model."),
        "import": LazyCommand(
            "omlx.cli.importing:import_model", "Make a model of a GGUF file, and verify it."
        ),
        "load": LazyCommand(
            "omlx.cli.resident:load",
            "Load a model in the running server, and wait until it is ready.",
        ),
        "unload": LazyCommand(
            "omlx.cli.resident:unload",
            "Unload a model in the running server, and wait until its process is gone.",
        ),
    },
)

kernel = _group(
    "kernel",
    "Build the kernels of omlx for this GPU, and show how they stand.",
    {
        "build": LazyCommand(
            "omlx.cli.kernel:build", "Compile, verify and time kernels on this device."
        ),
        "status": LazyCommand(
            "omlx.cli.kernel:status", "Show each kernel: verified, faster and in use, or why not."
        ),
    },
)

key = _group(
    "key",
    "Make, list and revoke API keys.",
    {
        "create": LazyCommand("omlx.cli.keys:create", "Make an API key and print it."),
        "list": LazyCommand(
            "omlx.cli.keys:list_keys", "List the API keys, with their first characters."
        ),
        "revoke": LazyCommand("omlx.cli.keys:revoke", "Take an API key away."),
    },
)

config = _group(
    "config",
    "Show the settings and where they come from, and write them.",
    {
        "show": LazyCommand("omlx.cli.config:show", "Print every setting of this folder and user."),
        "get": LazyCommand("omlx.cli.config:get", "Print one setting, or those of one table."),
        "set": LazyCommand(
            "omlx.cli.configuring:set_values", "Write settings to config.toml in OMLX_HOME."
        ),
        "unset": LazyCommand(
            "omlx.cli.configuring:unset", "Take settings out of config.toml in OMLX_HOME."
        ),
        "path": LazyCommand(
            "omlx.cli.config:path", "Print where config.toml is, which omlx config set writes."
        ),
        "edit": LazyCommand(
            "omlx.cli.configuring:edit", "Open config.toml in OMLX_HOME in an editor."
        ),
    },
)
