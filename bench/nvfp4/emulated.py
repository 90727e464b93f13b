"""A stand-in for the FP4 x FP4 GEMM on the shared layout, for cards that have none.

Activations are quantised to NVFP4 and back, weights dequantised, then a BF16 matmul: vLLM's own
emulation, but on the 128x4 layout, so that it can stand below the dispatch on M. Slow on purpose of
being simple; for tests and measurements of the dispatch only.
"""

# ruff: noqa: ANN401, ARG003  (the interface is the base class's)
from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.kernels.linear import NvFp4LinearKernel
from vllm.model_executor.kernels.linear.nvfp4.triton_w4a16 import TritonNvFp4W4A16LinearKernel
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import (
    convert_swizzled_to_linear,
    kE2M1ToFloat_handle,
    run_nvfp4_emulations,
)


class EmulatedSharedLayoutKernel(NvFp4LinearKernel):
    """See the module; `rows` holds the M of each call."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.rows: list[int] = []

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Run anywhere."""
        return True, None

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        """Take every layer."""
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Swizzle and pad as the FP4 GEMMs do."""
        kE2M1ToFloat_handle.val = kE2M1ToFloat_handle.val.to(layer.weight.device)
        TritonNvFp4W4A16LinearKernel.process_weights_after_loading(self, layer)  # type: ignore[arg-type]

    def apply_weights(
        self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the W4A4 product by emulation."""
        n, k = layer.output_size_per_partition, layer.input_size_per_partition
        self.rows.append(x.numel() // x.shape[-1])
        scale = convert_swizzled_to_linear(
            layer.weight_scale.view(torch.uint8),
            layer.weight.shape[0],
            layer.weight.shape[1] * 2,
            16,
        )
        out = run_nvfp4_emulations(
            x.reshape(-1, k), layer.input_global_scale_inv,
            layer.weight[:n, : k // 2].contiguous(),
            scale[:n, : k // 16].contiguous().view(torch.float8_e4m3fn),
            layer.weight_global_scale, swizzle=False,
        )  # fmt: skip
        out = out.view(*x.shape[:-1], n)
        return out if bias is None else out + bias
