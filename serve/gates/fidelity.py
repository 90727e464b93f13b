"""Numeric fidelity: how far the served model is from its BF16 self, on a fixed text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.gates import reference
from serve.gates.result import Result, judged, not_run

if TYPE_CHECKING:
    from serve.gates.run import Run

TOP_ONE = 0.9
DISTANCE = 0.1


def fidelity(run: Run) -> Result:
    """The likeliest next token is nearly always the reference's, and the distance is small."""
    if run.reference is None:
        return not_run("no reference for this model revision (--make-reference, on a BF16 server)")
    found = run.client.prompt_logprobs(run.reference.tokens, reference.TOP)
    wanted = run.reference.expected
    pairs = list(zip(wanted, found, strict=False))
    agree = sum(max(one, key=one.__getitem__) == max(other, key=other.__getitem__)
                for one, other in pairs) / max(len(pairs), 1)  # fmt: skip
    apart = [reference.distance(one, other) for one, other in pairs]
    mean = sum(apart) / max(len(apart), 1)
    return judged(
        len(found) == len(wanted) and agree >= TOP_ONE and mean <= DISTANCE,
        f"{agree:.1%} top-1 agreement, KL {mean:.4f} nats on average, {max(apart):.3f} at most",
        f"at least {TOP_ONE:.0%}, on average at most {DISTANCE}",
        f"{len(pairs)} tokens against {run.reference.model} at {run.reference.revision}, "
        f"{run.reference.server}",
    )
