"""Check and time the NVFP4 W4A16 GEMMs on a GPU: numbers against float64, microseconds a call.

usage: python -m bench.nvfp4.gemm OUT.json [--quick]

Runs beside a vLLM that has the patches. Every kernel sees the same weights, rotated past the L2;
times are medians of CUDA graph replays, so launch gaps are small but the launches are in them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.kernels.linear import (
    MarlinNvFp4LinearKernel,
    NvFp4LinearLayerConfig,
    TritonNvFp4W4A16LinearKernel,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# [N, K] of the quantised linear layers: Qwen3.5-27B, then Qwen3.5-35B-A3B outside its experts.
SHAPES = {
    "27B gate_up": (34816, 5120),
    "27B down": (5120, 17408),
    "27B gdn in": (16384, 5120),
    "27B qkv": (14336, 5120),
    "27B 12288": (12288, 5120),
    "27B o / gdn out": (5120, 6144),
    "35B gdn in": (12288, 2048),
    "35B qkv": (9216, 2048),
    "35B o / gdn out": (2048, 4096),
}
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
CHECKED_ROWS = (1, 3, 8, 16, 33, 64, 100)
DEVICE = "cuda"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Layer(torch.nn.Module):
    """What a quantised linear layer holds when a checkpoint was loaded."""

    def __init__(self, n: int, k: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator(device=DEVICE).manual_seed(seed)
        self.weight = self._parameter(
            torch.randint(256, (n, k // 2), generator=generator, dtype=torch.uint8, device=DEVICE)
        )
        scales = torch.randint(
            0x20, 0x60, (n, k // 16), generator=generator, dtype=torch.uint8, device=DEVICE
        )
        self.weight_scale = self._parameter(scales.view(torch.float8_e4m3fn))
        self.weight_global_scale = self._parameter(torch.tensor(0.01, device=DEVICE))
        self.params_dtype = torch.bfloat16
        self.output_size_per_partition, self.input_size_per_partition = n, k

    @staticmethod
    def _parameter(data: torch.Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(data, requires_grad=False)

    def values(self) -> torch.Tensor:
        """Return the dequantised weight in float64."""
        table = torch.tensor(
            [*E2M1, *(-value for value in E2M1)], dtype=torch.float64, device=DEVICE
        )
        codes = self.weight.data
        values = torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), -1)
        scales = self.weight_scale.data.double() * self.weight_global_scale.data.double()
        return values.flatten(1) * scales.repeat_interleave(16, 1)


def time_us(call: Callable[[int], object], copies: int, samples: int = 15) -> float:
    """Return the microseconds of one call, `call(i)` being the one on copy `i`."""
    for i in range(copies):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            call(i)
    graph.replay()
    found = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / copies)
    return statistics.median(found)


def copy_rate() -> float:
    """Return TB/s of a device copy, bytes read plus bytes written."""
    source = torch.empty(4 << 30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    start.record()
    for _ in range(5):
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return 5 * 2 * source.numel() / start.elapsed_time(end) / 1e9


def kernels() -> dict[str, Any]:
    """Return the weight-only kernels of vLLM that this card runs."""
    config = NvFp4LinearLayerConfig()
    return {
        "triton": TritonNvFp4W4A16LinearKernel(config),
        "marlin": MarlinNvFp4LinearKernel(config),
    }


def check(name: str, n: int, k: int) -> list[dict[str, Any]]:
    """Return each kernel's error against float64, relative by norm, for the checked rows."""
    rows = []
    values = Layer(n, k, 7).values()
    for kernel_name, kernel in kernels().items():
        layer = Layer(n, k, 7)
        kernel.process_weights_after_loading(layer)
        for m in CHECKED_ROWS:
            x = torch.randn(
                m, k, generator=torch.Generator(device=DEVICE).manual_seed(m), device=DEVICE
            ).bfloat16()
            bias = torch.zeros(n, device=DEVICE, dtype=torch.bfloat16)
            reference = x.double() @ values.T
            out = kernel.apply_weights(layer, x)
            again = kernel.apply_weights(layer, x)
            with_bias = kernel.apply_weights(layer, x, bias)
            rows.append(
                {
                    "layer": name, "n": n, "k": k, "m": m, "kernel": kernel_name,
                    "error": float((out.double() - reference).norm() / reference.norm()),
                    "bf16_error": float(
                        (reference.bfloat16().double() - reference).norm() / reference.norm()
                    ),
                    "same_bits": bool(torch.equal(out, again)),
                    "bias_same": bool(torch.equal(out, with_bias)),
                }
            )  # fmt: skip
    return rows


def apply(kernel: Any, layers: list[Layer], x: torch.Tensor, i: int) -> torch.Tensor:  # noqa: ANN401
    """Return the product with layer `i`."""
    return kernel.apply_weights(layers[i], x)


def multiply(weights: list[torch.Tensor], x: torch.Tensor, i: int) -> torch.Tensor:
    """Return the BF16 product with weight `i`."""
    return torch.nn.functional.linear(x, weights[i])


def speed(name: str, n: int, k: int, rows: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return microseconds of each kernel and of cuBLAS on BF16 weights."""
    found = []
    size = n * k // 2 + n * k // 16
    copies = max(8, -(-200_000_000 // size))
    for kernel_name, kernel in kernels().items():
        layers = [Layer(n, k, seed) for seed in range(copies)]
        for layer in layers:
            kernel.process_weights_after_loading(layer)
        for m in rows:
            x = torch.randn(m, k, device=DEVICE).bfloat16()
            us = time_us(partial(apply, kernel, layers, x), copies)
            found.append(
                {"layer": name, "n": n, "k": k, "m": m, "kernel": kernel_name, "us": us,
                 "bytes": size}
            )  # fmt: skip
        del layers
    dense = [torch.randn(n, k, device=DEVICE).bfloat16() for _ in range(12)]
    for m in rows:
        x = torch.randn(m, k, device=DEVICE).bfloat16()
        us = time_us(partial(multiply, dense, x), len(dense))
        found.append(
            {"layer": name, "n": n, "k": k, "m": m, "kernel": "cublas-bf16", "us": us,
             "bytes": 2 * n * k}
        )  # fmt: skip
    return found


def machine() -> dict[str, str]:
    """Return what the numbers belong to."""
    names = ("vllm", "torch", "triton")
    return {
        "card": torch.cuda.get_device_name(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        **{name: importlib.metadata.version(name) for name in names},
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="bench.nvfp4.gemm", description=(__doc__ or "")[:60])
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="one shape, four sizes")
    options = parser.parse_args()
    shapes = dict(list(SHAPES.items())[:1]) if options.quick else SHAPES
    rows = (1, 4, 8, 16) if options.quick else ROWS
    result: dict[str, Any] = {"machine": machine(), "copy_tb_s": copy_rate()}
    print(json.dumps(result), flush=True)
    result["errors"], result["times"] = [], []
    for name, (n, k) in shapes.items():
        result["errors"] += check(name, n, k)
        worst = {
            kernel: max(r["error"] for r in result["errors"] if r["kernel"] == kernel)
            for kernel in ("triton", "marlin")
        }
        result["times"] += (times := speed(name, n, k, rows))
        line = " ".join(
            f"M{m}:" + "/".join(f"{r['us']:.1f}" for r in times if r["m"] == m) for m in rows
        )
        print(f"{name} [{n}, {k}] worst error {worst}; triton/marlin/cublas us {line}", flush=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
