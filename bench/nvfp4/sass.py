"""Compile the W4A16 GEMM for GPUs that are not here: registers, spills, shared memory, counts.

usage: CUDA_VISIBLE_DEVICES= python -m bench.nvfp4.sass OUT.json

Needs Triton and a patched vLLM that finds no platform (tests.patched.environment makes one).
Counts are of the loop over K in the machine code: instructions a byte of weights and thread.
"""

# ruff: noqa: ANN401  (Triton has no types)
from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from vllm.model_executor.kernels.linear.nvfp4 import triton_w4a16

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TARGETS = (90, 120, 121)
ROWS, TILE_BYTES = 32, 64
# The limits of the cards: shared memory a block (CUDA programming guide, compute capabilities).
SHARED_LIMIT = {90: 227 * 1024, 120: 99 * 1024, 121: 99 * 1024}


def compiled(target: int, block_m: int) -> Any:
    """Return the kernel for the shapes that matter: K a multiple of 128, K split."""
    fixed = {
        "bias_ptr": None, "HAS_BIAS": False, "SPLIT": True, "EVEN_K": True,
        "PACKED_X": block_m > triton_w4a16.PACK_ABOVE_M, "BLOCK_M": block_m,
        "WIDE": triton_w4a16.OPERAND_IS_WIDE, "PDL": True, "INTERPRET": False,
    }  # fmt: skip
    pointers = {
        "x_ptr": "*bf16", "weight_ptr": "*i32", "scale_ptr": "*i32",
        "global_scale_ptr": "*fp32", "out_ptr": "*fp32",
    }  # fmt: skip
    kernel = triton_w4a16._w4a16_kernel  # noqa: SLF001
    names = list(kernel.arg_names)
    signature = {n: "constexpr" if n in fixed else pointers.get(n, "i32") for n in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names)
               if n not in fixed and n != "M"}  # fmt: skip
    source = ASTSource(kernel, signature, constexprs=fixed, attrs=aligned)
    return triton.compile(
        source, target=GPUTarget("cuda", target, 32), options={"num_warps": 1, "num_stages": 1}
    )


def dump(cubin: bytes, flag: str) -> str:
    """Return what cuobjdump says of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [CUOBJDUMP, flag, file.name], capture_output=True, text=True, check=True
        )
    return done.stdout + done.stderr


def loop(sass: str) -> list[str]:
    """Return the opcodes of the longest loop."""
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", sass, re.MULTILINE)
    code = [(int(address, 16), text) for address, text in lines]
    best: list[str] = []
    for address, text in code:
        target = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        if target and int(target[1], 16) < address:
            body = [t for a, t in code if int(target[1], 16) <= a <= address]
            best = max(best, body, key=len)
    return [re.sub(r"^@!?U?P\d+\s+", "", text).split()[0].split(".")[0] for text in best]


def figures(target: int, block_m: int) -> dict[str, Any]:
    """Return the figures of one variant."""
    kernel = compiled(target, block_m)
    cubin = kernel.asm["cubin"]
    usage = dump(cubin, "-res-usage")
    body = loop(dump(cubin, "-sass"))
    return {
        "target": f"sm_{target}", "block_m": block_m,
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),  # type: ignore[index]
        "spill_bytes": int(re.search(r"STACK:(\d+)", usage)[1]),  # type: ignore[index]
        "shared_bytes": kernel.metadata.shared,
        "loop_instructions": len(body),
        "per_weight_byte": round(len(body) / (ROWS * TILE_BYTES / 32), 2),
        "opcodes": dict(collections.Counter(body).most_common(10)),
    }  # fmt: skip


def main() -> int:
    """Run the command line; 1 if a variant spills or needs more shared memory than there is."""
    rows = [figures(target, block_m) for target in TARGETS for block_m in (8, 16, 32, 64)]
    result = {"triton": triton.__version__, "variants": rows}
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
    print(f"Triton {triton.__version__}")
    print("| target | rows of x | registers | spilled bytes | shared bytes | instr/weight byte |")
    print("| --- | --- | --- | --- | --- | --- |")
    bad = 0
    for row in rows:
        print(
            f"| {row['target']} | {row['block_m']} | {row['registers']} | {row['spill_bytes']} "
            f"| {row['shared_bytes']} | {row['per_weight_byte']} |"
        )
        bad += bool(row["spill_bytes"]) or (
            row["shared_bytes"] > SHARED_LIMIT[int(row["target"][3:])]
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
