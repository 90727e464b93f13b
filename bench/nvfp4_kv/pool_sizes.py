"""Tokens per GiB of KV cache as the engine itself counts them, for each KV dtype.

usage: python bench/nvfp4_kv/pool_sizes.py OUT.json [--mtp 3] [--gib 4] [--jobs 6]

Runs on a GPU host with vLLM on PYTHONPATH. Each case is one engine start in a process of its own:
the attention and GDN geometry of a model (its MLPs and vocabulary made small, weights random, since
no KV byte depends on them), a fixed `kv_cache_memory_bytes`, and one KV dtype. What is recorded is
the line that the engine logs, "GPU KV cache size: N tokens", and the blocks behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

DTYPES = ("bfloat16", "fp8", "nvfp4")
STATES = ("float32", "bfloat16")
# Public config.json files: hidden size, layers, query and KV heads, GDN key and value heads.
SHAPES = {
    "27B": (5120, 64, 24, 4, 16, 48),
    "35B-A3B": (2048, 40, 16, 2, 16, 32),
}
_SIZE = re.compile(r"KV cache size: ([0-9,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([0-9,]+) tokens per request: ([0-9.]+)x")


def config(shape: str) -> dict[str, Any]:
    """Return the config.json of a dense hybrid with the shape's attention and GDN layers."""
    hidden, layers, heads, kv_heads, keys, values = SHAPES[shape]
    text = {
        "model_type": "qwen3_5_text",
        "vocab_size": 2048,
        "hidden_size": hidden,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "full_attention_interval": 4,
        "layer_types": [
            "linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)
        ],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "mamba_ssm_dtype": "float32",
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "bos_token_id": 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "model_type": "qwen3_5",
        "depth": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
        "hidden_act": "gelu_pytorch_tanh",
        "initializer_range": 0.02,
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 2044,
        "video_token_id": 2045,
        "vision_start_token_id": 2042,
        "vision_end_token_id": 2043,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def start(folder: str, kv_dtype: str, state_dtype: str, mtp: int, pin: int) -> None:
    """Start one engine in this process, and print what it counts beyond its log."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    from vllm import LLM  # noqa: PLC0415

    options: dict[str, Any] = {
        "model": folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "kv_cache_dtype": kv_dtype,
        "mamba_ssm_cache_dtype": state_dtype,
        "max_model_len": 262144,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.12,
        "kv_cache_memory_bytes": pin,
        "enforce_eager": True,
        "limit_mm_per_prompt": {"image": 0, "video": 0},
        "attention_backend": "FLASHINFER",
        "kernel_config": {"enable_flashinfer_autotune": False},
        "gdn_prefill_backend": "triton",
    }
    if mtp:
        options["speculative_config"] = {"method": "mtp", "num_speculative_tokens": mtp}
    cache = LLM(**options).llm_engine.vllm_config.cache_config
    print("BLOCKS", cache.num_gpu_blocks, cache.block_size, cache.mamba_block_size)


def case(
    folder: Path, shape: str, kv_dtype: str, state_dtype: str, mtp: int, pin: int
) -> dict[str, Any]:
    """Return one case's numbers, or the end of its log."""
    command = [sys.executable, __file__, "--start", str(folder / shape), kv_dtype, state_dtype]
    done = subprocess.run(
        [*command, str(mtp), str(pin)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=420,
        check=False,
    )
    found: dict[str, Any] = {
        "shape": shape,
        "kv_dtype": kv_dtype,
        "state_dtype": state_dtype,
        "mtp": mtp,
        "pin": pin,
    }
    size, blocks = _SIZE.search(done.stdout), re.search(r"BLOCKS (\d+) (\d+) (\S+)", done.stdout)
    if done.returncode or not size or not blocks:
        return {**found, "failed": done.stdout[-3000:]}
    tokens = int(size[1].replace(",", ""))
    concurrency = _CONCURRENCY.search(done.stdout)
    return {
        **found,
        "tokens": tokens,
        "tokens_per_gib": round(tokens / (pin / 2**30)),
        "blocks": int(blocks[1]),
        "block_size": int(blocks[2]),
        "mamba_block_size": blocks[3],
        "concurrency": float(concurrency[2]) if concurrency else None,
    }


def main() -> None:
    """Run every case, several at a time, and write the file."""
    if sys.argv[1:2] == ["--start"]:
        _, _, folder, kv_dtype, state_dtype, mtp, pin = sys.argv
        start(folder, kv_dtype, state_dtype, int(mtp), int(pin))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--mtp", type=int, default=3)
    parser.add_argument("--gib", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        for shape in SHAPES:
            folder = Path(scratch) / shape
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config(shape)))
        cases = [
            (Path(scratch), shape, kv_dtype, state, options.mtp, options.gib << 30)
            for shape in SHAPES
            for kv_dtype in DTYPES
            for state in STATES
        ]
        results = list(pool.map(lambda arguments: case(*arguments), cases))
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    for each in results:
        row = [str(each.get(key, "failed")) for key in ("tokens", "tokens_per_gib", "blocks")]
        print(each["shape"], each["kv_dtype"], each["state_dtype"], *row, each.get("block_size"))
        if "failed" in each:
            print(each["failed"][-600:])


if __name__ == "__main__":
    main()
