"""One request and its answer in no dialect: what every dialect is turned into and made from.

Knows nothing about JSON, templates or engines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from omlx.engine.request import FinishReason, RequestClass
from omlx.models.messages import Message
from omlx.server.errors import ApiError, Flavor, bad_field
from omlx.server.parse.said import Reasoning, Said, Score, Text

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
_LARGEST = 2**53
# What a plain completion goes on from: text, or token ids.
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request says about sampling; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    # What is added to the logits of tokens, by their ids.
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether and how much the model thinks before it answers; None is as the model is set up.

    `is_on` is said in so many words; `is_on_by_default` is what silence means in the dialect.
    """

    is_on: bool | None = None
    is_on_by_default: bool | None = None
    budget: int | None = None
    effort: str | None = None


class Choice(Enum):
    """Whether the answer may, must or must not call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """How tools may be called; `name` is the only one that may be."""

    kind: Choice = Choice.AUTO
    name: str | None = None
    is_parallel: bool = True


class FormKind(Enum):
    """In which form an answer must be."""

    SCHEMA = "json_schema"
    OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "grammar"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an answer; `param` is where the body asks for it.

    `value` is the schema, the expression, the list of choices or the grammar.
    """

    kind: FormKind
    value: object = None
    param: str = "$.response_format"


@dataclass(frozen=True, slots=True)
class Generation:
    """A request to continue a conversation, as the template will see it.

    `prompt` is what a plain completion goes on from; there are no messages then.
    """

    model: str
    messages: Sequence[Message]
    wishes: Wishes = field(default_factory=Wishes)
    stop: tuple[str, ...] = ()
    is_stream: bool = False
    # Whether the stream ends with the usage, where the dialect lets the client choose.
    wants_usage: bool = True
    tools: Sequence[Message] = ()
    # Tools that may be called too, and that messages tell of, not the head of the prompt.
    later_tools: Sequence[Message] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    form: Form | None = None
    thinking: Thinking = field(default_factory=Thinking)
    # Variables for the template, by the client's own words.
    variables: Mapping[str, object] = field(default_factory=dict[str, object])
    num_choices: int = 1
    # How many of the most probable tokens are told of each; None: nothing is.
    logprobs: int | None = None
    prompt: Prompt | None = None
    # More of these, each with as many answers; `num_choices` counts those of all.
    more_prompts: Sequence[Prompt] = ()
    is_echo: bool = False
    # How urgent it is, where the body says so.
    request_class: RequestClass | None = None
    # Where the body has each message, where that is not simply its own list; -1 is its system.
    places: Sequence[int] = ()
    # Where the body's system has each text of it that is used; the same.
    system_places: Sequence[int] = ()
    # Where the body has each tool, where that is not simply its own list.
    tool_places: Sequence[int] = ()
    # What the dialect that made this needs for the reply; nobody else looks at it.
    own: object = None

    @property
    def num_prompts(self) -> int:
        """How many prompts there are; the answers to each follow each other."""
        return 1 + len(self.more_prompts)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request; `cached` of the prompt's tokens were not computed, `reasoning`
    of the completion's were no part of the answer."""

    prompt: int
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Began:
    """The request left the queue, so what it takes from the cache is known."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` prompt tokens that are not in the cache are computed."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is complete; `stop` is the stop string that ended it."""

    reason: FinishReason
    stop: str | None = None
    has_calls: bool = False


Piece = Began | Progress | Said | Ended


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; `arguments` is JSON text."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said in one of a request's answers, and how it ended; texts that follow each other
    are one."""

    parts: Sequence[Text | Reasoning | ToolCall]
    ended: Ended

    @property
    def text(self) -> str:
        """The text of the answer alone."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def reasoning(self) -> str:
        """What the model thought before."""
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning))

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of tools."""
        return [part for part in self.parts if isinstance(part, ToolCall)]

    @property
    def scores(self) -> list[Score]:
        """What is known of each token of the text, where that was asked for."""
        return [s for part in self.parts if isinstance(part, Text) for s in part.scores]


@dataclass(frozen=True, slots=True)
class About:
    """What a reply says of its request; `created` in epoch seconds."""

    request_id: str
    model: str
    created: int
    generation: Generation
    # Whose request it is; what is kept for a later one is kept for them alone.
    tenant: str = ""
    # Of what computes the answers: the same where the same seed gives the same answer.
    fingerprint: str | None = None
    # The text of each prompt, where an answer repeats it.
    prompts: Sequence[str] = ()


class Reply(Protocol):
    """Writes the answer to one request in a dialect; each method returns bytes to send."""

    def head(self) -> bytes:
        """What goes out with the headers of a stream."""
        ...

    def begin(self, usage: Usage) -> bytes:
        """What precedes the text of a stream; the usage may not be final."""
        ...

    def said(self, part: Said, choice: int) -> bytes:
        """More of one of a stream's answers."""
        ...

    def keepalive(self, progress: Progress | None) -> bytes:
        """What a client takes as a sign of life in a stream."""
        ...

    def ended(self, ended: Ended, choice: int) -> bytes:
        """The end of one of a stream's answers."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The end of a stream, all of whose answers have ended."""
        ...

    def error(self, error: ApiError) -> bytes:
        """The end of a stream that failed."""
        ...

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The body of an answer that isn't streamed."""
        ...


class Dialect(Protocol):
    """One API: reads its requests and writes its replies."""

    @property
    def flavor(self) -> Flavor:
        """In whose shape its errors are."""
        ...

    def decode(self, body: bytes, tenant: str = "") -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        ...

    def reply(self, about: About) -> Reply:
        """The writer of the answer to one request."""
        ...


def tool_name(tool: Message) -> str:
    """The name of a tool as templates know it."""
    match tool:
        case {"function": {"name": str(name)}}:
            return name
        case _:
            return ""


def number(
    value: float | None, param: str, *, low: float, high: float = _LARGEST, exclusive: bool = False
) -> float | None:
    """A number within its limits, else a 400 that names the field."""
    if value is None:
        return None
    if exclusive and value <= low:
        raise bad_field(param, f"Must be more than {low:g}")
    if not low <= value <= high:
        limit = f"at least {low:g}" if high >= _LARGEST else f"between {low:g} and {high:g}"
        raise bad_field(param, f"Must be {limit}")
    return value


def whole(value: float | None, param: str, *, low: int, high: int = _LARGEST) -> int | None:
    """A whole number, also written as 8.0, cut to `high`; else a 400 that names the field."""
    if value is None:
        return None
    if value != int(value):
        raise bad_field(param, "Must be a whole number")
    if value < low:
        raise bad_field(param, f"Must be at least {low}")
    return min(int(value), high)


def seed(value: float | None, param: str) -> int | None:
    """A seed as 63 bits, whatever its sign and size; else a 400 that names the field."""
    if value is None:
        return None
    if value != int(value):
        raise bad_field(param, "Must be a whole number")
    return int(value) % 2**63


def stop_strings(stops: list[str], param: str) -> tuple[str, ...]:
    """Stop strings within their limits, else a 400 that names the field."""
    if len(stops) > MAX_STOPS:
        raise bad_field(param, f"At most {MAX_STOPS} stop strings are accepted")
    for index, stop in enumerate(stops):
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            limits = f"1 to {MAX_STOP_CHARS} characters"
            raise bad_field(f"{param}[{index}]", f"A stop string must have {limits}")
    return tuple(stops)


def content(texts: list[str]) -> str | list[dict[str, str]]:
    """Text parts as a message's content: one is a plain string, so that both forms are the same."""
    if len(texts) < 2:
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]
