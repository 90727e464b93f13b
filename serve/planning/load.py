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


def estimated(shape: Shape) -> Weights:
    """Return the bytes of a checkpoint whose headers are not at hand, by its geometry.

    It counts the layers of the text model as NVFP4, embedding, LM head and drafter as BF16, and no
    vision tower: how the published NVFP4 checkpoints mostly are, but none exactly.
    """
    hidden = shape.hidden_size
    queries = 2 * shape.attention_heads * shape.head_dim  # each has a gate
    values = 2 * shape.key_value_heads * shape.head_dim
    attention = hidden * (queries + values + queries // 2)
    keys = 2 * shape.linear_key_heads * shape.linear_key_dim
    inner = shape.linear_value_heads * shape.linear_value_dim
    delta_net = hidden * (keys + 3 * inner + 2 * shape.linear_value_heads)
    mlp = 3 * hidden * shape.mlp_width
    experts = 3 * hidden * shape.expert_width * shape.experts
    layers = shape.full_attention + shape.linear_attention
    body = shape.full_attention * attention + shape.linear_attention * delta_net + layers * mlp
    routed = int(layers * experts * _NVFP4_BYTES)
    embedding = 2 * shape.vocab_size * hidden
    drafter = shape.mtp_layers * 2 * (attention + mlp + experts + 2 * hidden * hidden)
    return Weights(
        int(body * _NVFP4_BYTES) + routed + 2 * embedding + drafter,
        embedding=embedding,
        experts=routed,
        drafter=drafter,
    )
