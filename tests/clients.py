"""The vendors' clients: installed outside the repository, run with an empty environment."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "tests" / "data" / "sdks"
_INSTALL_S, _RUN_S = 1800, 600
_LLM_MODEL = """\
- model_id: local
  model_name: local-model
  api_base: {base}/v1
  api_key_name: local
  supports_tools: true
  supports_schema: true
"""


@dataclass(frozen=True, slots=True)
class Line:
    """What a client's script says of one thing that it tried."""

    name: str
    is_ok: bool
    text: str

    def __str__(self) -> str:
        return f"{self.name} {'OK' if self.is_ok else 'ERR'} {self.text}"


def install(kind: str) -> str:
    """Install the clients of a kind, py, js or an agent's name, where they are not yet; returns
    their versions."""
    done = subprocess.run(
        [REPOSITORY / "scripts" / "clients", kind],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=_INSTALL_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return ", ".join(done.stdout.split("\n")).strip(", ")


def run_python(base: str, home: Path) -> list[Line]:
    """What the Python clients say of a server."""
    config = home / ".config" / "io.datasette.llm"
    config.mkdir(parents=True)
    (config / "extra-openai-models.yaml").write_text(_LLM_MODEL.format(base=base))
    python = clients_dir() / "sdk-py" / "bin" / "python"
    more = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    return _lines([str(python), str(SCRIPTS / "sdk_py.py")], base, home, more)


def run_javascript(base: str, home: Path) -> list[Line]:
    """What the JavaScript clients say of a server."""
    # Packages are looked for beside the script.
    script = home / "sdk.mjs"
    script.write_bytes((SCRIPTS / script.name).read_bytes())
    (home / "node_modules").symlink_to(clients_dir() / "sdk-js" / "node_modules")
    node = clients_dir() / "bin" / "node"
    return _lines([str(node), str(script)], base, home, {"AI_SDK_LOG_WARNINGS": "false"})


def clients_dir() -> Path:
    """Where scripts/clients puts what it installs."""
    named = os.environ.get("OMLX_TEST_CLIENTS")
    return Path(named) if named else Path.home() / ".cache" / "omlx-tests" / "clients"


def _lines(command: list[str], base: str, home: Path, more: dict[str, str]) -> list[Line]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "BASE": base, **more}
    done = subprocess.run(
        command, cwd=home, env=env, capture_output=True, text=True, timeout=_RUN_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: list[Line] = []
    for line in done.stdout.splitlines():
        name, _, rest = line.partition(" ")
        verdict, _, text = rest.partition(" ")
        # Some libraries print advice of their own.
        if verdict in ("OK", "ERR"):
            found.append(Line(name, verdict == "OK", text))
    return found
