"""Run one vLLM configuration on a checkpoint; write greedy tokens and log-probabilities as JSON.

usage: python -m bench.nvfp4.engine_ab MODEL OUT.json KERNEL MTP [graph]

KERNEL: `default` (what vLLM picks), `triton`, `emulated` (stand-in for an FP4 GEMM) or `dispatch`
(that stand-in, with the weight-only GEMM for up to 8 rows). Compare with bench.nvfp4.compare.
"""

# ruff: noqa: ANN401, PLC0415  (vLLM reads its environment when imported)
from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")

PROMPT_LENGTHS = (5, 17, 64, 300)
MAX_TOKENS = 32
TOP = 5
CUTOFF = 8


def put_stand_in_first(out: Path, *, dispatch: bool) -> Any:
    """Make the emulated FP4 GEMM what vLLM picks, with or without the dispatch above it."""
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.kernels.linear.nvfp4 import m_dispatch

    from bench.nvfp4.emulated import EmulatedSharedLayoutKernel
    from bench.nvfp4.graphs import write_table

    platform = linear.current_platform._enum  # noqa: SLF001
    linear._POSSIBLE_NVFP4_KERNELS[platform].insert(0, EmulatedSharedLayoutKernel)  # noqa: SLF001
    m_dispatch.SHARED_LAYOUT_KERNELS += (EmulatedSharedLayoutKernel,)
    table = out.with_suffix(".table.json")
    write_table(table, CUTOFF)
    os.environ["VLLM_NVFP4_M_DISPATCH"] = str(table) if dispatch else "off"


def main() -> None:
    """Run the command line."""
    model, out, kernel, mtp = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    graph = sys.argv[5:] == ["graph"]
    if kernel in ("emulated", "dispatch"):
        put_stand_in_first(out, dispatch=kernel == "dispatch")
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    options: dict[str, Any] = {
        "model": model, "skip_tokenizer_init": True, "max_model_len": 2048,
        "gpu_memory_utilization": 0.08, "kv_cache_memory_bytes": 1 << 30,
        "enforce_eager": not graph, "limit_mm_per_prompt": {"image": 0, "video": 0},
        "max_num_seqs": 8, "enable_prefix_caching": False, "seed": 0,
        "attention_backend": "TRITON_ATTN", "gdn_prefill_backend": "triton",
        "kernel_config": {"enable_flashinfer_autotune": False},
    }  # fmt: skip
    if kernel == "triton":
        options["linear_backend"] = "triton"
    if mtp:
        options["speculative_config"] = {"method": "mtp", "num_speculative_tokens": mtp}
    start = time.perf_counter()
    llm = LLM(**options)
    loaded = time.perf_counter() - start
    rng = random.Random(1)  # noqa: S311
    prompts = [
        TokensPrompt(prompt_token_ids=[rng.randrange(10, 4000) for _ in range(length)])
        for length in PROMPT_LENGTHS
    ]
    params = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False, logprobs=TOP
    )
    start = time.perf_counter()
    answers = [
        [
            {"token": token, "top": {str(t): round(p.logprob, 4) for t, p in step.items()}}
            for token, step in zip(o.outputs[0].token_ids, o.outputs[0].logprobs, strict=True)
        ]
        for o in llm.generate(prompts, params)
    ]
    seconds = time.perf_counter() - start
    result = {
        "kernel": kernel, "mtp": mtp, "graph": graph, "loaded_s": round(loaded, 1),
        "generate_s": round(seconds, 2), "answers": answers,
    }  # fmt: skip
    out.write_text(json.dumps(result) + "\n")
    print("DONE", out.name, f"load {loaded:.0f} s", [[s["token"] for s in a[:6]] for a in answers])


if __name__ == "__main__":
    main()
