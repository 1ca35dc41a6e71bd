"""All operations that have kernels, by name.

Knows nothing of verdicts.
"""

from omlx.custom_kernels import flat_rows, gemm_small, norm_gate_up, norm_qkv, qk_rope, qmm_small
from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.op import Op
from omlx.custom_kernels.source import digest_of
from omlx.errors import UsageError

_MODULES = (flat_rows, qmm_small, gemm_small, norm_qkv, norm_gate_up, qk_rope)


def operations(names: tuple[str, ...] = ()) -> tuple[Op, ...]:
    """All operations, or those that are named, in the order of the registry; UsageError."""
    unknown = sorted({*names} - {*NAMES})
    if unknown:
        raise UsageError(
            f"there is no kernel {unknown[0]!r}", hint=f"the kernels are {', '.join(NAMES)}"
        )
    found = (module.OP for module in _MODULES)
    return tuple(op for op in found if not names or op.name in names)


def operation(name: str) -> Op:
    """The operation of that name, which there is."""
    (found,) = operations((name,))
    return found


def digest(op: Op, backend: Backend) -> str | None:
    """What an operation's verdict holds for: source and launching code; None without a source."""
    if backend.device.backend not in op.backends:
        return None
    source = backend.digest(op.name) if op.has_source else ""
    return None if source is None else digest_of(source, op.code)
