"""What else happens to the directory: commands of omlx, and files removed or damaged by hand.

Knows nothing about requests or servers.
"""

import json
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path

from scripts.bench.soaking.routine import Routine
from tests.live import run_omlx

_PAUSES_S = (1.0, 6.0)
_TIMEOUT_S = 120.0


class Hands(Routine):
    """One thread that does one thing after another, by a seed."""

    def __init__(
        self, directory: Path, home: Path, models: Path, *, max_bytes: int, seed: int
    ) -> None:
        super().__init__()
        self.done: Counter[str] = Counter()
        self.num_files = 0
        self.problems: list[str] = []
        self._directory = directory
        self._home = home
        self._models = models
        self._max_bytes = max_bytes
        self._rng = random.Random(seed)
        self._may_be_bad = False

    def _run(self) -> None:
        deeds = {
            self._prune: 3,
            self._verify: 3,
            self._inspect: 3,
            self._explain: 1,
            self._remove: 4,
            self._remove_folder: 1,
            self._damage: 3,
        }
        while not self._is_over.wait(self._rng.uniform(*_PAUSES_S)):
            self._rng.choices(list(deeds), list(deeds.values()))[0]()

    def _omlx(self, *args: str, may_fail: bool = False) -> str:
        name = " ".join(args[:2]) + (" --repair" if "--repair" in args else "")
        self.done[name] += 1
        ran = run_omlx(*args, home=self._home, timeout_s=_TIMEOUT_S)
        is_bad = ran.returncode != 0 and not (may_fail and ran.returncode == 1)
        if is_bad or "Traceback" in ran.stderr:
            told = f"omlx {' '.join(args)}: {ran.returncode}\n{ran.stdout[-1000:]}{ran.stderr}"
            self.problems.append(told[-3000:])
        return ran.stdout

    def _prune(self) -> None:
        share = self._rng.uniform(0.1, 0.9)
        size = str(int(self._max_bytes * share))
        how = self._rng.choice([["--max-size", size], ["--older-than", "2s"], ["--all"]])
        self._omlx("cache", "prune", *how, "--json")

    def _verify(self) -> None:
        if self._rng.random() < 0.5:
            self._may_be_bad = False
            self._omlx("cache", "verify", "--repair", "--json")
        else:
            self._omlx("cache", "verify", "--json", may_fail=self._may_be_bad)

    def _inspect(self) -> None:
        text = self._omlx("cache", "inspect", "--json")
        with suppress(ValueError):
            json.loads(text)
            return
        self.problems.append(f"cache inspect --json prints no JSON: {text[:500]}")

    def _explain(self) -> None:
        models = ("--model-dir", str(self._models))
        self._omlx("cache", "inspect", "--request", "last", "--json", *models)

    def _files(self) -> list[Path]:
        found = [p for p in self._directory.rglob("*.safetensors") if not p.is_dir()]
        return self._rng.sample(found, min(len(found), self._rng.randint(1, 5)))

    def _remove(self) -> None:
        self.done["files removed by hand"] += 1
        for path in self._files():
            path.unlink(missing_ok=True)
            self.num_files += 1

    def _remove_folder(self) -> None:
        self.done["folders removed by hand"] += 1
        folders = sorted({path.parent for path in self._files()})
        if folders:
            shutil.rmtree(self._rng.choice(folders), ignore_errors=True)

    def _damage(self) -> None:
        """Turn a bit over, cut a file short, or empty it."""
        self.done["files damaged by hand"] += 1
        self._may_be_bad = True
        for path in self._files():
            with suppress(FileNotFoundError), path.open("r+b") as file:
                size = path.stat().st_size
                how = self._rng.randrange(4)
                if how == 0:
                    file.truncate(self._rng.randrange(size + 1))
                elif how == 1:
                    file.truncate(0)
                elif size:
                    place = self._rng.randrange(size)
                    file.seek(place)
                    old = file.read(1)
                    file.seek(place)
                    file.write(bytes([(old or b"\0")[0] ^ 1 << self._rng.randrange(8)]))
                self.num_files += 1
