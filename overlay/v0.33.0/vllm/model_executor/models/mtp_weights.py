# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""MTP drafters whose quantization the checkpoint's tensors decide.

Exclude lists often forget the MTP modules, or name them in a way that does not
match. What the checkpoint holds below `mtp.` is the only reliable statement.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

import vllm.envs as envs
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.quantization.utils.checkpoint_tensors import (
    CheckpointTensors,
)

logger = init_logger(__name__)

_REQUIRED_LEAVES = ("weight", "qweight", "weight_packed", "scales")
_MAX_NAMES = 12


def _checkpoint_tensors(vllm_config: VllmConfig) -> CheckpointTensors:
    """The tensors of the drafter's checkpoint, which mostly is the target's."""
    model_config = vllm_config.model_config
    if (speculative_config := vllm_config.speculative_config) is not None:
        model_config = speculative_config.draft_model_config or model_config
    return CheckpointTensors(model_config.model, model_config.revision)


def let_tensors_decide(vllm_config: VllmConfig, prefix: str) -> bool:
    """Make the checkpoint's tensors decide what is quantized below `prefix`.

    Returns:
        Whether they do: the switch is on, the model is quantized, and the
        checkpoint's headers can be read and hold tensors below `prefix`.

    """
    quant_config = vllm_config.quant_config
    if not envs.VLLM_MTP_QUANT_BY_TENSORS or quant_config is None:
        return False
    tensors = _checkpoint_tensors(vllm_config)
    if not tensors.below(prefix):
        return False
    quant_config.deciding_tensors = {**quant_config.deciding_tensors, prefix: tensors}
    return True


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


class MTPWeightsCheck:
    """Makes sure that a drafter's weights all came from the checkpoint.

    Weight tracking is off for quantized models, so a drafter without weights
    would otherwise draft from uninitialized memory: nothing is accepted, and
    nothing says why.

    Args:
        vllm_config: Tells which checkpoint is loaded, and how.
        fused_mapping: Last component of a fused module to those of its shards.

    """

    def __init__(
        self, vllm_config: VllmConfig, fused_mapping: Mapping[str, Sequence[str]]
    ) -> None:
        self.tensors = _checkpoint_tensors(vllm_config)
        self.fused_mapping = fused_mapping
        load_format = vllm_config.load_config.load_format
        self.is_due = envs.VLLM_MTP_QUANT_BY_TENSORS and load_format != "dummy"
        self.held = set[str]()

    def watch(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Pass the checkpoint's weights on, remembering their names."""
        for name, weight in weights:
            if self.is_due:
                self.held.add(name)
            yield name, weight

    def _missing_experts(self, prefix: str, num_experts: int) -> Iterable[str]:
        """Yield the keys below `prefix`, a module of experts, that are missing."""
        below = {name for name in self.held if name.startswith(f"{prefix}.")}
        for projection in ("gate_proj", "up_proj", "down_proj"):
            fused = "down_proj" if projection == "down_proj" else "gate_up_proj"
            if any(name.startswith(f"{prefix}.{fused}") for name in below):
                continue
            for expert in range(num_experts):
                key = f"{prefix}.{expert}.{projection}"
                if not any(f"{key}.{leaf}" in below for leaf in _REQUIRED_LEAVES):
                    yield f"{key}.weight"

    def _missing(self, model: nn.Module, num_experts: int) -> Iterable[str]:
        """Yield the required keys that the checkpoint does not hold."""
        for name, _ in model.named_parameters():
            if name.startswith("embed_tokens."):
                continue
            owner, _, leaf = name.rpartition(".")
            owner = f"mtp.{owner}"
            if ".experts" in owner:
                head = owner.partition(".experts")[0]
                if leaf in ("w13_weight", "w13_weight_packed", "w13_qweight"):
                    yield from self._missing_experts(f"{head}.experts", num_experts)
                continue
            if leaf not in _REQUIRED_LEAVES:
                continue
            parent, _, last = owner.rpartition(".")
            for shard in self.fused_mapping.get(last, (last,)):
                if (key := f"{parent}.{shard}.{leaf}") not in self.held:
                    yield key

    def finish(self, model: nn.Module, num_experts: int) -> None:
        """Check the first load of `model`, the drafter's inner module.

        Raises:
            ValueError: Required tensors are not in the checkpoint.

        """
        if not self.is_due:
            return
        self.is_due = False
        # Loaders leave out files and experts of no use to this rank.
        self.held.update(self.tensors.dtypes)
        missing = sorted(self._missing(model, num_experts))
        if not missing:
            self.held.clear()
            return
        others = sorted(
            name
            for name in self.held
            if not name.startswith("mtp.") and ("mtp" in name or "nextn" in name)
        )
        instead = (
            f"It holds under other names, which are not read: {_listed(others)}. "
            if others
            else ""
        )
        raise ValueError(
            f"The MTP drafter needs {len(missing)} tensors that the checkpoint does "
            f"not hold: {_listed(missing)}. {instead}Without them it would draft from "
            "uninitialized memory. Use a checkpoint that holds them under these "
            "names, or serve without speculative decoding."
        )
