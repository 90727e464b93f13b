"""A skip list for the KV cache's dtype tells the target's layer 0 from the drafter's.

The layers are made and loaded by the tree's own loader, from a checkpoint of four layers and an MTP
layer, with an FP8 KV cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.model_executor.layers.attention import Attention

from tests.patched import checkpoints, loading
from tests.patched.checkpoints import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KINDS = ("full_attention", "linear_attention", "linear_attention", "full_attention")


def dtypes(folder: Path, monkeypatch: pytest.MonkeyPatch, skipped: list[str]) -> dict[str, str]:
    """Return the KV dtype of every attention layer of the target and of its drafter."""
    checkpoints.write(folder, Recipe(layers=KINDS))
    plain = loading.engine_arguments

    def arguments(model: Path, **options: bool) -> dict[str, object]:
        more = {"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": skipped}
        return plain(model, **options) | more

    monkeypatch.setattr(loading, "engine_arguments", arguments)
    found = {}
    for drafter in (False, True):
        model = loading.load(folder, drafter=drafter).model
        layers = [m for m in model.modules() if isinstance(m, Attention)]
        found |= {layer.layer_name.removesuffix(".self_attn.attn"): layer for layer in layers}
    return {name.rpartition("model.")[2]: layer.kv_cache_dtype for name, layer in found.items()}


def test_a_skipped_target_layer_leaves_the_drafters_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dtypes(tmp_path, monkeypatch, ["0"])
    assert found == {"layers.0": "auto", "layers.3": "fp8", "mtp.layers.0": "fp8"}


def test_the_drafters_layer_is_named_after_the_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dtypes(tmp_path, monkeypatch, ["4"])
    assert found == {"layers.0": "fp8", "layers.3": "fp8", "mtp.layers.0": "auto"}
