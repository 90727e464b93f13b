"""Speculative decoding: how much of a draft is accepted, and whether it changes what is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.gates import metrics
from serve.gates.decoding import PROGRAM, STORY
from serve.gates.determinism import QUESTION
from serve.gates.result import Result, judged, not_run, shown

if TYPE_CHECKING:
    from serve.gates.run import Run

_TOKENS = 256


def acceptance(run: Run) -> Result:
    """Enough of what is drafted is accepted, at every place of the draft."""
    if not run.drafts:
        return not_run("the server drafts nothing")
    before = metrics.drafting(run.client.metrics())
    if before is None:
        return judged(False, "no counters of drafts in /metrics", f"{run.drafts} drafted a step")
    for question in (STORY, PROGRAM):
        run.client.chat(question, _TOKENS)
    after = metrics.drafting(run.client.metrics())
    if after is None:
        return judged(False, "the counters of drafts went away", "counters that only grow")
    seen = after.since(before)
    share = seen.accepted / seen.drafted if seen.drafted else 0.0
    places = tuple(each / seen.drafts if seen.drafts else 0.0 for each in seen.by_position)
    least = run.profile.gates.acceptance
    length = 1 + seen.accepted / seen.drafts if seen.drafts else 1.0
    return judged(
        share >= least and bool(places) and min(places) > 0,
        f"{share:.2f} accepted, {length:.2f} tokens a step",
        f"at least {least:.2f}, and some at every place",
        f"{seen.drafted} drafted, {seen.accepted} accepted",
        "by place: " + ", ".join(f"{each:.2f}" for each in places),
    )


def agreement(run: Run) -> Result:
    """The answers are those of the same server with another number of drafts."""
    if run.other is None or run.other.drafts == run.drafts:
        return not_run("no report of the same model with and without MTP (--against REPORT.json)")
    shared = [q for q in (QUESTION, PROGRAM, STORY) if q in run.other.answers and q in run.answers]
    if not shared:
        return not_run("the other report has no answers to the same questions")
    evidence, worst = [], 1.0
    for question in shared:
        one, other = run.answers[question], run.other.answers[question]
        same = _common(one, other)
        share = 1.0 if one == other else same / max(len(one), len(other), 1)
        worst = min(worst, share)
        if one != other:
            evidence.append(
                f"part after {same} characters: {shown(one[same:], 60)!r} "
                f"against {shown(other[same:], 60)!r}"
            )
    return judged(
        worst >= AGREE,
        f"{len(shared)} answers, the first {worst:.0%} alike",
        f"at least the first {AGREE:.0%} of each alike: last bits may part a long text",
        *evidence,
    )


AGREE = 0.5


def _common(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
