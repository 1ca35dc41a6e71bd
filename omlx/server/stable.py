"""How much of a prompt later ones will begin with, where the template rewrites earlier turns.

Knows nothing about tokens. Many templates show what a model thought only until the user's next
message, so a chain of tool calls is printed in another way after it; some open a thought at the
end of a prompt that they don't print later.
"""

from collections.abc import Callable, Sequence

from omlx.errors import OmlxError
from omlx.models.messages import Message
from omlx.server.alignment import num_shared

_NEXT: tuple[Message, ...] = (
    {"role": "assistant", "content": "."},
    {"role": "user", "content": "."},
)


def num_stable(
    prompt: str, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]
) -> int:
    """How many characters of a prompt stay as they are once the user says more; 0 for all.

    `render` made `prompt` from the messages.
    """
    if messages[-1].get("role") == "assistant":
        return 0  # the answer that has begun goes on
    try:
        later = render([*messages, *_NEXT])
    except (OmlxError, RecursionError):
        return 0
    shared = num_shared(prompt, 0, later)
    return shared if shared < len(prompt) else 0
