"""A plan for people: a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.planning.plan import CONTEXT_BYTES

if TYPE_CHECKING:
    from serve.planning.plan import Plan

_GIB = 1 << 30


def gib(size: float) -> str:
    """Return a number of bytes in GiB."""
    return f"{size / _GIB:.2f} GiB"


def rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Return what a plan tells: name, value, remark."""
    asked, caching = plan.asked, plan.asked.caching
    found = [
        ("card", plan.card.name, gib(plan.card.memory)),
        ("weights", gib(plan.weights), f"on each of {caching.tensor_parallel} cards"
         if caching.tensor_parallel > 1 else ""),
        ("KV pool", gib(plan.pin), "pinned" if asked.kv_pin is not None else "what is left"),
        ("graphs, activations", gib(asked.graphs), "an estimate"),
        ("CUDA context, slack", gib(CONTEXT_BYTES), "an estimate"),
        ("needed", gib(plan.need), "fits" if plan.fits else "does not fit"),
    ]  # fmt: skip
    if plan.pool is not None:
        pool = plan.pool
        found += [
            ("KV of a token", f"{pool.token_bytes * pool.group_layers:,} B",
             f"{caching.kv}, {pool.group_layers} layers"),
            ("state of a sequence", gib(pool.sequence_state_bytes),
             f"{caching.state}, {pool.states} states of each layer, padded"),
            ("attention block", f"{pool.block_tokens:,} tokens", "as the server's log says it"),
            ("KV cache size", f"{pool.tokens:,} tokens", "as the server's log says it"),
            ("whole sequences", f"{pool.sequences:.2f}", f"of {asked.context:,} tokens"),
            (f"shared by {asked.sequences}", f"{pool.shared_by(asked.sequences):,} tokens",
             "beside their states"),
        ]  # fmt: skip
    found += [
        (
            f"decode at {limit.context:,}",
            f"{limit.steps:.0f} steps/s",
            f"at most; {limit.tokens:.0f} tokens/s if every draft were accepted"
            if caching.drafts
            else "at most, by bandwidth",
        )
        for limit in plan.limits
    ]
    return found


def text(plan: Plan) -> str:
    """Return the plan as a table for a terminal."""
    lines = rows(plan)
    first = max(len(name) for name, _, _ in lines)
    second = max(len(value) for _, value, _ in lines)
    head = f"{plan.model}: {plan.asked.context:,} tokens, {plan.asked.sequences} sequences"
    body = [f"{n:<{first}}  {v:>{second}}  {remark}".rstrip() for n, v, remark in lines]
    return "\n".join([head, "", *body])
