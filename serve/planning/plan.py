"""A plan: a model on a card, with every byte accounted for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve.planning import pool

if TYPE_CHECKING:
    from serve.planning.cards import Card
    from serve.planning.load import Weights
    from serve.planning.pool import Caching, Pool
    from serve.planning.shape import Shape

CONTEXT_BYTES = 700 << 20
"""The CUDA context, cuBLAS's workspace and the allocator's slack on one card: an estimate."""


@dataclass(frozen=True)
class Asked:
    """What a plan is asked for.

    Attributes:
        context: tokens of one sequence at most.
        sequences: sequences at the same time.
        caching: what is cached, and how.
        kv_pin: bytes of the pool on each card; None for what the card has left.
        graphs: bytes of CUDA graphs, activations and workspaces on each card.
    """

    context: int
    sequences: int
    caching: Caching
    kv_pin: int | None
    graphs: int


@dataclass(frozen=True)
class Limit:
    """How fast decoding one sequence can be at most, since memory gives bytes no faster.

    Attributes:
        context: tokens that the sequence has.
        steps: steps a second.
        tokens: tokens a second if every drafted token is accepted.
    """

    context: int
    steps: float
    tokens: float


@dataclass(frozen=True)
class Plan:
    """A model on a card.

    Attributes:
        model: its name.
        card: the card; each of several.
        shape: the model's geometry.
        asked: what was asked for.
        weights: bytes of the weights on each card.
        pool: the pool of KV cache blocks; None if nothing is left for one.
        limits: decode limits by context.
    """

    model: str
    card: Card
    shape: Shape
    asked: Asked
    weights: int
    pool: Pool | None
    limits: tuple[Limit, ...]

    @property
    def pin(self) -> int:
        """Bytes of the pool on each card."""
        if self.asked.kv_pin is not None:
            return self.asked.kv_pin
        return max(self.card.memory - self.weights - self.asked.graphs - CONTEXT_BYTES, 0)

    @property
    def need(self) -> int:
        """Bytes that must be free on each card."""
        return self.weights + self.pin + self.asked.graphs + CONTEXT_BYTES

    @property
    def fits(self) -> bool:
        """Whether the card has that many, and the pool holds one sequence of the whole context."""
        return self.need <= self.card.memory and self.pool is not None and self.pool.sequences >= 1


def plan(model: str, card: Card, shape: Shape, weights: Weights, asked: Asked) -> Plan:
    """Return the plan for a model on a card."""
    share = weights.total // asked.caching.tensor_parallel
    made = Plan(model, card, shape, asked, share, None, ())
    found = pool.pool(shape, asked.caching, made.pin, asked.context)
    contexts = sorted({min(c, asked.context) for c in (4096, 32768, 131072, asked.context)})
    limits = tuple(_limit(card, shape, weights, asked, context) for context in contexts)
    return Plan(model, card, shape, asked, share, found if found.blocks else None, limits)


def _limit(card: Card, shape: Shape, weights: Weights, asked: Asked, context: int) -> Limit:
    caching = asked.caching
    read = weights.step(shape, caching.drafts) / caching.tensor_parallel
    token = pool.kv_bytes(shape, caching.kv, caching.tensor_parallel)
    layers = shape.full_attention + shape.mtp_layers * caching.drafts
    states = shape.linear_attention * pool.state_bytes(shape, caching)
    # A state is read and written; each drafted token writes one of its own.
    read += layers * token * context + states * (2 + caching.drafts)
    steps = card.bandwidth / read
    return Limit(context, steps, steps * (1 + caching.drafts))
