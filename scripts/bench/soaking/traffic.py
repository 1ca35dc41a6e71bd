"""The clients of the soak: conversations, forks, repeats, bursts, long prompts, and who leaves.

Every answer is compared with the one of a plain run, also what has come of one that broke off. A
request that a kill may have broken is sent again; any other that fails is an error.
"""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omlx.models.text import TextModel
from scripts.bench.soaking.reference import Reference, ReferenceProcess
from scripts.bench.soaking.servers import Server
from scripts.bench.soaking.wire import ANTHROPIC, OPENAI, Answer, Message, Wish, send

_WORDS = [
    *("river", "stone", "tree", "yellow", "black", "white", "blue", "green", "red", "ten"),
    *("nine", "eight", "done", "house", "window", "letter", "paper", "night", "day", "cold"),
    *("warm", "small", "large", "near", "far", "open", "close", "read", "write", "begin"),
]
_REPLY = 20
_MOST_TOKENS = 1500  # of a conversation's prompt
_LONG_WORDS = (800, 1800)
_HEAD_WORDS = (40, 200, 500)
_KNOWN = 300  # prompts that are kept to be sent again
_TOLD = 10


@dataclass(frozen=True)
class Prompt:
    """A conversation that waits for a reply, and what a plain run replies."""

    model: str
    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    reference: Reference


@dataclass
class Tally:
    """What came of the requests; counts are exact, examples are few."""

    counts: Counter[str] = field(default_factory=Counter[str])
    wrong: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **numbers: int) -> None:
        with self.lock:
            self.counts.update(numbers)

    def tell(self, kind: str, example: dict[str, Any]) -> None:
        with self.lock:
            self.counts[kind] += 1
            examples = self.wrong if kind == "wrong" else self.errors
            if len(examples) < _TOLD:
                examples.append(example)


class Book:
    """Prompts with their references, and the last of them; any thread may use it."""

    def __init__(self, models: Path, names: Sequence[str], reference: ReferenceProcess) -> None:
        self.texts = {name: TextModel.load(models / name) for name in names}
        self.num_ties = 0
        self._reference = reference
        self._known: deque[Prompt] = deque(maxlen=_KNOWN)

    def prompt(self, model: str, messages: Sequence[Message]) -> Prompt:
        """A prompt with what a plain run replies; waits until that is computed."""
        prompt = self.unknown(model, messages)
        found = self._reference.get(model, prompt.tokens, _REPLY)
        self.num_ties += found.is_tie
        known = replace(prompt, reference=found)
        if found.tokens:
            self._known.append(known)
        return known

    def unknown(self, model: str, messages: Sequence[Message]) -> Prompt:
        """The same without a reply: nothing of it is compared."""
        text = self.texts[model]
        tokens = tuple(text.encode(text.render(messages)))
        return Prompt(model, tuple(messages), tokens, Reference((), False, True))

    def control(self, num: int, rng: random.Random) -> dict[str, int]:
        """How many known prompts have another answer once a block in their middle is another.

        It shows that a wrong block would be seen.
        """
        long = [prompt for prompt in list(self._known) if len(prompt.tokens) > 100]
        chosen = rng.sample(long, min(num, len(long)))
        num_differ = 0
        for prompt in chosen:
            middle = len(prompt.tokens) // 2
            others = [rng.randrange(100, 40_000) for _ in range(16)]
            tokens = (*prompt.tokens[:middle], *others, *prompt.tokens[middle + 16 :])
            found = self._reference.get(prompt.model, tokens, _REPLY).tokens
            shared = min(len(found), len(prompt.reference.tokens))
            num_differ += found[:shared] != prompt.reference.tokens[:shared]
        return {"changed": len(chosen), "differ": num_differ}

    def any_known(self, rng: random.Random) -> Prompt | None:
        known = list(self._known)
        return rng.choice(known) if known else None

    def expected(self, prompt: Prompt, max_tokens: int) -> tuple[str, str, int]:
        """Text, finish reason and number of tokens of the right answer."""
        tokens = prompt.reference.tokens
        text = self.texts[prompt.model].decode(tokens[:max_tokens])
        # The end token counts as one that was generated.
        if max_tokens > len(tokens):
            return text, "stop", len(tokens) + 1
        return text, "length", max_tokens


class Client:
    """One client thread; what it does follows from its seed, but for the times."""

    def __init__(
        self, number: int, seed: int, *, servers: Sequence[Server], book: Book, tally: Tally
    ) -> None:
        self.rng = random.Random(seed * 1000 + number)
        self.failure: BaseException | None = None
        self._heads = random.Random(seed)  # the same for all clients
        self._servers = servers
        self._book = book
        self._tally = tally
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"client {number}")
        self._systems = {
            name: [_words(self._heads, size) for size in _HEAD_WORDS] for name in book.texts
        }

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        deeds = {
            self._converse: 4,
            self._fork: 5,
            self._repeat: 12,
            self._burst: 2,
            self._leave: 4,
            self._long: 1,
        }
        try:
            while not self._is_over.is_set():
                deed = self.rng.choices(list(deeds), list(deeds.values()))[0]
                self._tally.add(**{f"did{deed.__name__}": 1})
                deed()
        except BaseException as error:
            self.failure = error
            raise

    def _new(self, num_words: int) -> tuple[str, list[Message]]:
        model = self.rng.choice(sorted(self._book.texts))
        system = self.rng.choice([None, *self._systems[model]])
        head = [{"role": "system", "content": system}] if system is not None else []
        return model, [*head, _user(_words(self.rng, num_words))]

    def _converse(self) -> None:
        """A few turns, each of which begins with all that was said before."""
        model, messages = self._new(self.rng.randint(5, 60))
        for _ in range(self.rng.randint(2, 6)):
            prompt = self._book.prompt(model, messages)
            if not prompt.reference.tokens or self._is_over.is_set():
                return
            reply = self._ask(prompt)
            if len(prompt.tokens) > _MOST_TOKENS:
                return
            more = _user(_words(self.rng, self.rng.randint(5, 80)))
            messages = [*messages, {"role": "assistant", "content": reply or "none"}, more]

    def _fork(self) -> None:
        """The beginning of a known prompt with another end."""
        known = self._book.any_known(self.rng)
        if known is None:
            return
        users = [i for i, one in enumerate(known.messages) if one["role"] == "user"]
        cut = self.rng.choice(users)
        old = known.messages[cut]["content"].split()
        kept = old[: self.rng.randint(0, len(old))]
        end = _user(" ".join([*kept, _words(self.rng, self.rng.randint(1, 40))]))
        self._ask(self._book.prompt(known.model, [*known.messages[:cut], end]))

    def _repeat(self) -> None:
        """A known prompt again, sometimes by two clients at the same time."""
        known = self._book.any_known(self.rng)
        if known is not None:
            self._ask_all([known] * self.rng.choice([1, 2, 3, 4]))

    def _burst(self) -> None:
        """Prompts that begin alike, sent together before any of it is kept."""
        model, messages = self._new(self.rng.randint(50, 300))
        start = messages[-1]["content"]
        ends = [_words(self.rng, self.rng.randint(1, 9)) for _ in range(self.rng.randint(2, 5))]
        prompts = [
            self._book.prompt(model, [*messages[:-1], _user(f"{start} {end}")]) for end in ends
        ]
        self._ask_all(prompts)

    def _long(self) -> None:
        model, messages = self._new(self.rng.randint(*_LONG_WORDS))
        prompt = self._book.prompt(model, messages)
        self._ask(prompt)
        self._ask(prompt)

    def _leave(self) -> None:
        """Leave in the queue, in the prefill or in the decode; often the same is asked again."""
        comes_back = self.rng.random() < 0.5
        model, messages = self._new(self.rng.randint(50, 600))
        prompt = self._book.prompt(model, messages) if comes_back else self._book.unknown(
            model, messages
        )  # fmt: skip
        when = self.rng.choice([0.001, self.rng.uniform(0.01, 0.6), 1, self.rng.randint(1, _REPLY)])
        num = self.rng.choice([1, 1, 2, 4])
        threads = [
            threading.Thread(target=self._ask, args=(prompt,), kwargs={"leave_after": when})
            for _ in range(num)
        ]
        for thread in threads:
            thread.start()
        if comes_back and self.rng.random() < 0.5:
            self._ask(prompt)
        for thread in threads:
            thread.join()
        if comes_back:
            self._ask(prompt)

    def _ask_all(self, prompts: Sequence[Prompt]) -> None:
        """Several at the same time."""
        wishes = [(prompt, self._wish(prompt, None)) for prompt in prompts]
        threads = [
            threading.Thread(target=self._settle, args=(prompt, *wish)) for prompt, wish in wishes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _wish(self, prompt: Prompt, leave_after: int | float | None) -> tuple[Server, Wish]:
        """Where and how a prompt is asked."""
        rng, known = random.Random(self.rng.random()), prompt.reference
        able = [server for server in self._servers if prompt.model in server.models]
        able = [server for server in able if server.is_ready] or able
        most = len(known.tokens) + 4 * known.has_ended
        max_tokens = rng.choice([most, rng.randint(1, max(1, most))])
        if leave_after is not None and not known.tokens:
            max_tokens = _REPLY
        wish = Wish(
            model=prompt.model,
            messages=prompt.messages,
            max_tokens=max(1, max_tokens),
            dialect=rng.choice([OPENAI, ANTHROPIC]),
            is_stream=leave_after is not None or rng.random() < 0.5,
            leave_after=leave_after,
        )
        return rng.choice(able), wish

    def _ask(self, prompt: Prompt, leave_after: int | float | None = None) -> str:
        """Ask until there is an answer that no kill has broken; the right text of it."""
        if not prompt.reference.tokens and leave_after is None:
            return ""
        return self._settle(prompt, *self._wish(prompt, leave_after))

    def _settle(self, prompt: Prompt, server: Server, wish: Wish) -> str:
        if not prompt.reference.tokens and wish.leave_after is None:
            return ""
        while True:
            server.wait_ready()
            started = time.monotonic()
            answer = send(server.port, wish)
            self._check(prompt, wish, answer, server)
            if not answer.problem or answer.has_left:
                break
            if not server.may_have_broken(started):
                self._tally.tell("errors", _example(prompt, wish, answer, server))
                break
            self._tally.add(broken_by_a_kill=1)
            time.sleep(0.2)
            if self._is_over.is_set():
                break
        return self._book.expected(prompt, wish.max_tokens)[0]

    def _check(self, prompt: Prompt, wish: Wish, answer: Answer, server: Server) -> None:
        if not prompt.reference.tokens:
            self._tally.add(left_without_compare=1)
            return
        text, finish, num_tokens = self._book.expected(prompt, wish.max_tokens)
        if answer.problem:
            is_right = text.startswith(answer.text)
            self._tally.add(parts_compared=bool(answer.text), left=answer.has_left)
        else:
            found = (answer.text, answer.finish, answer.prompt_tokens, answer.completion_tokens)
            is_right = found == (text, finish, len(prompt.tokens), num_tokens)
            self._tally.add(
                compared=1,
                tokens_compared=answer.completion_tokens,
                prompt_tokens=answer.prompt_tokens,
                cached_tokens=answer.cached_tokens,
                with_a_hit=answer.cached_tokens > 0,
                **{f"as_{wish.dialect}": 1, "streamed": wish.is_stream},
            )
        if not is_right:
            told = _example(prompt, wish, answer, server)
            told |= {"expected": text, "finish": finish, "num_tokens": num_tokens}
            self._tally.tell("wrong", told)


def _words(rng: random.Random, num: int) -> str:
    return " ".join(rng.choices(_WORDS, k=num))


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _example(prompt: Prompt, wish: Wish, answer: Answer, server: Server) -> dict[str, Any]:
    return {
        "server": server.name,
        "life": len(server.lives) - 1,
        "model": wish.model,
        "dialect": wish.dialect,
        "is_stream": wish.is_stream,
        "prompt_tokens": len(prompt.tokens),
        "max_tokens": wish.max_tokens,
        "problem": answer.problem,
        "got": answer.text,
        "got_finish": answer.finish,
        "got_prompt_tokens": answer.prompt_tokens,
        "got_tokens": answer.completion_tokens,
        "cached_tokens": answer.cached_tokens,
    }
