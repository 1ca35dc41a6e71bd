"""Whether two greedy answers to one prompt are the same, but for ties of tokens.

Knows nothing about who gave them.
"""

from omlx.bench.client import Answer

# Where the likelier of two tokens leads by less, rounding in another batch may turn them round:
# a step of bfloat16 at a logit of 32 is as large.
TIE = 0.25


def difference(a: Answer, b: Answer) -> str:
    """How two answers differ; empty if they don't, or only after a tie.

    Without the scores of tokens a difference can't be told from a tie, and counts as none.
    """
    if _said(a) == _said(b) or not a.scores or not b.scores:
        return ""
    for idx, (one, other) in enumerate(zip(a.scores, b.scores, strict=False)):
        if one.text == other.text:
            continue
        margins = [score.margin for score in (one, other) if score.margin is not None]
        if not margins or min(margins) < TIE:
            return ""
        lead = min(margins)
        return f"token {idx} is {other.text!r}, not {one.text!r}, which leads by {lead:.2f}"
    return f"it is {b.text!r}, not {a.text!r}"


def _said(answer: Answer) -> tuple[str, str, str]:
    return answer.reasoning, answer.text, answer.tool_calls
