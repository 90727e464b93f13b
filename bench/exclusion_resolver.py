"""Reading an exclude list for a model of 1,000 modules, against the earlier matching.

usage: python bench/exclusion_resolver.py   (inside the CPU environment, the patched tree as vLLM)

Both are timed in one run, the earlier one through its kill-switch; the best of 15 rounds each,
list mapping and compilation included.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config
from vllm.model_executor.model_loader.utils import configure_quant_config
from vllm.model_executor.models.qwen3_5 import Qwen3_5ForConditionalGeneration

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = "language_model.model.layers."
STORED = "model.language_model.layers."
LEAVES = (
    "mlp.gate_up_proj",
    "mlp.down_proj",
    "linear_attn.in_proj_qkvz",
    "linear_attn.in_proj_ba",
    "linear_attn.out_proj",
    "self_attn.qkv_proj",
    "self_attn.o_proj",
    "mlp.experts",
    "mlp.shared_expert.gate_up_proj",
    "mlp.shared_expert.down_proj",
)
MODULES = [f"{ROOT}{layer}.{leaf}" for layer in range(97) for leaf in LEAVES]
MODULES += [f"visual.blocks.{block}.attn.qkv" for block in range(30)]
KEPT = ["lm_head", "model.visual*", "mtp*"]
KEPT_LEAVES = ("conv1d", "in_proj_a", "in_proj_b")
LISTS = {
    "three entries": KEPT,
    "eight wildcards": [
        "*linear_attn.in_proj_a*",
        "*linear_attn.in_proj_b*",
        "*in_proj_qkv*",
        "*in_proj_z*",
        "*lm_head*",
        "*router*",
        "*shared_expert_gate*",
        "*visual*",
    ],
    "one stem a layer": KEPT + [f"{STORED}{layer}.linear_attn*" for layer in range(97)],
    "three modules a layer": KEPT
    + [f"{STORED}{layer}.linear_attn.{leaf}" for layer in range(97) for leaf in KEPT_LEAVES],
}


def milliseconds(entries: Sequence[str], switch: str) -> float:
    """The best time of 15 rounds."""
    os.environ["VLLM_QUANT_EXCLUSION_RESOLVER"] = switch
    best = float("inf")
    for _ in range(15):
        config = ModelOptNvFp4Config(
            is_checkpoint_nvfp4_serialized=True,
            kv_cache_quant_algo=None,
            exclude_modules=list(entries),
        )
        start = time.perf_counter()
        configure_quant_config(config, Qwen3_5ForConditionalGeneration)
        for module in MODULES:
            config.is_layer_excluded(module)
        best = min(best, time.perf_counter() - start)
    return best * 1000


def main() -> None:
    """Print the table."""
    print(f"{len(MODULES)} modules\nlist                   entries  earlier    resolver   ratio")
    for name, entries in LISTS.items():
        earlier, now = milliseconds(entries, "0"), milliseconds(entries, "1")
        print(
            f"{name:<22} {len(entries):>7}  {earlier:6.2f} ms  {now:6.2f} ms  {now / earlier:5.2f}"
        )


if __name__ == "__main__":
    main()
