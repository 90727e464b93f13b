r"""One profiled call of a kernel for each shape and M, for Nsight Compute.

usage: ncu --clock-control none --profile-from-start off --csv --metrics METRICS \
           python -m bench.nvfp4.profiled triton 1,4,8,16

METRICS is what bench.nvfp4.sm120 reads: smsp__inst_executed.sum, gpu__time_duration.sum,
dram__bytes_read.sum, smsp__issue_active.avg.pct_of_peak_sustained_active, sm__cycles_elapsed.max,
launch__registers_per_thread.
"""

from __future__ import annotations

import sys

import torch

from bench.nvfp4.gemm import DEVICE, SHAPES, Layer, kernels


def main() -> None:
    """Run the command line."""
    kernel = kernels()[sys.argv[1]]
    rows = [int(m) for m in sys.argv[2].split(",")]
    for n, k in SHAPES.values():
        layer = Layer(n, k, 0)
        kernel.process_weights_after_loading(layer)
        for m in rows:
            x = torch.randn(m, k, device=DEVICE).bfloat16()
            kernel.apply_weights(layer, x)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            kernel.apply_weights(layer, x)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
