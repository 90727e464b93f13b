"""Draw microseconds over M, a line for each kernel, a panel for each layer, out of recorded data.

usage: python -m bench.nvfp4.plot DATA.json OUT.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "nvfp4"
import matplotlib.pyplot as plt  # noqa: E402

STYLE = {"triton": ("#0072b2", "o"), "marlin": ("#d55e00", "s"), "cublas-bf16": ("#777777", "^")}


def main() -> int:
    """Run the command line."""
    data = json.loads(Path(sys.argv[1]).read_text())
    layers = list(dict.fromkeys(r["layer"] for r in data["times"]))
    columns = 3
    height = -(-len(layers) // columns)
    figure, axes = plt.subplots(height, columns, figsize=(11, 3 * height), sharex=True)
    for axis in axes.flat[len(layers) :]:
        axis.set_visible(False)
    for axis, layer in zip(axes.flat, layers, strict=False):
        rows = [r for r in data["times"] if r["layer"] == layer]
        for kernel, (colour, marker) in STYLE.items():
            points = [(r["m"], r["us"]) for r in rows if r["kernel"] == kernel]
            axis.plot(*zip(*points, strict=True), color=colour, marker=marker, ms=3, label=kernel)
        size = next(r["bytes"] for r in rows if r["kernel"] == "triton")
        floor = size / 1e6 / data["copy_tb_s"]
        axis.axhline(floor, color="#009e73", ls=":", label="weights at the copy rate")
        axis.set_title(f"{layer}  [{rows[0]['n']} x {rows[0]['k']}]", fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("M (rows of x)")
    for axis in axes[:, 0]:
        axis.set_ylabel("us")
    axes.flat[0].legend(fontsize=7)
    machine = data["machine"]
    figure.suptitle(
        f"NVFP4 W4A16 GEMM, {machine['card']}, {machine['date']}, torch {machine['torch']}, "
        f"Triton {machine['triton']}", fontsize=10,
    )  # fmt: skip
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
