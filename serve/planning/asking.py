"""What a plan is made from: a profile, a checkpoint's folder, or a repository of the hub."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.checkpoint import source
from serve import profile
from serve.planning import load, shape
from serve.planning.cards import CARDS, GIB, Card
from serve.planning.plan import Asked, Plan, plan
from serve.planning.pool import KERNEL_BLOCK, Caching

if TYPE_CHECKING:
    from serve.planning.load import Weights
    from serve.planning.pool import KvType
    from serve.planning.shape import Shape
    from serve.profile import Profile

_GRAPHS = 3 * GIB // 2
_CPU_BLOCK = 128
"""Tokens of vLLM's block on a CPU."""
CONTEXT, SEQUENCES, DRAFTS = 262144, 8, 3


@dataclass(frozen=True)
class Model:
    """What is planned for.

    Attributes:
        name: how the plan calls it.
        shape: its geometry.
        weights: its bytes.
        exact: whether the bytes were read from the checkpoint's headers.
        asked: what is asked for where the command line says nothing.
    """

    name: str
    shape: Shape
    weights: Weights
    exact: bool
    asked: Asked


def caching_of(of: Profile, *, drafts: int | None = None) -> Caching:
    """Return how a server of a profile caches."""
    engine = of.engine
    cuda = of.hardware.device == "cuda"
    return Caching(
        engine.kv_dtype,
        engine.state_dtype,
        engine.mtp if drafts is None else drafts,
        prefix=of.flags.get("enable-prefix-caching", True) is not False,
        checkpoints=cuda
        and of.line == "v0.33.0"
        and of.flags.get("gdn-prefill-backend", "auto") in {"auto", "flashinfer"},
        tensor_parallel=engine.tensor_parallel,
        kernel_block=KERNEL_BLOCK if cuda else _CPU_BLOCK,
    )


def of_profile(named: profile.Named, *, drafts: int | None = None) -> Model:
    """Return what a profile is planned with."""
    found = named.profile
    total = found.memory.weights
    weights = load.estimated(found.shape)
    if total is not None:
        weights = replace(weights, total=total)
    asked = Asked(
        found.engine.context,
        found.engine.sequences,
        caching_of(found, drafts=drafts),
        found.memory.kv_pin,
        found.memory.graphs,
    )
    return Model(named.name, found.shape, weights, total is not None, asked)


def of_name(name: str) -> Model:
    """Return what the command line's MODEL is planned with.

    Raises:
        ProfileError: if it is a profile's name and there is none.
        ModelError: if a checkpoint is not of a hybrid that the planner knows.
        SourceError: if the hub is not reached.
    """
    if name in profile.names() or name.endswith(".toml"):
        return of_profile(profile.load(name))
    if not Path(name).is_dir() and "/" not in name:
        profile.load(name)  # raises, and lists the profiles
    checkpoint = source.read(name, None)
    found = shape.of_config(checkpoint.config, f"{checkpoint.name}/{source.CONFIG}")
    drafts = DRAFTS if found.mtp_layers else 0
    asked = Asked(CONTEXT, SEQUENCES, Caching("nvfp4", "bfloat16", drafts), None, _GRAPHS)
    weights = load.of_headers(checkpoint.tensors, checkpoint.name)
    return Model(checkpoint.name, found, weights, True, asked)


def with_kv(model: Model, kv: KvType) -> Model:
    """Return the same with another type of KV cache."""
    caching = replace(model.asked.caching, kv=kv)
    return replace(model, asked=replace(model.asked, caching=caching))


def make(model: Model, card: Card) -> Plan:
    """Return the plan."""
    remark = "" if model.exact else " (weights estimated from the geometry)"
    return plan(f"{model.name}{remark}", card, model.shape, model.weights, model.asked)


def card_of(of: Profile) -> Card:
    """Return the smallest card that a profile names by memory and capability."""
    fitting = [
        each
        for each in CARDS
        if each.capability in of.hardware.capabilities and each.memory >= of.hardware.vram
    ]
    return min(fitting or CARDS, key=lambda each: each.memory)
