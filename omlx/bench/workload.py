"""Prompts from a seed, of an exact number of tokens, that share nothing but what they are to share.

Knows nothing about servers; the model's own tokenizer counts.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from string import ascii_lowercase

from omlx.bench.failure import BenchError

Count = Callable[[str], int]

_TRIES = 60
# Common short words, which most tokenizers spell with one token each.
_COMMON = (
    "the of and to in is that it was for on are as with his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also"
)


class Words:
    """Makes texts that a tokenizer counts as exactly so many tokens; any thread may use it."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._costs = _costs(count)

    def text(
        self, num_tokens: int, *, seed: str, around: Callable[[str], str] | None = None
    ) -> str:
        """A text of exactly `num_tokens` tokens, another one for each seed; BenchError.

        `around` is what becomes of the text before it is counted, as a chat template: the tokens
        are then those of the whole.
        """
        around = around or (lambda text: text)
        rng = random.Random(f"omlx bench {seed}")
        # The first words differ for each seed, so that no two prompts share a block.
        words = [f"{rng.randrange(10**6):06d}"]
        least = self._count(around(words[0]))
        if least > num_tokens:
            raise BenchError(
                f"no prompt of {num_tokens} tokens: the shortest one has {least}",
                hint="--tokens takes larger numbers",
            )
        self._fill(words, rng, num_tokens - least)
        for _ in range(_TRIES):
            text = " ".join(words)
            lacking = num_tokens - self._count(around(text))
            if lacking == 0:
                return text
            if lacking > 0:
                self._fill(words, rng, lacking)
            else:
                self._cut(words, -lacking)
        raise BenchError(
            f"the model's tokenizer gives no text of exactly {num_tokens} tokens",
            hint="another number of tokens may do",
        )

    def _fill(self, words: list[str], rng: random.Random, lacking: int) -> None:
        """Add words of about so many tokens (mutates)."""
        choice = list(self._costs)
        while lacking > 0:
            word = rng.choice(choice)
            if self._costs[word] > lacking:
                fitting = [w for w, cost in self._costs.items() if cost <= lacking]
                if not fitting and rng.random() < 0.5:  # no word is short enough: letters may be
                    words[-1] += "".join(rng.choices(ascii_lowercase, k=lacking))
                    return
                word = rng.choice(fitting or choice)
            words.append(word)
            lacking -= self._costs[word]

    def _cut(self, words: list[str], excess: int) -> None:
        """Take words of at least so many tokens away from the end (mutates)."""
        while excess > 0 and len(words) > 1:
            excess -= self._costs.get(words.pop(), 1)


def _costs(count: Count) -> Mapping[str, int]:
    """Tokens that each word adds to a text of words; those that add none are left out."""
    words = dict.fromkeys([*_COMMON.split(), *ascii_lowercase])
    base = count("zoo yes")
    costs = {word: count(f"zoo {word} yes") - base for word in words}
    found = {word: cost for word, cost in costs.items() if cost > 0}
    if not found:
        raise BenchError("the model's tokenizer counts no word as a token")
    return found


def token_ids(num_tokens: int, *, seed: str, num_vocab: int) -> list[int]:
    """Random token ids for a model without a text side; the first 3 ids, often special, are out."""
    rng = random.Random(f"omlx bench {seed}")
    low = min(3, max(num_vocab - 1, 0))
    return [rng.randrange(low, num_vocab) for _ in range(num_tokens)]


def fitting(lengths: Sequence[int], *, window: int | None, reserve: int) -> list[int]:
    """The lengths that fit a window together with `reserve` tokens of an answer; all if unknown."""
    return [length for length in lengths if window is None or length + reserve <= window]
