"""exclusion-resolver on published lists: right where earlier vLLM was right, and else too.

The right answer is computed here without vLLM: an entry speaks of the modules whose path in the
checkpoint it matches, and a fused module is excluded if all its shards are.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config
from vllm.model_executor.model_loader.utils import configure_quant_config
from vllm.model_executor.models.qwen3_5 import (
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
)
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterator

LISTS = json.loads((Path(__file__).parent / "exclude_lists.json").read_text())
LEAVES = (
    "self_attn.qkv_proj",
    "self_attn.o_proj",
    "linear_attn.in_proj_qkvz",
    "linear_attn.in_proj_ba",
    "linear_attn.out_proj",
    "linear_attn.conv1d",
    "mlp.gate_up_proj",
    "mlp.down_proj",
    "mlp.gate",
    "mlp.shared_expert_gate",
    "mlp.shared_expert.gate_up_proj",
    "mlp.shared_expert.down_proj",
)


@dataclass(frozen=True)
class Model:
    """A model class, and where its modules stand in vLLM and in a checkpoint."""

    kind: type
    layers: str
    stored_layers: str
    others: tuple[tuple[str, str], ...]

    def modules(self) -> Iterator[tuple[str, str]]:
        for layer in (0, 1, 2, 3, 10, 11, 88):
            for leaf in LEAVES:
                yield f"{self.layers}{layer}.{leaf}", f"{self.stored_layers}{layer}.{leaf}"
        yield from self.others


DRAFTER = tuple((name, name) for name in ("mtp.fc", "mtp.layers.0.mlp.gate_up_proj"))
VISUAL = tuple(
    (f"visual.{name}", f"model.visual.{name}")
    for name in ("blocks.0.attn.qkv", "blocks.1.mlp.linear_fc1", "merger.linear_fc2")
)
# vLLM 0.27.1 does not know text-only checkpoints that keep the names of the whole model.
TEXT_ROOT = (
    "model.language_model.layers."
    if hasattr(Qwen3_5ForCausalLM, "hf_to_vllm_mapper")
    else "model.layers."
)
MODELS = {
    "with vision": Model(
        Qwen3_5ForConditionalGeneration,
        "language_model.model.layers.",
        "model.language_model.layers.",
        (("language_model.lm_head", "lm_head"), *VISUAL, *DRAFTER),
    ),
    "text only": Model(
        Qwen3_5ForCausalLM,
        "model.layers.",
        TEXT_ROOT,
        (("lm_head", "lm_head"), *DRAFTER),
    ),
    "next": Model(
        Qwen3NextForCausalLM,
        "model.layers.",
        "model.layers.",
        (("lm_head", "lm_head"), *DRAFTER),
    ),
}


def matched(form: str, entry: str, name: str) -> bool:
    if entry.startswith("re:"):
        return re.match(entry[3:], name) is not None
    if form == "compressed-tensors":
        return name == entry
    return fnmatchcase(name, entry) or f".{entry.rstrip('*')}." in f".{name}."


def right_answer(
    form: str, entries: list[str], names: tuple[str, ...], shards: list[str]
) -> bool | None:
    """None where the list names only some shards of the fused module."""
    if form == "compressed-tensors" and any(matched(form, e, n) for e in entries for n in names):
        return True
    heads = [name.rpartition(".")[0] for name in names]
    answers = {
        any(
            matched(form, entry, f"{head}.{shard}".lstrip("."))
            for entry in entries
            for head in heads
        )
        for shard in shards
    }
    return answers.pop() if len(answers) == 1 else None


def configured(form: str, entries: list[str], model: Model) -> Any:
    if form == "modelopt":
        config: Any = ModelOptNvFp4Config(
            is_checkpoint_nvfp4_serialized=True,
            kv_cache_quant_algo=None,
            exclude_modules=list(entries),
        )
    else:
        config = CompressedTensorsConfig({}, list(entries), "nvfp4-pack-quantized")
    configure_quant_config(config, model.kind)
    return config


def answer(config: Any, name: str) -> bool:
    ask = getattr(config, "is_ignored", None) or config.is_layer_excluded
    return bool(ask(name))


CASES = [(form, source) for form, lists in LISTS.items() for source in lists]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("form", "source"), CASES)
def test_a_published_list_keeps_the_modules_that_it_names(
    form: str, source: str, model: str
) -> None:
    entries, chosen = LISTS[form][source], MODELS[model]
    config = configured(form, entries, chosen)
    wrong = []
    for name, stored in chosen.modules():
        leaf = name.rpartition(".")[2]
        shards = config.packed_modules_mapping.get(leaf, [leaf])
        right = right_answer(form, entries, (name, stored), shards)
        if right is not None and answer(config, name) != right:
            wrong.append((name, right))
    assert wrong == []


def test_where_earlier_matching_was_right_the_answer_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared, differ = 0, []
    for form, source in CASES:
        for chosen in MODELS.values():
            entries = LISTS[form][source]
            patched = configured(form, entries, chosen)
            monkeypatch.setenv("VLLM_QUANT_EXCLUSION_RESOLVER", "0")
            stock = configured(form, entries, chosen)
            monkeypatch.delenv("VLLM_QUANT_EXCLUSION_RESOLVER")
            assert stock.exclusions is None
            for name, stored in chosen.modules():
                leaf = name.rpartition(".")[2]
                shards = stock.packed_modules_mapping.get(leaf, [leaf])
                right = right_answer(form, entries, (name, stored), shards)
                try:
                    earlier = answer(stock, name)
                except ValueError:
                    continue
                if earlier == right:
                    compared += 1
                    if answer(patched, name) != earlier:
                        differ.append((source, name))
    assert differ == []
    assert compared > 3000
