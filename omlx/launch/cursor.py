"""The editor Cursor: why a server on this machine is out of its reach, and what can be done.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.plan import Recipe, Setup


def says(setup: Setup) -> str:
    """What is possible and what is not."""
    return "\n".join(
        (
            "# Cursor sends the requests for a model from its own servers, also with its setting",
            f"# Override OpenAI Base URL: {setup.v1} can't be reached from there.",
            "# It works only with an address that the internet can reach, by https and with a key:",
            "#   1. omlx key create cursor       (then every request needs a key)",
            "#   2. a tunnel or proxy of yours with https before this server; its host name goes",
            "#      into server.allowed_hosts",
            "#   3. in Cursor, Settings, Models: add a custom model by the name below, set",
            "#      Override OpenAI Base URL to https://YOUR_HOST/v1 and OpenAI API Key to the key",
            "# Your prompts then go through Cursor's servers and the tunnel. Completion in the",
            "# editor (Tab) stays with Cursor's own models. Agents in its terminal, such as",
            "# omlx launch codex, have none of these limits.",
            f"model: {setup.model}",
        )
    )


RECIPE = Recipe(says=says)
