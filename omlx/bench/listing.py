"""The models that an OpenAI-compatible server lists.

Knows nothing about which of them is meant.
"""

import http.client
import json
from typing import cast

from omlx.bench.address import connection_to, hint_of, reason_of
from omlx.bench.client import Target
from omlx.bench.failure import Fault, RequestError

_MAX_BYTES = 4_000_000


def model_names(target: Target) -> list[str]:
    """The models that a server lists; RequestError if it does not tell."""
    connection, path = connection_to(target.url)
    who = target.name or target.url
    headers = {} if target.key is None else {"Authorization": f"Bearer {target.key}"}
    try:
        connection.request("GET", path + "/models", headers=headers)
        with connection.getresponse() as response:
            status, body = response.status, response.read(_MAX_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RequestError(Fault.REFUSED, f"{who} does not answer: {reason_of(error)}") from None
    finally:
        connection.close()
    if status != 200:
        raise RequestError(
            Fault.STATUS, f"{who} answers with {status}", status=status, hint=hint_of(status)
        )
    try:
        answer: object = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    listed = cast(dict[str, object], answer).get("data") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        raise RequestError(Fault.GARBAGE, f"{who} lists its models in a way that can't be read")
    found = [
        cast(dict[str, object], one).get("id")
        for one in cast(list[object], listed)
        if isinstance(one, dict)
    ]
    return [name for name in found if isinstance(name, str)]
