"""NVFP4 as its definition has it: codes, block scales and the 128x4 layout, in float64.

Independent of vLLM: every number comes from a table or a formula, one element at a time.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1 += [-value for value in E2M1]
BLOCK = 16
PACKAGE = "vllm.model_executor.kernels.linear.nvfp4"


def module(name: str) -> Any:
    """Return a module of vLLM's NVFP4 kernels; an assertion fails where it does not exist."""
    found = importlib.util.find_spec(f"{PACKAGE}.{name}")
    assert found is not None, f"this vLLM has no {PACKAGE}.{name}"
    return importlib.import_module(f"{PACKAGE}.{name}")


def e4m3(code: int) -> float:
    """Return the value of an unsigned e4m3 code below 0x7F (OCP 8-bit formats, section 5.3)."""
    exponent, mantissa = code >> 3, code & 7
    if exponent == 0:
        return mantissa * 2.0**-9
    return (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def swizzled_index(n: int, column: int, columns: int) -> int:
    """Return where the scale of row `n` and block `column` stands in the 128x4 layout."""
    tiles = -(-columns // 4)
    tile = (n // 128) * tiles + column // 4
    return tile * 512 + (n % 32) * 16 + (n % 128) // 32 * 4 + column % 4


def swizzle(scales: torch.Tensor) -> torch.Tensor:
    """Return the bytes of `scales` [N, K / 16] in the 128x4 layout, padded with zeros."""
    rows, columns = scales.shape
    padded_rows, padded_columns = -(-rows // 128) * 128, -(-columns // 4) * 4
    out = torch.zeros(padded_rows * padded_columns, dtype=torch.uint8)
    n = torch.arange(rows)[:, None]
    column = torch.arange(columns)[None, :]
    tile = (n // 128) * (padded_columns // 4) + column // 4
    out[tile * 512 + n % 32 * 16 + n % 128 // 32 * 4 + column % 4] = scales
    return out.view(padded_rows, padded_columns)


@dataclass(frozen=True)
class Weights:
    """A quantised weight and what it stands for.

    Attributes:
        packed: codes of columns 2j (low half) and 2j + 1, uint8 [N, K / 2].
        scales: e4m3 codes, uint8 [N, K / 16].
        global_scale: FP32, one number.
        values: float64 [N, K].
    """

    packed: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor
    values: torch.Tensor

    def padded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights padded to multiples of 32 in N and K, and the swizzled scales."""
        rows, half = self.packed.shape
        pad = (0, -half % 16, 0, -rows % 32)
        packed = torch.nn.functional.pad(self.packed, pad).contiguous()
        return packed, swizzle(self.scales).view(torch.float8_e4m3fn)


def weights(codes: torch.Tensor, scales: torch.Tensor, global_scale: float = 1.0) -> Weights:
    """Return the weight with these codes [N, K] and scale codes [N, K / 16]."""
    codes, scales = codes.to(torch.uint8), scales.to(torch.uint8)
    scale_values = torch.tensor([e4m3(code) for code in range(0x7F)], dtype=torch.float64)
    code_values = torch.tensor(E2M1, dtype=torch.float64)
    values = code_values[codes.long()]
    values = values * scale_values[scales.long()].repeat_interleave(BLOCK, 1) * global_scale
    return Weights(
        packed=(codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous(),
        scales=scales,
        global_scale=torch.tensor(global_scale, dtype=torch.float32),
        values=values,
    )


def random_weights(n: int, k: int, seed: int, global_scale: float = 0.25) -> Weights:
    """Return a weight with every code and every scale below NaN equally likely."""
    generator = torch.Generator().manual_seed(seed)
    return weights(
        torch.randint(16, (n, k), generator=generator),
        torch.randint(0x7F, (n, k // BLOCK), generator=generator),
        global_scale,
    )


def activations(m: int, k: int, seed: int) -> torch.Tensor:
    """Return standard normal BF16 numbers [M, K]."""
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the norm of the difference relative to the reference's; NaN stays NaN."""
    difference = out.to(torch.float64) - reference
    return float(difference.norm() / reference.norm().clamp_min(1e-300))
