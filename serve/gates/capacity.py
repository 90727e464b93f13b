"""The pool of KV cache blocks against the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.gates import metrics
from serve.gates.result import Result, judged, not_run

if TYPE_CHECKING:
    from serve.gates.run import Run

TOLERANCE = 0.05


def pool(run: Run) -> Result:
    """The pool holds as many tokens as the plan says, within 5 %."""
    if run.pool_tokens is None:
        return not_run("there is no plan for this profile: it has no shape, or no KV pin")
    found = metrics.pool(run.client.metrics())
    if found is None:
        return judged(False, "no kv_cache_size_tokens in /metrics", f"{run.pool_tokens:,} tokens")
    apart = found.tokens / run.pool_tokens - 1
    return judged(
        abs(apart) <= TOLERANCE,
        f"{found.tokens:,} tokens ({apart:+.1%})",
        f"{run.pool_tokens:,} tokens within {TOLERANCE:.0%}",
        f"blocks of {found.block_tokens} tokens",
    )
