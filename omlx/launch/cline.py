"""Cline: a data folder like the user's own, in which the server is the provider.

Knows nothing about the server but what a setup says.
"""

from pathlib import Path

from omlx.launch.plan import Mirror, Plan, Recipe, Setup, pretty

_PROVIDER = "openai-compatible"
_FILE = "providers.json"
_KEPT = ("sessions", "db")


def plan(setup: Setup) -> Plan:
    """How it is started; a data folder of its own keeps it from leaving a daemon behind."""
    data = _data(setup)
    return Plan(
        ("--data-dir", str(setup.folder / "data"), "-P", _PROVIDER, "-m", setup.model, *setup.args),
        {"CLINE_NO_AUTO_UPDATE": "1"},
        files={f"data/settings/{_FILE}": pretty(providers(setup))},
        mirrors=(
            Mirror(data, "data", ("settings", "locks", "cache"), _KEPT),
            Mirror(data / "settings", "data/settings", (_FILE,)),
        ),
    )


def _data(setup: Setup) -> Path:
    named = setup.env.get("CLINE_DATA_DIR")
    root = setup.env.get("CLINE_DIR")
    if named:
        return Path(named).expanduser()
    return (Path(root).expanduser() if root else setup.home / ".cline") / "data"


def providers(setup: Setup) -> dict[str, object]:
    """Its file of providers."""
    settings = {
        "provider": _PROVIDER,
        "apiKey": setup.sent_key,
        "model": setup.model,
        "baseUrl": setup.v1,
        "contextWindow": setup.window,
        "maxTokens": setup.max_output,
    }
    known = {
        "settings": settings,
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "tokenSource": "manual",
    }
    return {
        "version": 1,
        "lastUsedProvider": _PROVIDER,
        "modes": {},
        "providers": {_PROVIDER: known},
    }


RECIPE = Recipe(plan)
