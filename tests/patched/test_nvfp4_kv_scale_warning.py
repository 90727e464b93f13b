"""An NVFP4 KV cache that runs on scale 1.0 says so, once per model, with names and a way out.

The method, its scales and the post-load pass are the tree's own. The layers hold what an attention
layer holds of it; an attention layer itself refuses NVFP4 on a CPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from vllm import logger as vllm_logger
from vllm.model_executor.layers.attention.attention import set_default_quant_scales
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.model_loader.utils import process_weights_after_loading

from tests.patched import logs

if TYPE_CHECKING:
    from logging import LogRecord


class Layer(torch.nn.Module):
    """The state that an attention layer has between its making and the end of the load."""

    def __init__(self, dtype: str, scale: float | None, *, quantised: bool = True) -> None:
        super().__init__()
        self.kv_cache_dtype = dtype
        self.calculate_kv_scales = False
        set_default_quant_scales(self, register_buffer=True)
        if quantised:
            self.quant_method = BaseKVCacheMethod(None)
            self.quant_method.create_weights(self)
            if scale is not None:
                self.k_scale.data.fill_(scale)
                self.v_scale.data.fill_(scale)


@pytest.fixture(autouse=True)
def fresh_once() -> None:
    """Let messages that are logged once be logged once for each test."""
    vllm_logger._print_warning_once.cache_clear()


def load(layers: dict[int, Layer]) -> list[LogRecord]:
    """Finish the load of a model with these layers; return the warnings about scales."""
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleDict()
    for index, layer in layers.items():
        model.layers[str(index)] = torch.nn.ModuleDict({"attn": layer})
    config = SimpleNamespace(
        dtype=torch.bfloat16, quantization=None, word_embeddings_untied_by_checkpoint=False
    )
    with logs.caught() as records:
        process_weights_after_loading(model, config, torch.device("cpu"))
    texts = ("KV cache scaling factor 1.0", "NVFP4 KV cache")
    return [r for r in records if any(text in r.getMessage() for text in texts)]


def only(records: list[LogRecord]) -> LogRecord:
    assert len(records) == 1
    return records[0]


def test_unit_scale_is_reported_as_nvfp4() -> None:
    record = only(load({3: Layer("nvfp4", None)}))
    assert record.levelname == "WARNING"
    assert "NVFP4" in record.getMessage()
    assert "fp8_e4m3" not in record.getMessage()


def test_the_layers_are_named_and_counted() -> None:
    record = only(load({3: Layer("nvfp4", None), 7: Layer("nvfp4", 0.5), 11: Layer("nvfp4", 1.0)}))
    message = record.getMessage()
    assert "2 of 3 layers" in message
    assert "layers.3.attn, layers.11.attn" in message
    assert "layers.7.attn" not in message


def test_many_layers_are_named_compactly_in_one_warning() -> None:
    record = only(load({index: Layer("nvfp4", None) for index in range(3, 64, 4)}))
    message = record.getMessage()
    assert "16 of 16 layers" in message
    assert "layers.3.attn, layers.7.attn, ..., layers.63.attn" in message
    assert len(message) < 600


def test_the_warning_says_what_to_do() -> None:
    record = only(load({3: Layer("nvfp4", None)}))
    for words in ("k_scale/v_scale", "--kv-cache-dtype-skip-layers", "--kv-cache-dtype"):
        assert words in record.getMessage()


def test_a_checkpoint_without_any_kv_method_is_reported_too() -> None:
    record = only(load({3: Layer("nvfp4", None, quantised=False)}))
    assert "NVFP4" in record.getMessage()


def test_calibrated_nvfp4_scales_are_silent() -> None:
    assert load({3: Layer("nvfp4", 0.25), 7: Layer("nvfp4", 0.5)}) == []


def test_fp8_keeps_its_own_warning() -> None:
    record = only(load({3: Layer("fp8", None)}))
    assert "fp8_e4m3" in record.getMessage()
    assert "NVFP4" not in record.getMessage()


def test_an_unquantised_cache_is_silent() -> None:
    assert load({3: Layer("auto", None, quantised=False)}) == []


def test_the_scales_themselves_are_unchanged() -> None:
    unit, calibrated = Layer("nvfp4", None), Layer("nvfp4", 0.25)
    load({3: unit, 7: calibrated})
    assert (unit._k_scale_float, unit._v_scale_float, unit._k_scale.item()) == (1.0, 1.0, 1.0)
    assert (calibrated._k_scale_float, calibrated._v_scale.item()) == (0.25, 0.25)
    assert not hasattr(unit, "k_scale")
