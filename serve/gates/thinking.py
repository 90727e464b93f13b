"""Thinking on and off: the thought goes where thoughts go, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.gates.result import Result, judged, not_run, shown

if TYPE_CHECKING:
    from serve.gates.run import Run

QUESTION = "I have 17 marbles and find 25 more marbles. How many do I have?"
_TOKENS = 2048


def _tokens(run: Run) -> int:
    return min(_TOKENS, run.profile.engine.context // 2)


def thinks(run: Run) -> Result:
    """With thinking on, a thought comes first and the answer after it."""
    if run.profile.model.reasoning_parser is None:
        return not_run("the profile has no reasoning parser")
    answer = run.client.chat(QUESTION, _tokens(run), thinking=True)
    right = bool(answer.reasoning.strip()) and "42" in answer.text and "think>" not in answer.text
    return judged(
        right,
        f"thought {shown(answer.reasoning, 60)!r}, answer {shown(answer.text, 60)!r}",
        "a thought, and 42 in an answer without its marks",
    )


def silent(run: Run) -> Result:
    """With thinking off, there is an answer and no thought."""
    if run.profile.model.reasoning_parser is None:
        return not_run("the profile has no reasoning parser")
    answer = run.client.chat(QUESTION, _tokens(run))
    right = not answer.reasoning.strip() and "42" in answer.text and "think>" not in answer.text
    return judged(
        right,
        f"thought {shown(answer.reasoning, 60)!r}, answer {shown(answer.text, 60)!r}",
        "no thought, and 42 in an answer without its marks",
    )
