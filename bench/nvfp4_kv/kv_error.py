"""The error that an FP8 or NVFP4 KV cache brings into attention, by the formats alone.

usage: python bench/nvfp4_kv/kv_error.py OUT.json   (needs torch; a CPU will do)

Keys and values are rounded as the cache stores them and read back, attention is computed in
float32, and compared with attention over the BF16 cache. FP8 is e4m3 with scale 1. NVFP4 is e2m1
with a scale in e4m3 for each sixteen values of a head, the largest value over 6, and a global scale
of 1 (OCP Microscaling Formats 1.0 for e2m1; vLLM's `nvfp4_kv_cache_full_dim` for the layout).
Inputs are normal, with outlier channels, or heavy-tailed. It says nothing of any kernel.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

HEADS, KV_HEADS, DIM, QUERIES = 24, 4, 256, 4
CONTEXTS = (1024, 16384)
LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
MIDDLES = (LEVELS[1:] + LEVELS[:-1]) / 2
BLOCK = 16


def fp8(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def nvfp4(x: torch.Tensor) -> torch.Tensor:
    blocks = x.unflatten(-1, (-1, BLOCK))
    scale = fp8(blocks.abs().amax(-1, keepdim=True) / 6)
    scaled = blocks / torch.where(scale == 0, 1.0, scale)
    rounded = LEVELS[torch.bucketize(scaled.abs().clamp(max=6), MIDDLES)] * scaled.sign()
    return (rounded * scale).flatten(-2)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    group = HEADS // KV_HEADS
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) / DIM**0.5
    return scores.softmax(-1) @ v.repeat_interleave(group, 0)


def inputs(kind: str, context: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(context)
    q = torch.randn(HEADS, QUERIES, DIM)
    k = torch.randn(KV_HEADS, context, DIM)
    v = torch.randn(KV_HEADS, context, DIM)
    if kind == "outlier channels":  # few channels of the keys are far larger than the others
        k[..., :4] *= 20
        q[..., :4] /= 20
    if kind == "heavy tails":
        k, v = (x * torch.rand_like(x[..., :1]).clamp(min=0.05).rsqrt() for x in (k, v))
    return tuple(x.bfloat16().float() for x in (q, k, v))  # type: ignore[return-value]


def main() -> None:
    rows: list[dict[str, Any]] = []
    for kind in ("normal", "outlier channels", "heavy tails"):
        for context in CONTEXTS:
            q, k, v = inputs(kind, context)
            exact = attention(q, k, v)
            for name, form in (("fp8", fp8), ("nvfp4", nvfp4)):
                got = attention(q, form(k), form(v))
                cosine = torch.nn.functional.cosine_similarity(got, exact, dim=-1)
                worst = (got - exact).abs().max() / exact.abs().max()
                rows.append(
                    {
                        "inputs": kind, "context": context, "kv": name,
                        "cosine_mean": round(float(cosine.mean()), 5),
                        "cosine_least": round(float(cosine.min()), 5),
                        "largest_error": round(float(worst), 4),
                    }
                )  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
