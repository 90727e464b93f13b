"""The checkpoint command's rules are vLLM's: the same lists get the same answers."""

from __future__ import annotations

import pytest
from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer

from imagebuild.checkpoint import patched, stock
from imagebuild.checkpoint.modules import Family, families
from imagebuild.checkpoint.stock import PartlyExcludedError
from tests.patched.test_exclude_lists import CASES, LISTS, MODELS, answer, configured

# Lists that are written so that the two ways of matching differ.
FAULTS = {
    "modelopt": (
        ["*linear_attn.in_proj_a*", "*linear_attn.in_proj_b*"],
        ["*in_proj_qkv*", "*in_proj_z*"],
        ["*.q_proj", "*.k_proj", "*.v_proj"],
        ["model.language_model.layers.10.mlp.gate"],
        ["model.language_model.layers.1*"],
        ["model.language_model.layers.10.self_attn.q_proj"],
        ["model.mtp*"],
        ["model.vis*", "model.visual", "*.mlp.experts.*", "*layers.1*"],
        ["model.language_model.layers.*.mlp.experts.0.gate_proj"],
        ["model.language_model.layers.3.mlp.experts.0.gate_proj", "lm_head*"],
    ),
    "compressed-tensors": (
        [r"re:^model\.visual.*"],
        ["re:model.language_model.layers.*.linear_attn.*"],
        ["model.language_model.layers.10.self_attn.q_proj"],
        ["re:model.mtp.*", "re:.*in_proj_b", "model.visual.blocks.0.attn.qkv"],
        ["mtp.fc", "model.mtp.layers.0.mlp.gate_proj", "lm_head"],
    ),
}
ALL = [(form, LISTS[form][source]) for form, source in CASES]
ALL += [(form, list(entries)) for form, lists in FAULTS.items() for entries in lists]
EXPERTS = "mlp.experts"
LINE = "v0.33.0" if hasattr(MODELS["text only"].kind, "hf_to_vllm_mapper") else "v0.27.1"


def names_of(model: str) -> list[str]:
    chosen = MODELS[model]
    experts = [f"{chosen.layers}{layer}.{EXPERTS}" for layer in (0, 3, 10)]
    return [name for name, _ in chosen.modules()] + experts


def family_of(model: str) -> Family:
    return families(LINE)[MODELS[model].kind.__name__]


def by_vllm(form: str, entries: list[str], model: str, name: str) -> bool | str:
    config = configured(form, entries, MODELS[model])
    try:
        if form == "compressed-tensors" and not hasattr(config, "is_ignored"):
            mapping = config.packed_modules_mapping
            return bool(should_ignore_layer(name, ignore=config.ignore, fused_mapping=mapping))
        return answer(config, name)
    except ValueError:
        return "refused"


def by_stock_rules(form: str, entries: list[str], family: Family, name: str) -> bool | str:
    try:
        if form == "modelopt":
            renamed = stock.modelopt_entries(entries, family)
            return stock.modelopt_excludes(name, renamed, family.fused)
        renamed = stock.compressed_tensors_entries(entries, family)
        return stock.compressed_tensors_ignores(name, renamed, family.fused, LINE)
    except PartlyExcludedError:
        return "refused"


@pytest.mark.parametrize("model", MODELS)
def test_the_released_rules_are_vllms(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_QUANT_EXCLUSION_RESOLVER", "0")
    differ = [
        (form, entries, name)
        for form, entries in ALL
        for name in names_of(model)
        if by_vllm(form, entries, model, name)
        != by_stock_rules(form, entries, family_of(model), name)
    ]
    assert differ == []


@pytest.mark.parametrize("model", MODELS)
def test_the_patched_rules_are_the_patchs(model: str) -> None:
    """Where the list alone does not say, the patch refuses, or reads it with a warning."""
    differ, unsaid = [], 0
    for form, entries in ALL:
        for name in names_of(model):
            told = patched.excludes(name, entries, family_of(model), form)
            unsaid += told is None
            if told is not None and told != by_vllm(form, entries, model, name):
                differ.append((form, entries, name, told))
    assert differ == []
    assert 0 < unsaid < 100
