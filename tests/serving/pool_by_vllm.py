"""The pool of a hybrid, counted by vLLM's own functions: for the planner to be compared with.

usage: python tests/serving/pool_by_vllm.py CASES.json   (prints the log's token count of each)

Run in an environment with vLLM. The specifications are vLLM's, with the planner's sizes of a token
and a state; the block size, the groups, the number of blocks and the capacity are vLLM's to find.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CacheConfig, VllmConfig
from vllm.utils.torch_utils import nvfp4_kv_cache_full_dim
from vllm.v1.core import kv_cache_planning, kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, MambaSpec

_KINDS = {
    "bfloat16": (torch.bfloat16, KVQuantMode.NONE),
    "fp8": (torch.float8_e4m3fn, KVQuantMode.NONE),
    "nvfp4": (torch.uint8, KVQuantMode.NVFP4),
}


def capacity(case: dict[str, Any]) -> int:
    shape, block = case["shape"], case["block"]
    dtype, mode = _KINDS[case["kv"]]
    attention = FullAttentionSpec(
        block_size=block, num_kv_heads=shape["key_value_heads"], head_size=shape["head_dim"],
        dtype=dtype, kv_quant_mode=mode,
    )  # fmt: skip
    if mode is KVQuantMode.NVFP4:  # as FlashInfer's backend packs it (customize_spec)
        attention = replace(
            attention,
            num_head_slots=2 * shape["key_value_heads"],
            state_content_bytes=nvfp4_kv_cache_full_dim(shape["head_dim"]),
        )
    keys = shape["linear_key_heads"] * shape["linear_key_dim"]
    values = shape["linear_value_heads"] * shape["linear_value_dim"]
    state = MambaSpec(
        block_size=block,
        shapes=(
            (shape["conv_kernel"] - 1 + case["drafts"], 2 * keys + values),
            (shape["linear_value_heads"], shape["linear_value_dim"], shape["linear_key_dim"]),
        ),
        dtypes=(torch.bfloat16, getattr(torch, case["state"])),
        page_size_padded=attention.page_size_bytes,
        mamba_cache_mode="align",
        num_speculative_blocks=case["drafts"],
        num_prefill_checkpoint_blocks=int(case["checkpoints"]),
    )
    layers = {f"attention.{i}": attention for i in range(case["attention"])}
    layers |= {f"linear.{i}": state for i in range(shape["linear_attention"])}
    cache = CacheConfig(block_size=block)
    cache.mamba_cache_mode = "align"
    config = VllmConfig(cache_config=cache)
    config.model_config = SimpleNamespace(max_model_len=case["context"])
    groups = kv_cache_planning._get_kv_cache_groups_uniform_page_size(layers)
    size = sum(
        spec.page_size_bytes for spec in [attention] * max(len(g.layer_names) for g in groups)
    )
    pool = SimpleNamespace(kv_cache_groups=groups, num_blocks=case["pin"] // size)
    return int(kv_cache_utils.get_kv_cache_capacity(config, pool)[0])


if __name__ == "__main__":
    cases = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([capacity(case) for case in cases]))
