"""lm-head-tensors-over-exclude: the head is loaded as the checkpoint holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.patched import checkpoints
from tests.patched.heard import warnings_of
from tests.patched.loading import load
from tests.patched.recipes import GDN_WILDCARDS, modelopt, packed

if TYPE_CHECKING:
    from pathlib import Path

KEPT = ("model.visual*", "mtp*", *GDN_WILDCARDS)


def with_head(module: str) -> bool:
    return packed(module) or module == "lm_head"


@pytest.mark.parametrize("entry", ["lm_head", "lm_head*", "*lm_head*"])
def test_an_excluded_head_that_is_packed_is_loaded_packed(tmp_path: Path, entry: str) -> None:
    written = checkpoints.write(tmp_path, modelopt(entry, *KEPT, packed=with_head))
    loaded = load(tmp_path)
    assert loaded.is_quantized("language_model.lm_head")
    assert loaded.differences(written.matrices) == []


def test_the_drafter_loads_the_same_head(tmp_path: Path) -> None:
    written = checkpoints.write(tmp_path, modelopt("lm_head*", *KEPT, packed=with_head))
    loaded = load(tmp_path, drafter=True)
    assert loaded.is_quantized("lm_head")
    assert loaded.differences(written.matrices) == []


def test_a_bf16_head_that_no_list_names_is_loaded_as_bf16(tmp_path: Path) -> None:
    written = checkpoints.write(tmp_path, modelopt(*KEPT))
    loaded = load(tmp_path)
    assert not loaded.is_quantized("language_model.lm_head")
    assert loaded.differences(written.matrices) == []


def test_the_contradiction_is_said_once(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, modelopt("lm_head", *KEPT, packed=with_head))
    with warnings_of("layers.quantization.base_config") as texts:
        load(tmp_path)
        load(tmp_path, drafter=True)
    (text,) = texts
    assert "does not quantize lm_head, but the checkpoint holds it quantized" in text


def test_the_switch_restores_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write(tmp_path, modelopt("lm_head", *KEPT, packed=with_head))
    load(tmp_path)
    monkeypatch.setenv("VLLM_LM_HEAD_QUANT_BY_TENSORS", "0")
    with pytest.raises(ValueError, match=r"lm_head\.input_scale"):
        load(tmp_path)
