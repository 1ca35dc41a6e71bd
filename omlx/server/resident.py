"""Loads and unloads a model because a client asks for it, and answers once that is done.

Knows nothing about HTTP or which models there are; for the loop's thread.
"""

import asyncio
from collections.abc import Callable

from omlx.engine.request import EngineState
from omlx.server.context import EnginePool
from omlx.server.errors import in_use, unavailable

_POLL_S = 0.05


async def load_model(
    pool: EnginePool, model_id: str, is_draining: Callable[[], bool]
) -> dict[str, object]:
    """Load a model and wait until it is; ApiError if it can't be."""
    pool.load(model_id)
    while (state := pool.get(model_id).state()) is not EngineState.READY:
        reason = pool.refusal(model_id)
        if reason is not None:
            raise unavailable(reason or f"The model {model_id!r} was unloaded again")
        if is_draining():
            raise unavailable("The server is stopping")
        await asyncio.sleep(_POLL_S)
    return {"id": model_id, "state": state.value}


async def unload_model(pool: EnginePool, model_id: str) -> dict[str, object]:
    """Unload a model and wait until its process is gone; ApiError if it has requests."""
    if not pool.unload(model_id):
        raise in_use(model_id, pool.health(model_id).num_live)
    while (state := pool.get(model_id).state()) is EngineState.DRAINING:
        await asyncio.sleep(_POLL_S)
    return {"id": model_id, "state": state.value}
