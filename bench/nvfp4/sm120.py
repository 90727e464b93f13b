"""What the measurements on one card say about SM120's memory limit, and the speed table.

usage: python -m bench.nvfp4.sm120 [DATA_DIR]

Reads h200-gemm.json (times) and h200-ncu-triton.csv (issued instructions). Two scalings to an RTX
5090 (170 SMs, 2.4 GHz, 1.79 TB/s, four instructions a cycle and SM):
- issue: instructions executed over the card's issue rate, as if it issued in every cycle;
- time: the measured time by the ratio of the two cards' SMs times clock, as if nothing but
  instructions counted; launches and latencies are scaled with it, which they are not in truth.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

SM120_SMS, SM120_GHZ, SM120_TB_S = 170, 2.4, 1.79
SM90_SMS, SM90_GHZ = 132, 1.83  # the clock: cycles over duration in the profiler's own rows
GOAL = 0.8
ROWS = (1, 4, 8, 16, 32, 64)
DECODE_ROWS = 16


def profile(path: Path) -> list[dict[str, float]]:
    """Return, per profiled call in order, the sums over its kernels."""
    lines = [line for line in path.read_text().splitlines() if line.startswith('"')]
    kernels: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(lines):
        entry = kernels.setdefault(row["ID"], {"name": row["Kernel Name"]})
        entry[row["Metric Name"]] = row["Metric Value"].replace(",", "")
    calls: list[dict[str, float]] = []
    pending = 0.0
    for entry in kernels.values():
        instructions = float(entry["smsp__inst_executed.sum"])
        if "pack_x" in entry["name"]:
            pending = instructions
        elif "w4a16" in entry["name"]:
            calls.append(
                {
                    "instructions": instructions + pending,
                    "issue_percent": float(
                        entry["smsp__issue_active.avg.pct_of_peak_sustained_active"]
                    ),
                }
            )
            pending = 0.0
        else:
            calls[-1]["instructions"] += instructions
    return calls


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> int:
    """Print the tables; 1 if a shape misses the goal."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "data"
    gemm = json.loads((folder / "h200-gemm.json").read_text())
    times = {(r["layer"], r["m"], r["kernel"]): r["us"] for r in gemm["times"]}
    shapes = {r["layer"]: (r["n"], r["k"]) for r in gemm["times"]}
    machine = gemm["machine"]
    print(f"{machine['card']}, {machine['date']}, torch {machine['torch']}, Triton "
          f"{machine['triton']}; device copy {gemm['copy_tb_s']:.2f} TB/s\n")  # fmt: skip
    print("us, Triton / Marlin / cuBLAS BF16\n")
    measured = sorted({m for _, m, _ in times})
    print("| layer | N x K |" + "".join(f" M {m} |" for m in measured))
    print("| --- | --- |" + " --- |" * len(measured))
    for layer, (n, k) in shapes.items():
        cells = [
            " / ".join(f"{times[layer, m, k_]:.1f}" for k_ in ("triton", "marlin", "cublas-bf16"))
            for m in measured
        ]
        print(f"| {layer} | {n} x {k} |" + "".join(f" {c} |" for c in cells))
    print("\n| Marlin's time over ours, geometric mean |" + "".join(f" M {m} |" for m in measured))
    print("| --- |" + " --- |" * len(measured))
    groups = {
        "27B": [s for s in shapes if s.startswith("27B")],
        "35B-A3B": [s for s in shapes if s.startswith("35B")],
        "all": list(shapes),
    }
    for name, layers in groups.items():
        cells = [
            geometric_mean([times[s, m, "marlin"] / times[s, m, "triton"] for s in layers])
            for m in measured
        ]
        print(f"| {name} |" + "".join(f" {c:.2f} |" for c in cells))
    goal = [times[s, m, "marlin"] / times[s, m, "triton"] for s in shapes for m in (1, 4, 8, 16)]
    print(f"\nM 1, 4, 8, 16 over all shapes: {geometric_mean(goal):.3f}; "
          f"lowest {min(goal):.2f}, highest {max(goal):.2f}\n")  # fmt: skip
    clock = SM90_SMS * SM90_GHZ / (SM120_SMS * SM120_GHZ)
    print("| layer | M | instr/weight byte | issued, SM90 | SM120 memory us | issue us | "
          "issue/memory | time scaled us | scaled/memory |")  # fmt: skip
    print("| --- |" + " --- |" * 8)
    calls = iter(profile(folder / "h200-ncu-triton.csv"))
    missed = 0
    for layer, (n, k) in shapes.items():
        for m in ROWS:
            call = next(calls)
            memory = (n * k // 2 + n * k // 16) / SM120_TB_S / 1e6
            issue = call["instructions"] / (SM120_SMS * 4 * SM120_GHZ * 1e3)
            scaled = times[layer, m, "triton"] * clock
            missed += m <= DECODE_ROWS and scaled > GOAL * memory
            mark = " (!)" if scaled > GOAL * memory else ""
            print(
                f"| {layer} | {m} | {call['instructions'] * 32 / (n * k / 2):.2f} "
                f"| {call['issue_percent']:.0f}% | {memory:.1f} | {issue:.1f} "
                f"| {issue / memory:.2f} | {scaled:.1f} | {scaled / memory:.2f}{mark} |"
            )
    print(f"\nscaled/memory above {GOAL} at M up to 16: {missed} rows")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
