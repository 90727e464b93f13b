"""Load checkpoints into vLLM's own model classes on a CPU, and read back what was loaded."""
# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-call"

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.distributed.parallel_state import destroy_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels import linear as linear_kernels
from vllm.model_executor.kernels.linear.nvfp4.emulation import EmulationNvFp4LinearKernel
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import (
    dequantize_to_dtype,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import PlatformEnum
from vllm.utils.torch_utils import set_default_torch_dtype

from tests.patched.checkpoints import BLOCK, E2M1

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}


class WeightOnlyNvfp4OnCpu(EmulationNvFp4LinearKernel):  # type: ignore[misc]
    """vLLM has no NVFP4 kernel for CPUs: dequantize exactly, leave the activations alone."""

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        weight = dequantize_to_dtype(
            layer.weight.data.view(torch.uint8),
            layer.weight_scale.data.view(torch.float8_e4m3fn),
            layer.weight_global_scale,
            x.dtype,
            block_size=BLOCK,
            swizzle=False,
        )
        return torch.nn.functional.linear(x, weight, bias)


linear_kernels._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CPU] = [WeightOnlyNvfp4OnCpu]


def engine_arguments(folder: Path, *, mtp: int = 0, vision: bool = False) -> dict[str, Any]:
    """Arguments with which a tiny checkpoint loads on a CPU."""
    arguments: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "enforce_eager": True,
        "limit_mm_per_prompt": {"image": int(vision), "video": 0},
        "enable_prefix_caching": False,
        "seed": 0,
    }
    if mtp:
        arguments["speculative_config"] = {"method": "mtp", "num_speculative_tokens": mtp}
    return arguments


@contextmanager
def _without_accelerator() -> Iterator[None]:
    """There is no accelerator whose cache could be emptied between two weights."""
    original = torch.accelerator.empty_cache
    torch.accelerator.empty_cache = lambda: None
    try:
        yield
    finally:
        torch.accelerator.empty_cache = original


@contextmanager
def _distributed(config: VllmConfig) -> Iterator[None]:
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        # The groups depend on the model: only one with experts has a group for them.
        destroy_model_parallel()
        initialize_model_parallel(1, 1)
        yield


@dataclass
class Loaded:
    """One model with the checkpoint's weights in it, before any kernel repacks them."""

    model: torch.nn.Module
    config: VllmConfig

    def module(self, name: str) -> torch.nn.Module:
        """A module by its name in vLLM."""
        return dict(self.model.named_modules())[name]

    def is_quantized(self, name: str) -> bool:
        """Whether the module's weight is held quantized."""
        held = dict(self.module(name).named_parameters(recurse=False))
        return not any(
            leaf == "weight" and tensor.dtype == torch.bfloat16 for leaf, tensor in held.items()
        )

    def values(self, name: str) -> torch.Tensor:
        """The weight of a linear module in FP32, dequantized where it is packed."""
        module = self.module(name)
        held = dict(module.named_parameters(recurse=False))
        if "weight_packed" in held:
            scales = 1 / held["weight_global_scale"].data.float()
            return dequantized(
                held["weight_packed"].data, held["weight_scale"].data, scales, module
            )
        weight = held["weight"].data
        if weight.dtype == torch.uint8:
            scales = held["weight_scale_2"].data.float()
            return dequantized(weight, held["weight_scale"].data, scales, module)
        return weight.float()

    def checkpoint_name(self, name: str) -> str:
        """The checkpoint's name of a module of the target or of its drafter."""
        if name.startswith("model."):
            return f"mtp.{name.removeprefix('model.')}"
        if name.endswith("lm_head"):
            return "lm_head"
        return name.replace("language_model.model.", "model.language_model.").replace(
            "visual.", "model.visual."
        )

    def differences(self, matrices: dict[str, torch.Tensor]) -> list[str]:
        """Names of the modules whose weights are not what the checkpoint holds, value by value."""
        wrong, compared = [], 0
        for name in self.matrix_modules():
            parent, _, leaf = self.checkpoint_name(name).rpartition(".")
            shards = [f"{parent}.{shard}".lstrip(".") for shard in FUSED.get(leaf, (leaf,))]
            if shards[0] not in matrices:
                continue
            compared += 1
            expected = torch.cat([matrices[shard] for shard in shards])
            held = self.values(name)
            if held.shape != expected.shape or not torch.equal(held, expected):
                wrong.append(name)
        assert compared > 4
        return wrong

    def matrix_modules(self) -> list[str]:
        """Names of the linear modules and of the LM head."""
        kinds = (LinearBase, ParallelLMHead)
        return [name for name, module in self.model.named_modules() if isinstance(module, kinds)]


def dequantized(
    packed: torch.Tensor, blocks: torch.Tensor, scales: torch.Tensor, module: torch.nn.Module
) -> torch.Tensor:
    """NVFP4 by its definition: e2m1 code times block scale times the shard's global scale."""
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    plain = E2M1[codes.long() % 8] * (1.0 - 2.0 * (codes >= 8).float())
    values = plain.view(len(codes), -1, BLOCK) * blocks.float()[..., None]
    widths = getattr(module, "logical_widths", None) or [len(codes)]
    rows = torch.cat([s.expand(w) for s, w in zip(scales.flatten(), widths, strict=True)])
    return values.flatten(1) * rows[:, None]


def load(folder: Path, *, drafter: bool = False, vision: bool = False) -> Loaded:
    """Load the target, or its MTP drafter, with vLLM's own loader."""
    arguments = engine_arguments(folder, mtp=int(drafter), vision=vision)
    config = EngineArgs(**arguments).create_engine_config()
    model_config = config.model_config
    if drafter:
        model_config = config.speculative_config.draft_model_config
    loader = get_model_loader(config.load_config)
    with _distributed(config), _without_accelerator(), set_default_torch_dtype(torch.bfloat16):
        model = initialize_model(config, model_config=model_config)
        loader.load_weights(model, model_config)
    return Loaded(model, config)


def greedy(folder: Path, *, mtp: int = 0, tokens: int = 24) -> list[list[int]]:
    """The greedy continuations that the engine gives, token by token."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    options = engine_arguments(folder, mtp=mtp) | {"kv_cache_memory_bytes": 64 << 20}
    engine = LLM(**options)
    prompts = [
        TokensPrompt(prompt_token_ids=[(7 * start + 3 * i) % 480 + 10 for i in range(length)])
        for start, length in ((1, 5), (2, 17), (3, 40))
    ]
    wanted = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    return [list(answer.outputs[0].token_ids) for answer in engine.generate(prompts, wanted)]
