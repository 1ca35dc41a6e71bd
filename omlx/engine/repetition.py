"""Whether an answer repeats itself without end: the same few tokens over and over, exactly.

Knows nothing about text or how tokens are chosen.
"""

_LONGEST = 64  # tokens of one round that are looked for


class Repetition:
    """Sees an answer token by token; one that repeats for `most` tokens goes on for ever."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._longest = min(_LONGEST, most // 2)  # two rounds at least
        self._tokens: list[int] = []
        self._runs = [0] * (_LONGEST + 1)  # by period: how long it has held

    def add(self, token: int) -> bool:
        """Whether the answer is in a loop with this token (mutates); never where `most` is 0."""
        if not self._most:
            return False
        tokens, runs = self._tokens, self._runs
        is_loop = False
        for period in range(1, min(self._longest, len(tokens)) + 1):
            runs[period] = runs[period] + 1 if tokens[-period] == token else 0
            is_loop = is_loop or runs[period] + period >= self._most
        tokens.append(token)
        if len(tokens) > _LONGEST:
            del tokens[0]
        return is_loop
