"""Turns a request body into token ids for one engine: decode, find the model, render, encode, fit.

Knows nothing about HTTP or engines. Runs on the text thread, one request at a time.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from omlx import __version__
from omlx.cache.policy import StorePolicy
from omlx.engine.request import Engine, EngineRequest, RequestClass, SamplingParams
from omlx.errors import ModelError
from omlx.models.messages import texts_of
from omlx.models.names import Named
from omlx.models.segments import Splice
from omlx.models.spans import CharSpan, find_parts
from omlx.server.attempts import attempts
from omlx.server.canonical import Changes, Rule, canonical
from omlx.server.context import Message, ModelText, ServerContext
from omlx.server.enforce import grammar_of
from omlx.server.errors import ApiError, bad_field, overflow, too_large, unknown_model
from omlx.server.generation import Choice, Dialect, Generation, Prompt, Wishes
from omlx.server.handling import Handling
from omlx.server.ledger import Ledger, Rendered
from omlx.server.parse.speech import SpeechForm
from omlx.server.scale import REAL, Scale, scale_of
from omlx.server.stable import num_stable
from omlx.server.variables import with_variables
from omlx.settings.build import ModelSettings
from omlx.settings.schema import Sampling
from omlx.storage.entry import PartKind, Span

# The budget of an answer by a model whose files don't say how much it can see.
_UNKNOWN_WINDOW_BUDGET = 32768
# top_p 0 means the most probable token only; engines take 0 for "off".
_SMALLEST_TOP_P = 1e-6


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as text and tokens, what its parts became, and how long its answer may be."""

    text: str
    tokens: tuple[int, ...]
    spans: tuple[Span, ...]
    max_tokens: int = 0
    num_spliced: int = 0  # replies of which the tokens are those of earlier answers
    stable: int = 0  # as in EngineRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that an engine can take, with what is needed to write its answer.

    The first `head` tokens are system and tools; 0 where there are none, or they don't come first.
    `stable` is as in EngineRequest.
    """

    generation: Generation
    model_id: str  # the engine's
    text: ModelText
    tokens: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    spans: tuple[Span, ...] = ()
    prompt: str | None = None  # where the journal keeps texts
    head: int = 0
    stable: int = 0
    store: StorePolicy = StorePolicy.ALL
    named: str = ""  # the model as answers call it: model:profile where one was meant
    request_class: RequestClass = RequestClass.NORMAL
    repetition_guard: int = 0
    speech_form: SpeechForm = field(default_factory=SpeechForm)
    is_thinking: bool = False  # where the answer begins
    thinking_budget: int | None = None
    prompts: tuple[Encoded, ...] = ()  # all of them, of which this has the first
    fingerprint: str | None = None
    # What was done to it before the template saw it, by the value of a rule.
    changes: Changes = field(default_factory=dict[str, int])
    # How its tokens are counted for the client.
    scale: Scale = REAL

    @property
    def request(self) -> EngineRequest:
        """The request as the engine takes it, without its id."""
        return EngineRequest(
            id="",
            tokens=self.tokens,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            stop=tuple((token,) for token in sorted(self.text.eos_ids)),
            head=self.head,
            stable=self.stable,
            store=self.store,
            request_class=self.request_class,
            repetition_guard=self.repetition_guard,
        )

    @property
    def thinking_close(self) -> str:
        """What ends the model's reasoning; empty where nothing is known to."""
        marks = self.speech_form.reasoning
        return f"\n{marks.closes[0]}\n\n" if marks else ""

    def another(self, number: int) -> "Prepared":
        """The same request for its answer `number`, which a seed must not make the same.

        With several prompts, the answers to each follow each other.
        """
        seed = self.sampling.seed
        at, number = divmod(number, self.generation.num_choices // self.generation.num_prompts)
        changed = None if seed is None else (seed + number) % 2**63
        made = replace(self, sampling=replace(self.sampling, seed=changed))
        if at == 0:
            return made
        own = self.prompts[at]
        kept = None if self.prompt is None else own.text
        return replace(made, tokens=own.tokens, max_tokens=own.max_tokens, prompt=kept)

    @property
    def tools(self) -> Sequence[Message]:
        """The tools that the answer may call."""
        generation = self.generation
        if generation.tool_choice.kind is Choice.NONE:
            return ()
        return [*generation.tools, *generation.later_tools]


def prepare(
    context: ServerContext,
    dialect: Dialect,
    body: bytes,
    wanted: Handling | None = None,
    tenant: str = "",
    *,
    salt: str = "",
) -> Prepared:
    """A body as a request to an engine; ApiError says what is wrong with it."""
    wanted = wanted or Handling()
    asked_for = dialect.decode(body, tenant)
    meant = _meant(context, asked_for, salt)
    settings, text, generation, scale = meant.settings, meant.text, meant.generation, meant.scale
    entry = meant.named.entry
    own_form = (
        SpeechForm() if generation.prompt is not None else context.forms.of(text, settings.parser)
    )
    form = _form(own_form, generation)
    request_class = wanted.class_of(generation.request_class, settings.scheduler.request_class)
    asked = generation.wishes.max_tokens or settings.sampling.max_tokens
    wants_stable = _has_states(context.pool.get(entry.id))
    all_encoded = [encode(text, generation, context.ledger, salt=salt, wants_stable=wants_stable)]
    all_encoded += [_plain(text, prompt) for prompt in generation.more_prompts]
    prompts = tuple(
        replace(one, max_tokens=_budget(len(one.tokens), meant.window, asked, scale))
        for one in all_encoded
    )
    encoded = prompts[0]
    is_thinking = form.opens_thinking(encoded.text)
    sampling = replace(
        _sampling(generation.wishes, settings.sampling),
        grammar=grammar_of(generation, text, own_form, is_thinking=is_thinking),
        logprobs=generation.logprobs,
    )
    return Prepared(
        generation,
        entry.id,
        text,
        encoded.tokens,
        encoded.max_tokens,
        sampling,
        encoded.spans,
        encoded.text if context.settings.journal.text else None,
        head=head_of(encoded.spans),
        stable=encoded.stable,
        store=wanted.policy(settings.cache.store, request_class),
        request_class=request_class,
        repetition_guard=settings.scheduler.repetition_guard,
        named=meant.named.id,
        speech_form=form,
        is_thinking=is_thinking,
        thinking_budget=generation.thinking.budget,
        prompts=prompts,
        fingerprint=_fingerprint(context.pool.version(entry.id)),
        changes=_with_spliced(meant.changes, encoded.num_spliced),
        scale=scale,
    )


def _has_states(engine: Engine) -> bool:
    """Whether the model keeps snapshots of recurrent layers; not known before it is loaded."""
    figures = engine.snapshot()
    return figures is not None and figures.snapshots.memory.budget_bytes > 0


def _with_spliced(changes: Changes, num_spliced: int) -> Changes:
    return {**changes, Rule.LEDGER.value: num_spliced} if num_spliced else changes


def _fingerprint(version: str) -> str | None:
    """What the same seed gives the same answer for: this program, and the model's files."""
    if not version:
        return None
    return f"fp_{hashlib.sha256(f'{__version__} {version}'.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class _Meant:
    """The model of a request and the request as that model is to see it."""

    named: Named
    settings: ModelSettings
    text: ModelText
    window: int | None
    generation: Generation
    changes: Changes

    @property
    def scale(self) -> Scale:
        return scale_of(self.settings.agent, self.window)


def _meant(context: ServerContext, generation: Generation, salt: str) -> _Meant:
    named = find_model(context, generation.model)
    settings = context.model_settings(named.id)
    text = with_variables(context.texts(named.entry), settings, generation)
    limits = (settings.context_window, text.context_window, named.entry.context_window)
    window = min((limit for limit in limits if limit is not None), default=None)
    made = canonical(generation, settings.prompt, context.tool_sets, salt=salt)
    return _Meant(named, settings, text, window, made.generation, made.changes)


def count_tokens(context: ServerContext, dialect: Dialect, body: bytes, salt: str = "") -> int:
    """How many tokens the prompt of a body has, of whatever length; ApiError as `prepare`."""
    meant = _meant(context, dialect.decode(body), salt)
    generation = meant.generation
    encoded = encode(meant.text, generation, context.ledger, salt=salt)
    return meant.scale.tokens(len(encoded.tokens))


def head_of(spans: Sequence[Span]) -> int:
    """Where the system and the tools end, as far as they come before all messages."""
    head = 0
    for span in spans:
        part = span.part
        is_moved = part.kind is PartKind.SYSTEM and part.name
        if (part.kind is PartKind.MESSAGE and part.name != "system") or is_moved:
            break
        head = span.end
    return head


def encode(
    text: ModelText,
    generation: Generation,
    ledger: Ledger | None = None,
    *,
    salt: str = "",
    wants_stable: bool = False,
) -> Encoded:
    """The prompt of a request, and which of its tokens come from which part of the body.

    Of earlier replies that the ledger knows the tokens are taken from there. Where the prompt is
    stable is found out only if that is wanted: it takes rendering it once more.
    """
    if generation.prompt is not None:
        return _plain(text, generation.prompt)
    prompt = render(text, generation.messages, generation.tools)
    found = _parts(text, generation, prompt)
    splices: Sequence[Splice] = ()
    if ledger is not None and found:
        places = generation.places or range(len(generation.messages))
        rendered = Rendered(prompt, generation.messages, places, found)
        splices = ledger.splices(text, rendered, salt=salt)
    chars = [(part.start, part.end) for part in found]
    later = partial(render, text, tools=generation.tools)
    num_chars = num_stable(prompt, generation.messages, later) if wants_stable else 0
    chars.append((0, num_chars))
    tokens, ranges = text.encode_at(prompt, chars, splices)
    *ranges, (_, stable) = ranges or [(0, 0)]
    spans: list[Span] = []
    for part, (start, end) in zip(found, ranges, strict=False):
        start = max(start, spans[-1].end if spans else 0)  # one token may hold the edge of two
        if start < end:
            spans.append(Span(part.part, start, end))
    return Encoded(
        prompt, tuple(tokens), tuple(spans), num_spliced=len(splices), stable=max(stable - 1, 0)
    )


def _form(form: SpeechForm, generation: Generation) -> SpeechForm:
    """How the answer will be split: without tools, what looks like a call is text."""
    is_plain = generation.tool_choice.kind is Choice.NONE or not (
        generation.tools or generation.later_tools
    )
    return form.without_calls() if is_plain else form


def _plain(text: ModelText, prompt: Prompt) -> Encoded:
    """A prompt that no template makes: text, or token ids."""
    tokens = text.encode(prompt) if isinstance(prompt, str) else prompt
    if not tokens:
        raise bad_field("$.prompt", "Must hold at least one token")
    if isinstance(prompt, str):
        return Encoded(prompt, tuple(tokens), ())
    if not all(token >= 0 and text.token_bytes(token) for token in set(prompt)):
        raise bad_field("$.prompt", "Must hold ids of the model's tokens only")
    return Encoded(text.spell(prompt), tuple(tokens), ())


def _parts(text: ModelText, generation: Generation, prompt: str) -> list[CharSpan]:
    try:
        return find_parts(
            prompt,
            generation.messages,
            generation.tools,
            lambda messages, tools: render(text, messages, tools),
            places=generation.places,
            system_places=generation.system_places,
            tool_places=generation.tool_places,
        )
    except RecursionError:  # a schema that is nested too deeply to be marked
        return []


def find_model(context: ServerContext, name: str, *, or_default: bool = True) -> Named:
    """The model that a client means, or the default model where one is set; ApiError 404."""
    names = context.names()
    named = names.find(name)
    if named is None and name in context.refused:
        raise too_large(context.refused[name])
    default = context.settings.server.default_model
    if named is None and or_default and default is not None:
        named = names.find(default)
    if named is None:
        raise unknown_model(name, names.why_not(name))
    return named


def render(text: ModelText, messages: Sequence[Message], tools: Sequence[Message] = ()) -> str:
    """The prompt as text; an answer that the client has begun is continued.

    Where the template objects to a system message in the middle, that one becomes a marked note
    of the user's at its place, so that the prompt up to there stays what it was.
    """
    begun = ""
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        messages, begun = messages[:-1], "".join(texts_of(messages[-1]))
        if not messages:
            raise bad_field("$.messages", "Must hold a turn that can be answered")
    refusal: ModelError | None = None
    for attempt in attempts(messages, lambda probe: text.render(probe, tools=tools or None)):
        try:
            return text.render(attempt, tools=tools or None) + begun
        except ModelError as error:
            refusal = refusal or error
    assert refusal is not None
    raise ApiError(
        400, f"The model's chat template refuses this: {refusal.message}", param="$.messages"
    ) from refusal


def _budget(num_tokens: int, window: int | None, asked: int | None, scale: Scale) -> int:
    """How many tokens the answer may have: what was asked for, at most the rest of the window."""
    if window is None:
        return asked or _UNKNOWN_WINDOW_BUDGET
    if num_tokens >= window:
        raise overflow(scale.tokens(num_tokens), scale.tokens(window))
    return min(asked or window, window - num_tokens)


def _sampling(wishes: Wishes, defaults: Sampling) -> SamplingParams:
    def first(wish: float | None, default: float | None, otherwise: float) -> float:
        return next(value for value in (wish, default, otherwise) if value is not None)

    return SamplingParams(
        temperature=first(wishes.temperature, defaults.temperature, 1.0),
        top_p=max(first(wishes.top_p, defaults.top_p, 1.0), _SMALLEST_TOP_P),
        top_k=int(first(wishes.top_k, defaults.top_k, 0)),
        min_p=first(wishes.min_p, defaults.min_p, 0.0),
        repetition_penalty=first(wishes.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=first(wishes.presence_penalty, defaults.presence_penalty, 0.0),
        frequency_penalty=first(wishes.frequency_penalty, defaults.frequency_penalty, 0.0),
        seed=wishes.seed,
        logit_bias=wishes.logit_bias,
        min_tokens=wishes.min_tokens,
    )
