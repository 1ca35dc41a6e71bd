"""Where things are: the user's folder, its parts, and the files that come with omlx.

Knows nothing about what is in them.
"""

from collections.abc import Mapping
from pathlib import Path


def home(env: Mapping[str, str]) -> Path:
    """The folder of everything of the user's: OMLX_HOME, else ~/.omlx."""
    named = env.get("OMLX_HOME")
    if named:
        return Path(named).expanduser().absolute()
    user = env.get("HOME")
    return (Path(user) if user else Path.home()) / ".omlx"


def data_dir(name: str) -> Path:
    """A folder that comes with omlx: packaged beside the code, or in the checkout around it."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_data" / name
    return packaged if packaged.is_dir() else package.parent / name


def hub_cache(env: Mapping[str, str]) -> Path:
    """The folder of models that Hugging Face's own tools have fetched."""
    named = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    if hugging_face := env.get("HF_HOME"):
        return Path(hugging_face).expanduser() / "hub"
    user = Path(env["HOME"]) if env.get("HOME") else Path.home()
    caches = env.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else user / ".cache") / "huggingface" / "hub"


def keys_path(home: Path) -> Path:
    """The file of the API keys that clients may send."""
    return home / "keys.toml"


def state_dir(home: Path) -> Path:
    """The folder of state files of running servers."""
    return home / "state"


def log_dir(home: Path) -> Path:
    """The folder of the logs of servers in the background."""
    return home / "logs"


def journal_path(home: Path) -> Path:
    """The file that keeps a row of figures of each request."""
    return state_dir(home) / "journal.sqlite3"


def prompts_path(home: Path) -> Path:
    """The file that keeps what makes prompts stable: orders of tools, tokens of answers."""
    return state_dir(home) / "prompts.sqlite3"


def kernels_path(home: Path) -> Path:
    """The file of the verdicts on kernels."""
    return state_dir(home) / "kernels.json"


def profile_dirs(home: Path, profiles: Path) -> tuple[Path, ...]:
    """Where a profile is looked for by its name: the user's own, then those with omlx."""
    return (profiles_dir(home), profiles, profiles / "hardware")


def profiles_dir(home: Path) -> Path:
    """The folder of the user's own profiles."""
    return home / "profiles"
