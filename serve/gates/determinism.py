"""The same question at temperature 0: again, and among others.

A batch of another size adds floating-point numbers in another order, so that last bits differ, and
where two tokens are nearly alike the other one may win. That much is allowed: a text may part where
the best token leads by less than `TIE`, and log-probabilities may differ by `DRIFT`. Anything more
is a fault, such as a state of another request.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from serve.gates.result import Result, judged, shown

if TYPE_CHECKING:
    from serve.gates.client import Answer
    from serve.gates.run import Run

QUESTION = "Tell in three sentences how a lighthouse helps ships at night."
OTHERS = (
    "Count from one to eleven in English words, parted by commas, on one line.",
    "What is the capital of France? Answer with one word.",
)
TIE = 0.25
DRIFT = 0.25
_TOKENS = 96
_BOUND = f"equal, or parting where the lead is under {TIE}; log-probabilities within {DRIFT}"


def _ask(run: Run) -> Answer:
    return run.client.chat(QUESTION, _TOKENS, logprobs=True, top_logprobs=2)


def compared(first: Answer, second: Answer) -> tuple[bool, str]:
    """Return whether two answers differ by no more than last bits allow, and what was found."""
    drift = 0.0
    for place, (one, other) in enumerate(zip(first.tokens, second.tokens, strict=False)):
        if one.text != other.text:
            told = f"part at token {place}, where the best leads by {one.lead:.3f}"
            return one.lead < TIE and drift <= DRIFT, told
        drift = max(drift, abs(one.logprob - other.logprob))
    if len(first.tokens) != len(second.tokens) or first.text != second.text:
        return False, f"{len(first.tokens)} and {len(second.tokens)} tokens"
    told = f"equal over {len(first.tokens)} tokens, log-probabilities within {drift:.4f}"
    return drift <= DRIFT, told


def repeat(run: Run) -> Result:
    """Asked twice, one after the other, it gives the same."""
    first, second = _ask(run), _ask(run)
    if not first.tokens:
        return judged(False, "no log-probabilities came", _BOUND, shown(first.text))
    right, told = compared(first, second)
    run.answers[QUESTION] = first.text
    return judged(right, told, _BOUND, shown(first.text), shown(second.text))


def concurrent(run: Run) -> Result:
    """Asked among other requests, as many as the profile allows, it gives the same as alone."""
    alone = _ask(run)
    width = min(run.profile.engine.sequences, 8)
    with ThreadPoolExecutor(width) as pool:
        others = [
            pool.submit(run.client.chat, OTHERS[i % len(OTHERS)], _TOKENS)
            for i in range(width // 2)
        ]
        asked = [pool.submit(_ask, run) for _ in range(width - width // 2)]
        found = [each.result() for each in asked]
        wait(others)  # whether they are right, other gates ask
    judgements = [compared(alone, each) for each in found]
    worst = next((each for each in judgements if not each[0]), judgements[0])
    return judged(worst[0], f"{len(found)} among {width}: {worst[1]}", _BOUND, shown(alone.text))
