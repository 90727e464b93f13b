"""exclusion-resolver: what the list keeps in BF16 is loaded as BF16, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config
from vllm.model_executor.model_loader.utils import configure_quant_config
from vllm.model_executor.models.qwen3_5 import Qwen3_5ForConditionalGeneration

from tests.patched import checkpoints
from tests.patched.heard import warnings_of
from tests.patched.loading import load
from tests.patched.recipes import (
    GDN_REGEX,
    GDN_WILDCARDS,
    KEPT,
    KEPT_CT,
    compressed_tensors,
    modelopt,
    packed,
    packed_except,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAYER = "language_model.model.layers.10."
STORED = "model.language_model.layers.10."


def modelopt_config(excluded: list[str]) -> ModelOptNvFp4Config:
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    made = ModelOptNvFp4Config.from_config({**config, "ignore": excluded})
    configure_quant_config(made, Qwen3_5ForConditionalGeneration)
    return made


def asked(config: CompressedTensorsConfig, name: str) -> bool:
    """What `config` ignores; on a stock tree as its get_scheme_dict asks."""
    if hasattr(config, "is_ignored"):
        return bool(config.is_ignored(name))
    mapping = config.packed_modules_mapping
    return bool(should_ignore_layer(name, ignore=config.ignore, fused_mapping=mapping))


def modelopt_excludes(excluded: list[str], name: str) -> bool:
    return bool(modelopt_config(excluded).is_layer_excluded(name))


def compressed_tensors_ignores(ignored: list[str], name: str) -> bool:
    config = CompressedTensorsConfig({}, ignored, "nvfp4-pack-quantized")
    configure_quant_config(config, Qwen3_5ForConditionalGeneration)
    return asked(config, name)


def check_loads(folder: Path, recipe: checkpoints.Recipe, kept: str, *quantized: str) -> None:
    """Every module holds the checkpoint's values, `kept` in BF16 and `quantized` packed."""
    written = checkpoints.write(folder, recipe)
    loaded = load(folder)
    assert loaded.differences(written.matrices) == []
    assert not loaded.is_quantized(kept)
    assert all(loaded.is_quantized(name) for name in quantized)


MLP = "language_model.model.layers.0.mlp.gate_up_proj"
QKVZ = "language_model.model.layers.0.linear_attn.in_proj_qkvz"
BA = "language_model.model.layers.0.linear_attn.in_proj_ba"
QKV = "language_model.model.layers.1.self_attn.qkv_proj"


def test_wildcards_for_in_proj_a_and_b_keep_the_fused_module(tmp_path: Path) -> None:
    check_loads(tmp_path, modelopt(*KEPT, *GDN_WILDCARDS), BA, MLP, QKV)


def test_wildcards_for_in_proj_qkv_and_z_keep_the_fused_module(tmp_path: Path) -> None:
    others = ("*linear_attn.in_proj_ba", *(f"*linear_attn.in_proj_{x}" for x in "ab"))
    recipe = modelopt(*KEPT, "*in_proj_qkv*", "*in_proj_z*", *others)
    check_loads(tmp_path, recipe, QKVZ, MLP, QKV)


def test_wildcards_for_q_k_and_v_keep_the_fused_module(tmp_path: Path) -> None:
    excluded = (*KEPT, "*linear_attn.in_proj_*", "*.q_proj", "*.k_proj", "*.v_proj")
    recipe = modelopt(*excluded, packed=packed_except("q_proj", "k_proj", "v_proj"))
    check_loads(tmp_path, recipe, QKV, MLP)


def test_a_regex_in_the_checkpoints_names_keeps_the_vision_tower(tmp_path: Path) -> None:
    written = checkpoints.write(tmp_path, compressed_tensors(*KEPT_CT, GDN_REGEX))
    loaded = load(tmp_path, vision=True)
    assert loaded.differences(written.matrices) == []
    assert not loaded.is_quantized("visual.blocks.0.attn.qkv")
    assert loaded.is_quantized(MLP)


def test_a_regex_in_the_checkpoints_names_keeps_the_linear_attention(tmp_path: Path) -> None:
    ignored = ("re:model.language_model.layers.*.linear_attn.*", "lm_head", "re:.*visual.*")
    recipe = compressed_tensors(*ignored, "re:.*mtp.*", packed=packed_except("linear_attn"))
    check_loads(tmp_path, recipe, QKVZ, MLP, QKV)


def test_a_path_does_not_take_a_module_whose_name_goes_on(tmp_path: Path) -> None:
    gate = "model.language_model.layers.0.mlp.gate"
    recipe = modelopt(
        *KEPT, gate, "model.language_model.layers.0.linear_attn.in_proj_*", "*in_proj_*"
    )
    check_loads(tmp_path, recipe, BA, MLP, QKV)


def test_a_stem_that_ends_in_a_number_is_settled_by_the_tensors(tmp_path: Path) -> None:
    kinds = ("linear_attention",) + ("full_attention",) * 10
    excluded = (*KEPT, "*linear_attn.in_proj_[a-z]*", "model.language_model.layers.1*")
    recipe = modelopt(*excluded, packed=packed_except("layers.1."), layers=kinds)
    tenth = "language_model.model.layers.10.mlp.gate_up_proj"
    check_loads(tmp_path, recipe, "language_model.model.layers.1.mlp.gate_up_proj", MLP, tenth)


def test_a_stem_that_ends_in_a_number_is_read_as_one_layer_with_a_warning() -> None:
    config = modelopt_config(["model.language_model.layers.1*"])
    with warnings_of("layers.quantization.utils.exclusions") as texts:
        assert not config.is_layer_excluded(f"{LAYER}mlp.gate_up_proj")
        assert not config.is_layer_excluded(f"{LAYER}mlp.down_proj")
    assert config.is_layer_excluded("language_model.model.layers.1.mlp.gate_up_proj")
    (text,) = texts
    assert "layers.1*" in text
    assert f"{LAYER}mlp.gate_up_proj" in text


@pytest.mark.parametrize("excludes", [modelopt_excludes, compressed_tensors_ignores])
def test_some_shards_alone_name_the_shards_and_the_checkpoints_keys(
    excludes: Callable[[list[str], str], bool],
) -> None:
    entries = [f"{STORED}self_attn.{shard}" for shard in ("q_proj", "k_proj")]
    with pytest.raises(ValueError, match="Only some shards") as error:
        excludes(entries, f"{LAYER}self_attn.qkv_proj")
    text = str(error.value)
    assert "Excluded: q_proj, k_proj (" in text
    assert "Not excluded: v_proj (" in text
    assert all(f"{STORED}self_attn.{shard}_proj.weight" in text for shard in "qkv")


def test_some_shards_alone_are_settled_by_the_tensors(tmp_path: Path) -> None:
    partly = [f"model.language_model.layers.1.self_attn.{shard}_proj" for shard in "qk"]
    recipe = modelopt(
        *KEPT,
        *GDN_WILDCARDS,
        *partly,
        packed=packed_except("q_proj", "k_proj", "v_proj"),
    )
    check_loads(tmp_path, recipe, QKV, MLP)


def test_a_drafter_named_below_model_is_kept() -> None:
    assert modelopt_excludes(["model.mtp*"], "mtp.fc")
    assert modelopt_excludes(["model.mtp*"], "mtp.layers.0.mlp.gate_up_proj")
    assert compressed_tensors_ignores(["re:model.mtp.*"], "mtp.fc")
    assert not modelopt_excludes(["model.mtp*"], f"{LAYER}mlp.down_proj")


def test_unlisted_modules_of_a_mixed_checkpoint_stay_unquantized(tmp_path: Path) -> None:
    listed = {
        f"model.language_model.layers.{layer}.mlp.{name}": {"quant_algo": "NVFP4", "group_size": 16}
        for layer in range(2)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    recipe = modelopt(
        *KEPT,
        packed=lambda module: packed(module) and ".mlp." in module,
        config={"quant_algo": "MIXED_PRECISION", "quantized_layers": listed},
    )
    check_loads(tmp_path, recipe, QKV, MLP)


def test_the_switch_restores_the_earlier_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = ["*linear_attn.in_proj_a*", "*linear_attn.in_proj_b*"]
    assert modelopt_excludes(entries, f"{LAYER}linear_attn.in_proj_ba")
    monkeypatch.setenv("VLLM_QUANT_EXCLUSION_RESOLVER", "0")
    assert not modelopt_excludes(entries, f"{LAYER}linear_attn.in_proj_ba")
