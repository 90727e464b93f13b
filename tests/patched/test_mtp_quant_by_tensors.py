"""mtp-quant-by-tensors: a drafter is built as the checkpoint holds it, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.patched import checkpoints
from tests.patched.checkpoints import EXPERTS, Recipe
from tests.patched.loading import Loaded, load
from tests.patched.recipes import (
    GDN_REGEX,
    GDN_WILDCARDS,
    KEPT,
    KEPT_CT,
    compressed_tensors,
    modelopt,
    packed,
)

if TYPE_CHECKING:
    from pathlib import Path

    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

LAYER = "model.layers.0."
WITHOUT_FC = ("lm_head", r"re:^model\.visual.*", GDN_REGEX, r"re:^mtp\.layers\.0.*")


def drafter(folder: Path, recipe: Recipe) -> Loaded:
    """The drafter, which holds what the checkpoint holds."""
    written = checkpoints.write(folder, recipe)
    loaded = load(folder, drafter=True)
    assert loaded.differences(written.matrices) == []
    return loaded


def quantized(loaded: Loaded) -> set[str]:
    return {name for name in loaded.matrix_modules() if loaded.is_quantized(name)}


def test_fc_missing_from_compressed_tensors_ignore_stays_bf16(tmp_path: Path) -> None:
    assert quantized(drafter(tmp_path, compressed_tensors(*WITHOUT_FC))) == set()


def test_a_drafter_named_below_model_in_the_list_stays_bf16(tmp_path: Path) -> None:
    recipe = modelopt("lm_head", "model.visual*", *GDN_WILDCARDS, "model.mtp*")
    assert quantized(drafter(tmp_path, recipe)) == set()


def test_a_drafter_that_no_list_names_stays_bf16(tmp_path: Path) -> None:
    recipe = modelopt("lm_head", "model.visual*", *GDN_WILDCARDS)
    assert quantized(drafter(tmp_path, recipe)) == set()


def test_a_packed_drafter_that_the_list_excludes_is_loaded_packed(tmp_path: Path) -> None:
    leaves = ("fc", "q_proj", "k_proj", "v_proj", "down_proj")

    def stored(module: str) -> bool:
        return packed(module) or (module.startswith("mtp.") and module.endswith(leaves))

    loaded = drafter(tmp_path, modelopt(*KEPT, *GDN_WILDCARDS, packed=stored))
    names = {f"{LAYER}self_attn.qkv_proj", f"{LAYER}mlp.down_proj", "model.fc"}
    assert quantized(loaded) == names


def test_bf16_experts_missing_from_ignore_stay_bf16(tmp_path: Path) -> None:
    attention_alone = ("re:mtp.*self_attn.*", "re:.*layers.*.mlp.experts.*gate_up_proj")
    target = "re:model.language_model.layers.*.mlp.experts.*"
    ignored = ("lm_head", r"re:^model\.visual.*", GDN_REGEX, target, *attention_alone)
    recipe = compressed_tensors(*ignored, moe=True)
    written = checkpoints.write(tmp_path, recipe)
    loaded = load(tmp_path, drafter=True)
    assert loaded.differences(written.matrices) == []
    held = dict(loaded.model.named_parameters())
    experts = f"{LAYER}mlp.experts.routed_experts."
    for expert in range(EXPERTS):
        stored = f"mtp.layers.0.mlp.experts.{expert}."
        pair = [written.matrices[f"{stored}{name}_proj"] for name in ("gate", "up")]
        assert torch.equal(held[f"{experts}w13_weight"][expert].float(), torch.cat(pair))
        down = written.matrices[f"{stored}down_proj"]
        assert torch.equal(held[f"{experts}w2_weight"][expert].float(), down)


def test_a_bf16_drafter_of_an_fp8_checkpoint_stays_bf16(tmp_path: Path) -> None:
    inputs = [f"linear_attn.in_proj_{name}" for name in ("qkv", "z", "a", "b")]
    kept = [f"model.language_model.layers.0.{name}" for name in inputs]
    loaded = drafter(tmp_path, Recipe(packed=packed, form="fp8", excluded=("lm_head", *kept)))
    assert quantized(loaded) == set()


def method_by_tensors(
    config: QuantizationConfig, layer: torch.nn.Module, prefix: str, folder: Path
) -> object:
    """Return a module's method where the folder's tensors may decide; a release asks the config."""
    try:
        from vllm.model_executor.layers.quantization.base_config import resolve_quant_method
        from vllm.model_executor.layers.quantization.utils.checkpoint_tensors import (
            CheckpointTensors,
        )
    except ImportError:
        return config.get_quant_method(layer, prefix)
    config.deciding_tensors = {prefix.partition(".")[0]: CheckpointTensors(str(folder))}
    return resolve_quant_method(config, layer, prefix)


def test_a_bf16_drafter_of_a_gptq_checkpoint_stays_bf16(tmp_path: Path) -> None:
    from vllm.model_executor.layers.linear import ReplicatedLinear, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig

    checkpoints.write(tmp_path, Recipe())
    config = AutoGPTQConfig.from_config(
        {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, "lm_head": False}
    )
    config.modules_in_block_to_quantize = ["self_attn.q_proj", "mlp.down_proj"]
    layer = torch.nn.Module.__new__(ReplicatedLinear)
    method = method_by_tensors(config, layer, "mtp.layers.0.mlp.down_proj", tmp_path)
    assert isinstance(method, UnquantizedLinearMethod)


def test_a_drafter_without_tensors_is_an_error_that_lists_them(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, modelopt(*KEPT, *GDN_WILDCARDS, mtp=False))
    with pytest.raises(ValueError, match="needs 15 tensors") as error:
        load(tmp_path, drafter=True)
    assert "mtp.fc.weight" in str(error.value)
    assert "mtp.layers.0.mlp.gate_proj.weight" in str(error.value)


def test_a_drafter_under_another_prefix_is_an_error_that_names_it(tmp_path: Path) -> None:
    def renamed(name: str) -> str:
        return f"model.{name}" if name.startswith("mtp.") else name

    checkpoints.write(tmp_path, modelopt(*KEPT, *GDN_WILDCARDS, name=renamed))
    with pytest.raises(ValueError, match=r"under other names.*model\.mtp\.fc\.weight"):
        load(tmp_path, drafter=True)


def test_one_missing_shard_is_named(tmp_path: Path) -> None:
    gone = "mtp.layers.0.self_attn.k_proj.weight"
    recipe = modelopt(*KEPT, *GDN_WILDCARDS, name=lambda name: None if name == gone else name)
    checkpoints.write(tmp_path, recipe)
    with pytest.raises(ValueError, match=rf"needs 1 tensors.*: {gone}\."):
        load(tmp_path, drafter=True)


def test_one_missing_expert_is_named(tmp_path: Path) -> None:
    gone = "mtp.layers.0.mlp.experts.2.up_proj"
    stacked = {"gate_up_proj": "gate_proj", "down_proj": "down_proj"}
    recipe = modelopt(*KEPT, *GDN_WILDCARDS, "*mlp.experts*", moe=True)
    written = checkpoints.Writer(recipe)
    written.model()
    experts = "mtp.layers.0.mlp.experts."
    single = {
        f"{experts}{expert}.{leaf}.weight": written.matrices[f"{experts}{expert}.{leaf}"].bfloat16()
        for expert in range(EXPERTS)
        for leaf in ("gate_proj", "up_proj", "down_proj")
        if f"{experts}{expert}.{leaf}" != gone
    }

    def unstacked(name: str) -> str | None:
        return None if name.removeprefix(experts) in stacked else name

    recipe = modelopt(
        *KEPT, *GDN_WILDCARDS, "*mlp.experts*", moe=True, name=unstacked, extra=single
    )
    checkpoints.write(tmp_path, recipe)
    with pytest.raises(ValueError, match=rf"needs 1 tensors.*: {gone}\.weight\."):
        load(tmp_path, drafter=True)


def test_the_switch_restores_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write(tmp_path, compressed_tensors(*WITHOUT_FC))
    assert quantized(load(tmp_path, drafter=True)) == set()
    monkeypatch.setenv("VLLM_MTP_QUANT_BY_TENSORS", "0")
    with pytest.raises(ValueError, match=r"fc\.weight"):
        load(tmp_path, drafter=True)


def test_a_target_without_a_drafter_needs_no_drafters_tensors(tmp_path: Path) -> None:
    written = checkpoints.write(tmp_path, compressed_tensors(*KEPT_CT, GDN_REGEX, mtp=False))
    assert load(tmp_path).differences(written.matrices) == []
