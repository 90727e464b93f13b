"""CUDA graphs over the op that dispatches on M: each captured size keeps its kernel and numbers.

usage: python -m bench.nvfp4.graphs OUT.json

The FP4 GEMM below the dispatch is a stand-in on the shared layout (activations quantised and
dequantised, weights dequantised, matmul): the card need not have an FP4 GEMM. The weight-only GEMM
is the real one. Calls are counted. An assertion fails where a size has the wrong kernel.
"""

# ruff: noqa: ANN401, S101, PLR0915
from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.kernels.linear import NvFp4LinearLayerConfig
from vllm.model_executor.kernels.linear.nvfp4 import m_dispatch, m_dispatch_table
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import (
    run_nvfp4_emulations,
)

from bench.nvfp4.emulated import EmulatedSharedLayoutKernel
from bench.nvfp4.gemm import Layer

CUTOFF = 16
TOLERANCE = 4e-3
SIZES = (1, 8, 16, 17, 24, 64, 256)


def write_table(path: Path, cutoff: int = CUTOFF) -> None:
    """Write a table for this very machine, as the census would."""
    machine = m_dispatch.this_machine()
    table = m_dispatch_table.Table(
        path=path, origin="measured", source="bench.nvfp4.graphs", device_name=machine.name,
        capabilities=(machine.capability,), versions=machine.versions,
        rules=(
            m_dispatch_table.Rule(
                "EmulatedSharedLayoutKernel", None, None,
                (m_dispatch_table.Step("triton", cutoff),),
            ),
        ),
    )  # fmt: skip
    path.write_text(m_dispatch_table.to_json(table))


def main() -> int:
    """Run the command line."""
    out = Path(sys.argv[1])
    table = out.with_name("graphs-table.json")
    write_table(table)
    os.environ["VLLM_NVFP4_M_DISPATCH"] = str(table)
    m_dispatch.SHARED_LAYOUT_KERNELS += (EmulatedSharedLayoutKernel,)
    base = EmulatedSharedLayoutKernel(NvFp4LinearLayerConfig())
    kernel = m_dispatch.dispatch_on_m(base)
    assert type(kernel).__name__ == "MDispatchNvFp4LinearKernel"
    small = []
    real = m_dispatch.WEIGHT_ONLY["triton"]

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        small.append(x.shape[0])
        return real(x, *rest)

    m_dispatch.WEIGHT_ONLY["triton"] = counted
    n, k = 5120, 6144
    layer = Layer(n, k, 1)
    layer.input_global_scale_inv = torch.tensor(448.0, device="cuda")
    layer.alpha = layer.weight_global_scale / layer.input_global_scale_inv
    values = layer.values()
    plain_weight, plain_scale = layer.weight.data.clone(), layer.weight_scale.data.clone()
    torch.cuda.synchronize()
    kernel.process_weights_after_loading(layer)
    held = torch.cuda.memory_allocated()
    rows = []
    for m in SIZES:
        for eager in (True, False):
            small.clear()
            base.rows.clear()
            x = torch.randn(m, k, device="cuda").bfloat16()
            call = kernel.apply_weights
            if not eager:
                call = torch.compile(kernel.apply_weights, fullgraph=True, dynamic=True)
            warm = torch.cuda.Stream()
            with torch.cuda.stream(warm):
                call(layer, x)
                call(layer, x)
            torch.cuda.synchronize()
            small.clear()
            base.rows.clear()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = call(layer, x)
            captured = {"small": list(small), "base": list(base.rows)}
            x.copy_(torch.randn(m, k, device="cuda").bfloat16())
            graph.replay()
            torch.cuda.synchronize()
            replayed_python = len(small) + len(base.rows) - 1
            reference = x.double() @ values.T
            emulated = run_nvfp4_emulations(
                x, layer.input_global_scale_inv, plain_weight, plain_scale,
                layer.weight_global_scale.data, swizzle=False,
            )  # fmt: skip
            rows.append({
                "m": m, "compiled": not eager, "captured": captured,
                "python_calls_in_replay": replayed_python,
                "error_to_w4a16": float((y.double() - reference).norm() / reference.norm()),
                "same_bits_as_w4a4": bool(torch.equal(y, emulated)),
            })  # fmt: skip
            expected = {"small": [m], "base": []} if m <= CUTOFF else {"small": [], "base": [m]}
            assert captured == expected, (captured, expected)
            assert rows[-1]["same_bits_as_w4a4"] == (m > CUTOFF), rows[-1]
            assert m > CUTOFF or rows[-1]["error_to_w4a16"] < TOLERANCE, rows[-1]
            del graph, y
    result = {
        "card": torch.cuda.get_device_name(), "cutoff": CUTOFF, "rows": rows,
        "weight_bytes_held": layer.weight.numel() + layer.weight_scale.numel(),
        "weight_bytes_shared_layout": n * k // 2 + n * k // 16,
        "allocated_after_processing": held,
    }  # fmt: skip
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result)[:3000])
    return 0


if __name__ == "__main__":
    sys.exit(main())
