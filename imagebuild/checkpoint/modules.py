"""vLLM's modules of the Qwen3.5 and Qwen3-Next families, and what a checkpoint stores for each.

The names are those of vllm/model_executor/models/qwen3_5.py, qwen3_next.py and their MTP files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from imagebuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagebuild.checkpoint.headers import Tensor
    from imagebuild.checkpoint.source import Checkpoint

FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
GDN_SPLIT = {
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
GDN_WHOLE = {"in_proj_qkvz": ("in_proj_qkvz",), "in_proj_ba": ("in_proj_ba",)}
_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_NOT_OF_WEIGHTS = frozenset(
    [
        "input_scale",
        "input_global_scale",
        "input_zero_point",
        "output_scale",
        "prob_output_scale",
        "k_scale",
        "v_scale",
        "q_scale",
        "kv_scale",
    ]
)
_NEVER_QUANTIZED = frozenset({"gate", "shared_expert_gate", "conv1d", "embed_tokens", "proj_in"})
_NOT_LINEAR = frozenset({"embed_tokens", "conv1d", "pos_embed"})
_EXPERT = re.compile(r"^(.*\.experts)(?:\.\d+)?\.[a-z_]+_proj$")


class Stored(Enum):
    """How a checkpoint holds the weights of one module."""

    PLAIN = "BF16"
    PACKED = "packed"
    MIXED = "some packed"
    ABSENT = "absent"


@dataclass(frozen=True)
class Family:
    """A model class of vLLM.

    Attributes:
        renames: prefixes in the checkpoint and in vLLM, in the order of its WeightsMapper.
        roots: where its modules are; loading ends at a weight that is elsewhere.
        is_mapped: whether it has a WeightsMapper; without one, no exclude list is rewritten.
        fused: the last part of a fused module's name and of those of its shards.
    """

    renames: tuple[tuple[str, str], ...]
    fused: Mapping[str, tuple[str, ...]]
    roots: tuple[str, ...] = ("model.layers.", "lm_head", "mtp.")
    is_mapped: bool = True

    def in_vllm(self, name: str) -> str:
        """A module's or an entry's name as the mapper renames it."""
        for old, new in self.renames:
            if name.startswith(old):
                name = name.replace(old, new, 1)
        return name

    def in_checkpoint(self, name: str) -> list[str]:
        """The names that the mapper turns into this one, the name itself first."""
        dotted = f"{name}."
        names = [name]
        for old, new in self.renames:
            if dotted.startswith(new):
                other = dotted.replace(new, old, 1)
                if self.in_vllm(other) == dotted and other[:-1] not in names:
                    names.append(other[:-1])
        if name.startswith("mtp."):
            names.append(f"model.{name}")
        return names


_WITH_VISION = Family(
    (
        ("model.visual.", "visual."),
        ("lm_head.", "language_model.lm_head."),
        ("model.language_model.", "language_model.model."),
    ),
    FUSED | GDN_SPLIT | {"qkv": ("qkv",)},
    ("language_model.model.layers.", "language_model.lm_head", "visual.", "mtp."),
)
_TEXT = Family((("model.language_model.", "model."),), FUSED | GDN_SPLIT)
_FAMILIES = {
    "Qwen3_5ForConditionalGeneration": _WITH_VISION,
    "Qwen3_5MoeForConditionalGeneration": _WITH_VISION,
    "Qwen3_5ForCausalLM": _TEXT,
    "Qwen3_5MoeForCausalLM": _TEXT,
    "Qwen3NextForCausalLM": Family((), FUSED | GDN_WHOLE),
}
# v0.27.1: text-only checkpoints that keep the names of the whole model are not known.
_FAMILIES_0_27 = {
    name: family
    if family is _WITH_VISION
    else Family((), family.fused, family.roots, is_mapped=False)
    for name, family in _FAMILIES.items()
}


@dataclass(frozen=True)
class Module:
    """One module of vLLM with a weight that may be quantized.

    Attributes:
        name: in vLLM.
        shards: in the checkpoint; for experts, the module of all of them.
        stored: how the checkpoint holds it.
        of_drafter: whether it belongs to the MTP drafter.
    """

    name: str
    shards: tuple[str, ...]
    stored: Stored
    of_drafter: bool

    @property
    def may_be_quantized(self) -> bool:
        """Whether vLLM hands it a quantization config."""
        return self.name.rpartition(".")[2] not in _NEVER_QUANTIZED


def families(line: str) -> dict[str, Family]:
    """Return the model classes of a release line, by the architecture that a checkpoint names."""
    return _FAMILIES_0_27 if line == "v0.27.1" else _FAMILIES


def family_of(checkpoint: Checkpoint, line: str) -> Family:
    """Return the model class that vLLM takes for the checkpoint.

    Raises:
        UsageError: if it is none of these families.
    """
    architectures = checkpoint.config.get("architectures") or []
    known = families(line)
    for name in architectures:
        if name in known:
            return known[name]
    raise UsageError(
        "the model is not of a family that this command knows",
        file=f"{checkpoint.name}/config.json: architectures",
        expected=f"one of {', '.join(known)}",
        found=", ".join(map(str, architectures)) or "none",
        next_command="start vLLM with the checkpoint; this command cannot tell",
    )


def packed(leaf: str, tensor: Tensor) -> bool | None:
    """Whether a tensor shows its module to be packed; None if it says nothing of the weight."""
    if leaf in _NOT_OF_WEIGHTS:
        return None
    if leaf in ("qweight", "qzeros", "weight_packed") or "scale" in leaf:
        return True
    if leaf == "weight" or leaf.endswith("_proj"):
        return tensor.dtype not in _FLOATS
    return None


def stored_modules(tensors: Mapping[str, Tensor]) -> dict[str, Stored]:
    """Return how each module of the checkpoint with a matrix is held."""
    answers: dict[str, set[bool]] = {}
    matrices: set[str] = set()
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        answer = packed(leaf, tensor)
        if answer is None:
            continue
        answers.setdefault(module, set()).add(answer)
        if len(tensor.shape) > 1:
            matrices.add(module)
    return {
        module: Stored.PACKED if True in answers[module] else Stored.PLAIN
        for module in sorted(matrices)
    }


def _together(kinds: Iterable[Stored]) -> Stored:
    found = set(kinds) - {Stored.ABSENT}
    if not found:
        return Stored.ABSENT
    return found.pop() if len(found) == 1 else Stored.MIXED


def modules_of(checkpoint: Checkpoint, family: Family) -> list[Module]:
    """Return vLLM's modules for what the checkpoint holds, in the order of their names."""
    stored = stored_modules(checkpoint.tensors)
    shards: dict[str, dict[str, Stored]] = {}
    for name, kind in stored.items():
        expert = _EXPERT.match(name)
        if expert or name.endswith(".experts"):
            whole = expert[1] if expert else name
            shards.setdefault(family.in_vllm(f"{whole}.")[:-1], {})[name] = kind
            continue
        parent, _, leaf = name.rpartition(".")
        fused = next((whole for whole, parts in family.fused.items() if leaf in parts), leaf)
        module = family.in_vllm(f"{parent}.{fused}." if parent else f"{fused}.")[:-1]
        shards.setdefault(module, {})[name] = kind
    modules = []
    for module, parts in shards.items():
        leaf = module.rpartition(".")[2]
        if leaf in _NOT_LINEAR or "patch_embed" in module:
            continue
        names = tuple(parts)
        if leaf == "experts":
            names = (next(iter(parts)).partition(".experts")[0] + ".experts",)
        modules.append(Module(module, names, _together(parts.values()), module.startswith("mtp.")))
    return sorted(modules, key=lambda module: [_ordered(part) for part in module.name.split(".")])


def _ordered(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdigit() else (-1, part)
