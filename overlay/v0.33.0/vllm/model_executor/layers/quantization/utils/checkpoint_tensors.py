# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What the tensors of a checkpoint say about which modules are quantized.

A quantization config is written by a tool and edited by people; the safetensors
headers beside it cannot be wrong about what the file holds. They are read on the
first question only, since reading them for a remote checkpoint costs requests.
"""

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property

_FLOAT_DTYPES = frozenset({"BF16", "F16", "F32", "F64"})

# Scales of activations and of the KV cache say nothing about the weight.
_NOT_WEIGHT_SCALES = frozenset(
    {
        "input_scale",
        "input_global_scale",
        "input_zero_point",
        "output_scale",
        "prob_output_scale",
        "k_scale",
        "v_scale",
        "q_scale",
        "kv_scale",
    }
)
_PACKED_LEAVES = frozenset({"qweight", "qzeros", "weight_packed"})


def _is_packed(leaf: str, dtype: str) -> bool:
    if leaf in _NOT_WEIGHT_SCALES:
        return False
    if leaf in _PACKED_LEAVES or "scale" in leaf:
        return True
    is_matrix = leaf == "weight" or leaf.endswith("_proj")
    return is_matrix and dtype not in _FLOAT_DTYPES


def _is_plain(leaf: str, dtype: str) -> bool:
    return (leaf == "weight" or leaf.endswith("_proj")) and dtype in _FLOAT_DTYPES


class CheckpointTensors:
    """The tensor names and dtypes of one checkpoint, by module.

    Args:
        model: Local folder or Hugging Face model ID.
        revision: Revision of the model ID.

    """

    def __init__(self, model: str, revision: str | None = None) -> None:
        self.model = model
        self.revision = revision

    def __deepcopy__(self, memo: dict) -> "CheckpointTensors":
        # Some configs are copied once a layer; a checkpoint's headers do not change.
        return self

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """Tensor name to safetensors dtype; empty if no header could be read."""
        from vllm.transformers_utils.config import get_safetensors_params_metadata

        metadata = get_safetensors_params_metadata(self.model, revision=self.revision)
        return {name: info.get("dtype", "") for name, info in metadata.items()}

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.dtypes)

    def below(self, module: str) -> list[str]:
        """Names of all tensors of `module` and of the modules inside it."""
        prefix = f"{module}."
        start = bisect_left(self._names, prefix)
        stop = bisect_left(self._names, f"{module}/", lo=start)
        return self._names[start:stop]

    def is_quantized(self, modules: Iterable[str]) -> bool | None:
        """Whether the weights below `modules` are stored quantized.

        Returns:
            True or False if all of them agree, None if nothing is stored under
            these names or some weights are packed and others are not.

        """
        packed, plain = set[str](), set[str]()
        for module in modules:
            for name in self.below(module):
                owner, _, leaf = name.rpartition(".")
                dtype = self.dtypes[name]
                if _is_packed(leaf, dtype):
                    packed.add(owner)
                elif _is_plain(leaf, dtype):
                    plain.add(owner)
        plain -= packed
        if bool(packed) == bool(plain):
            return None
        return bool(packed)
