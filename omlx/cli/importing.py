"""`omlx model import`: makes a model that MLX runs of a GGUF file.

Knows nothing about what is in such files.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from omlx.cli.options import SettingsCommand, resolve, say, settings_options, warn
from omlx.errors import ModelError, UsageError

if TYPE_CHECKING:
    from omlx.models.gguf import Form, Scales

OnTask = Callable[[int, int, str], None]


@click.command(name="import", cls=SettingsCommand)
@click.argument("file", metavar="FILE.gguf", type=click.Path(dir_okay=False))
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="The folder to make. Default: the file's name, in the first model folder.",
)
@click.option(
    "--bits",
    metavar="B",
    type=click.FloatRange(2.0, 8.0),
    help="Round again, to so many bits a weight, as omlx quantize does.",
)
@click.option("--floats", is_flag=True, help="Keep all values as floats: large, and exact.")
@click.option(
    "--dtype",
    type=click.Choice(["float16", "bfloat16", "float32"]),
    default="float16",
    show_default=True,
    help="Type of floats and of scales; float32 keeps the scales of Q4_K and Q5_K exact.",
)
@settings_options("models.dir", "engine.blas")
@click.pass_context
def import_model(
    ctx: click.Context,
    *,
    file: str,
    out: str | None,
    bits: float | None,
    floats: bool,
    dtype: str,
    **given: object,
) -> None:
    """Make a model of a GGUF file, and verify it.

    Tensors of types that MLX has, too (Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q8_0), are repacked
    without rounding again; others become floats, unless --bits says what to round them to.
    Tokenizer and chat template come from the file, and texts must come back from the tokenizer as
    they were.

    Llama, Mistral, Mixtral, Qwen 2 and 3 (with experts, too), Gemma 2 and 3, Phi 3 and DeepSeek 2
    and 3 can be imported; another architecture is refused by its name.
    """
    from omlx.models.gguf import import_gguf, kept_in_floats

    if floats and bits is not None:
        raise UsageError("--floats and --bits exclude each other")
    resolved = resolve(ctx, given)
    source = Path(file).expanduser()
    target = Path(out).expanduser() if out else resolved.model_dirs[0] / source.stem
    if target.exists():
        raise ModelError(f"{target} is already there", hint="Remove it, or give another -o.")
    if bits is not None:
        _rounded(source, target, {"bits": bits}, dtype=dtype, blas=resolved.settings.engine.blas)
    else:
        form = "native" if not floats else dtype
        with _reporting() as report:
            import_gguf(
                source,
                target,
                form=cast("Form", form),
                scales=cast("Scales", dtype),
                progress=lambda done, total: report(done, total, "import"),
            )
        if not floats:
            kept = kept_in_floats(source)
            shown = ", ".join(f"{count} of {name}" for name, count in sorted(kept.items()))
            note = f"tensors that MLX has no form for stay in floats: {shown}; --bits rounds them"
            warn([note] if kept else [])
    say(str(target))


def _rounded(
    source: Path, target: Path, goal: Mapping[str, object], *, dtype: str, blas: str
) -> None:
    """Import as floats beside the target, and quantize that."""
    from omlx.engine.task import run_task
    from omlx.models.gguf import import_gguf

    whole = target.parent / f".{target.name}.floats"
    try:
        with _reporting() as report:
            if not (whole / "config.json").exists():
                import_gguf(
                    source,
                    whole,
                    form=cast("Form", dtype),
                    progress=lambda done, total: report(done, total, "import"),
                )
            run_task(
                "omlx.models.quantize",
                {
                    "model": str(whole.absolute()),
                    "out": str(target.absolute()),
                    "goal": goal,
                    "dtype": dtype,
                },
                blas=blas,
                progress=report,
            )
    except KeyboardInterrupt:
        click.echo("what was made is kept: the same command goes on from there", err=True)
        raise
    shutil.rmtree(whole)


def _reporting() -> AbstractContextManager[OnTask]:
    from omlx.cli.quantize import reporting

    return reporting("import")
