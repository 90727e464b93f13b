"""A model's weights: how many bytes there are, and how many of them a decode step reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagebuild.checkpoint.headers import Tensor
    from serve.planning.shape import Shape

# Bits of the types that safetensors names (its documentation, "Format").
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip
_NVFP4_BYTES = 1 / 2 + 1 / 16
"""One NVFP4 weight: four bits, and a byte of scale for each sixteen."""


@dataclass(frozen=True)
class Weights:
    """Bytes of a checkpoint's tensors.

    Attributes:
        total: all of them.
        embedding: the table of which a step reads a few rows.
        vision: the tower for images.
        experts: the routed experts.
        drafter: the MTP layers, which a step reads once for each drafted token.
    """

    total: int
    embedding: int = 0
    vision: int = 0
    experts: int = 0
    drafter: int = 0

    def step(self, shape: Shape, drafts: int) -> int:
        """Return the bytes that a decode step of one sequence reads at least."""
        read = self.total - self.embedding - self.vision - self.drafter + drafts * self.drafter
        if shape.experts:
            read -= self.experts * (shape.experts - shape.active_experts) // shape.experts
        return read


def of_headers(tensors: Mapping[str, Tensor], path: object) -> Weights:
    """Return the bytes of the tensors that a checkpoint's headers name.

    Raises:
        ModelError: if a tensor has a type that safetensors does not define.
    """
    parts = {"": 0, "embedding": 0, "vision": 0, "experts": 0, "drafter": 0}
    for name, tensor in tensors.items():
        if tensor.dtype not in _BITS:
            raise ModelError(
                f"{name} has a type whose size is not known",
                file=path,
                expected=", ".join(sorted(_BITS)),
                found=tensor.dtype,
                next_command="python build.py checkpoint MODEL",
            )
        parts[_part(name)] += math.prod(tensor.shape) * _BITS[tensor.dtype] // 8
    return Weights(
        sum(parts.values()),
        parts["embedding"],
        parts["vision"],
        parts["experts"],
        parts["drafter"],
    )


def _part(name: str) -> str:
    if name.startswith("mtp."):
        return "drafter"
    if "visual." in name:
        return "vision"
    if "embed_tokens." in name:
        return "embedding"
    return "experts" if ".experts." in name else ""


def of_profile(total: int, shape: Shape) -> Weights:
    """Return the same of a model whose headers are not at hand: what its geometry tells.

    The embedding counts as BF16, the experts as NVFP4, which is how such checkpoints store them.
    """
    layers = shape.full_attention + shape.linear_attention
    expert = 3 * shape.hidden_size * shape.expert_width * _NVFP4_BYTES
    return Weights(
        total,
        embedding=2 * shape.vocab_size * shape.hidden_size,
        experts=int(layers * shape.experts * expert),
    )
