"""The models that tests serve: the real demo model, and tiny random ones with a real tokenizer."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from omlx.models.demo import DEMO_ID, pull_demo
from tests.fakes import tiny


def models_dir() -> Path:
    """Where pulled models are kept between test runs; OMLX_TEST_MODELS moves it."""
    named = os.environ.get("OMLX_TEST_MODELS")
    return Path(named) if named else Path.home() / ".cache" / "omlx-tests" / "models"


def demo_model() -> Path:
    """The directory of SmolLM2-135M-Instruct, pulled on first use."""
    path = models_dir() / DEMO_ID
    if not (path / "config.json").exists():
        pull_demo(models_dir(), progress=lambda _: None)
    return path


def tiny_served_model(
    folder: Path, *, window: int = 8192, base: dict[str, Any] = tiny.CONFIGS["llama"]
) -> Path:
    """A tiny random model with the demo model's tokenizer and template, as a model directory."""
    demo = demo_model()
    config = {**base, "vocab_size": 49152, "max_position_embeddings": window}
    path = folder / "tiny"
    tiny.save(tiny.build_config(config), path, config)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(demo / name, path / name)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    return path
