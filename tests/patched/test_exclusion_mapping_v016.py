"""exclusion-mapping-v016: Qwen3-Next of 0.16.0 keeps what lists name, and says what does not fit.

The release wants the gguf package at import; nothing here reads a GGUF file, so a stand-in serves.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch


class _StandIn(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


if importlib.util.find_spec("gguf") is None:
    for _name in ("gguf", "gguf.constants", "gguf.quants"):
        sys.modules[_name] = _StandIn(_name)

from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
from vllm.model_executor.models import qwen3_next, qwen3_next_mtp

LAYER = "model.layers.0."
MAPPING = qwen3_next.Qwen3NextForCausalLM.packed_modules_mapping


def excluded(entries: list[str], name: str, mapping: dict[str, list[str]] = MAPPING) -> bool:
    config = ModelOptNvFp4Config(
        is_checkpoint_nvfp4_serialized=True, kv_cache_quant_algo=None, exclude_modules=entries
    )
    config.packed_modules_mapping = mapping
    return bool(config.is_layer_excluded(name))


@pytest.mark.parametrize(
    ("shards", "fused"),
    [(("in_proj_qkv", "in_proj_z"), "in_proj_qkvz"), (("in_proj_b", "in_proj_a"), "in_proj_ba")],
)
def test_split_names_exclude_the_fused_projection(shards: tuple[str, str], fused: str) -> None:
    entries = [f"{LAYER}linear_attn.{shard}" for shard in shards]
    assert excluded(entries, f"{LAYER}linear_attn.{fused}")
    assert should_ignore_layer(f"{LAYER}linear_attn.{fused}", entries, MAPPING)
    assert not excluded(entries, f"{LAYER}linear_attn.out_proj")


def test_fused_names_exclude_the_fused_projection_still() -> None:
    for fused in ("in_proj_qkvz", "in_proj_ba"):
        name = f"{LAYER}linear_attn.{fused}"
        assert is_layer_skipped(name, [name], MAPPING)
        assert is_layer_skipped(name, [f"linear_attn.{fused}"], MAPPING, skip_with_substr=True)
        assert should_ignore_layer(name, [f"re:.*{fused}$"], MAPPING)
        assert excluded([name], name)


def test_the_whole_linear_attention_and_the_drafter_are_kept() -> None:
    for fused in ("in_proj_qkvz", "in_proj_ba", "out_proj"):
        assert excluded([f"{LAYER}linear_attn*"], f"{LAYER}linear_attn.{fused}")
    assert excluded(["mtp.*"], "mtp.fc")


def test_the_drafters_mlp_is_fused_from_gate_and_up() -> None:
    mapping = qwen3_next_mtp.Qwen3NextMTP.packed_modules_mapping
    entries = [f"mtp.layers.0.mlp.shared_expert.{name}_proj" for name in ("gate", "up")]
    assert excluded(entries, "mtp.layers.0.mlp.shared_expert.gate_up_proj", mapping)


def built_with(monkeypatch: pytest.MonkeyPatch, module: Any, build: Any) -> dict[str, object]:
    """The quantization config that each linear layer of `build` is given, by its prefix."""
    given: dict[str, object] = {}

    def record(*_arguments: object, **options: Any) -> torch.nn.Module:
        given[options["prefix"]] = options["quant_config"]
        return torch.nn.Identity()

    for kind in ("ReplicatedLinear", "ColumnParallelLinear"):
        if hasattr(module, kind):
            monkeypatch.setattr(module, kind, record)
    build()
    return given


class _StoppedError(Exception):
    pass


def test_the_routers_gate_is_never_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(device_group=SimpleNamespace(rank=lambda: 0), rank_in_group=0)
    group.device_group.size = lambda: 1
    group.world_size = 1
    config = SimpleNamespace(
        num_experts=4,
        hidden_size=32,
        shared_expert_intermediate_size=0,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        norm_topk_prob=True,
    )
    parallel = SimpleNamespace(
        use_sequence_parallel_moe=False,
        enable_eplb=False,
        eplb_config=SimpleNamespace(num_redundant_experts=0),
    )
    vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=config),
        parallel_config=parallel,
        quant_config=object(),
    )
    monkeypatch.setattr(qwen3_next, "get_tensor_model_parallel_world_size", lambda: 1)
    monkeypatch.setattr(qwen3_next, "get_ep_group", lambda: group)
    monkeypatch.setattr(qwen3_next, "get_current_vllm_config", lambda: vllm_config)

    def no_experts(*_arguments: object, **_options: object) -> None:
        raise _StoppedError

    monkeypatch.setattr(qwen3_next, "SharedFusedMoE", no_experts)

    def build() -> None:
        with pytest.raises(_StoppedError):
            qwen3_next.Qwen3NextSparseMoeBlock(vllm_config, prefix=f"{LAYER}mlp")

    given = built_with(monkeypatch, qwen3_next, build)
    assert given == {f"{LAYER}mlp.gate": None, f"{LAYER}mlp.shared_expert_gate": None}


def narrowed(param: torch.nn.Parameter, loaded: torch.Tensor) -> None:
    """As the loaders of sharded parameters do it."""
    param.data.copy_(loaded.narrow(0, 0, len(param)))


@pytest.mark.parametrize("rows", [4, 16])
@pytest.mark.parametrize(
    ("module", "kind"),
    [(qwen3_next, "Qwen3NextModel"), (qwen3_next_mtp, "Qwen3NextMultiTokenPredictor")],
)
def test_a_weight_that_does_not_fit_is_named_with_both_sizes(
    module: Any, kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qwen3_next, "get_tensor_model_parallel_world_size", lambda: 1)
    model = torch.nn.Module.__new__(getattr(module, kind))
    torch.nn.Module.__init__(model)
    model.norm = torch.nn.LayerNorm(8, bias=False)
    model.norm.weight.weight_loader = narrowed
    model.config = SimpleNamespace(num_experts=0)
    model.num_redundant_experts = 0
    with pytest.raises(ValueError, match=r"norm\.weight") as error:
        model.load_weights([("norm.weight", torch.zeros(rows, dtype=torch.uint8))])
    assert f"torch.uint8 of size ({rows},)" in str(error.value)
    assert "torch.float32 of size (8,)" in str(error.value)
