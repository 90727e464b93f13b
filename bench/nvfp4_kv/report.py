"""The tables of docs/nvfp4-kv.md, from recorded data and the planner's formula.

usage: python -m bench.nvfp4_kv.report   (prints them)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from serve import profile
from serve.planning import pool
from serve.planning.cards import GIB
from serve.planning.pool import Caching

DATA = Path(__file__).parent / "data"


def _read(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def steps() -> str:
    """Return the decode steps, stock against patched."""
    found = _read("h200-decode-step.json")
    lines = [
        (
            "| requests | context | stock ms | patched ms | ratio | host waits for the stream, "
            "a step | graph launches, a step | kernel launches, a step |"
        ),
        "| ---: | ---: | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for old, new in zip(found["stock-graphs"], found["patched-graphs"], strict=True):
        waits = [str(p["waits_per_step"].get("cudaStreamSynchronize", 0)) for p in (old, new)]
        graphs = [str(p["graph_launches_per_step"]) for p in (old, new)]
        kernels = [str(p["kernel_launches_per_step"]) for p in (old, new)]
        lines.append(
            f"| {old['batch']} | {old['context']:,} | {old['ms']:.1f} | {new['ms']:.1f} "
            f"| {old['ms'] / new['ms']:.1f} | {' → '.join(waits)} | {' → '.join(graphs)} "
            f"| {' → '.join(kernels)} |"
        )
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Return the error that the formats bring into attention."""
    lines = [
        "| inputs | context | cache | cosine, mean | cosine, least | largest error |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r['inputs']} | {r['context']:,} | {r['kv']} | {r['cosine_mean']:.5f} "
        f"| {r['cosine_least']:.5f} | {r['largest_error']:.1%} |"
        for r in _read("cpu-kv-error.json")
    ]
    return "\n".join(lines) + "\n"


def tokens() -> str:
    """Return the tokens that a GiB of pool holds, at an 8 GiB pool and 262,144 tokens."""
    lines = [
        "| model | MTP | state | bf16 | fp8 | nvfp4 |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for name, title in (("qwen3.8-27b-nvfp4", "27B"), ("qwen3.5-35b-a3b-nvfp4", "35B-A3B")):
        shape = profile.load(name).profile.shape
        for drafts in (0, 3):
            for state in ("float32", "bfloat16"):
                cells = [
                    pool.pool(shape, Caching(kv, state, drafts), 8 * GIB, 262144).tokens // 8  # type: ignore[arg-type]
                    for kv in ("bfloat16", "fp8", "nvfp4")
                ]
                told = " | ".join(f"{cell:,}" for cell in cells)
                lines.append(f"| {title} | {drafts} | {state} | {told} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(steps(), errors(), tokens(), sep="\n")
