"""Decode step time with an NVFP4 KV cache and MTP, stock against patched, on one GPU.

usage: decode_step.py OUT.json NAME=SITE [NAME=SITE ...] [--modes graphs,eager]

SITE is a folder with vLLM. For each, eager and with CUDA graphs, one process makes an engine with
the attention and GDN geometry of Qwen3.5-27B (16 layers of it, small MLPs and vocabulary, random
weights), fills it with requests of a context and times whole engine steps: the target on four
tokens a request and the drafter's three. A profiled step counts what the host waits for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LAYERS, DRAFTS, STEPS = 16, 3, 24
BATCHES = (1, 4, 8)
CONTEXTS = (1024, 16384)
WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
)
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx")


def engine(folder: str, *, graphs: bool) -> Any:
    """Return an engine of this process's vLLM."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    from vllm import LLM

    return LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        kv_cache_dtype="nvfp4",
        max_model_len=CONTEXTS[-1] + 1024,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=16 << 30,
        enforce_eager=not graphs,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY" if graphs else "NONE"},
        enable_prefix_caching=False,
        limit_mm_per_prompt={"image": 0, "video": 0},
        attention_backend="FLASHINFER",
        kernel_config={"enable_flashinfer_autotune": False},
        gdn_prefill_backend="triton",
        speculative_config={"method": "mtp", "num_speculative_tokens": DRAFTS},
    ).llm_engine


def fill(core: Any, batch: int, context: int) -> None:
    """Add requests and step until all of them decode."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    told = random.Random(batch * context)  # noqa: S311
    wanted = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True, detokenize=False)
    seen: set[str] = set()
    for number in range(batch):
        prompt = [told.randrange(10, 2000) for _ in range(context)]
        core.add_request(
            f"{context}-{batch}-{number}", TokensPrompt(prompt_token_ids=prompt), wanted
        )
    while len(seen) < batch:
        seen |= {o.request_id for o in core.step() if o.outputs[0].token_ids}


def measure(core: Any, batch: int, context: int) -> dict[str, Any]:
    """Return the time of a step and what the host waits for in it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    fill(core, batch, context)
    for _ in range(6):
        core.step()
    torch.cuda.synchronize()
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        core.step()
        times.append((time.perf_counter() - began) * 1e3)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(3):
            core.step()
    events = {e.key: e.count for e in profiled.key_averages()}
    core.abort_request([f"{context}-{batch}-{number}" for number in range(batch)])
    while core.has_unfinished_requests():
        core.step()
    return {
        "batch": batch,
        "context": context,
        "ms": round(statistics.median(times), 3),
        "spread_ms": [round(x, 3) for x in (min(times), max(times))],
        "waits_per_step": {n: round(events[n] / 3, 2) for n in WAITS if n in events},
        "graph_launches_per_step": round(events.get("cudaGraphLaunch", 0) / 3, 2),
        "kernel_launches_per_step": round(sum(events.get(n, 0) for n in LAUNCHES) / 3, 1),
    }  # fmt: skip


def run(folder: str, graphs: str, out: str) -> None:
    """Measure every point in this process; what is done stays if the rest does not come."""
    core = engine(folder, graphs=graphs == "graphs")
    points: list[dict[str, Any]] = []
    for context in CONTEXTS:
        for batch in BATCHES:
            points += [measure(core, batch, context)]
            Path(out).write_text(json.dumps(points))


def main() -> None:
    """Run the variants one after the other and write the file."""
    if sys.argv[1:2] == ["--run"]:
        run(*sys.argv[2:])
        return
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from bench.nvfp4_kv import shapes

    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("sites", nargs="+")
    parser.add_argument("--modes", default="graphs,eager")
    parser.add_argument("--limit", type=float, default=170)
    options = parser.parse_args()
    config = shapes.config("27B")
    text = config["text_config"]
    text["num_hidden_layers"], text["layer_types"] = LAYERS, text["layer_types"][:LAYERS]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(config))
        for mode in options.modes.split(","):
            for named in options.sites:
                name, _, site = named.partition("=")
                path = os.pathsep.join([site, os.environ.get("PYTHONPATH", "")])
                part = Path(scratch) / f"{name}-{mode}.json"
                log = options.out.with_name(f"{options.out.stem}-{name}-{mode}.log")
                ended = contextlib.suppress(subprocess.TimeoutExpired)
                with log.open("wb") as output, ended:
                    subprocess.run(
                            [sys.executable, __file__, "--run", scratch, mode, str(part)],
                            env=os.environ | {"PYTHONPATH": path},
                            stdout=output, stderr=subprocess.STDOUT,
                            timeout=options.limit, check=False,
                        )  # fmt: skip
                done = json.loads(part.read_text()) if part.is_file() else []
                results[f"{name}-{mode}"] = done
                options.out.write_text(json.dumps(results, indent=1) + "\n")
                for point in done:
                    print(name, mode, *point.values(), flush=True)
                if len(done) < len(BATCHES) * len(CONTEXTS):
                    print(log.read_text(errors="replace")[-1500:])


if __name__ == "__main__":
    main()
