"""unread-scales-report: scales that nothing reads are said once, with counts and an example."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.patched import checkpoints
from tests.patched.heard import warnings_of
from tests.patched.loading import load
from tests.patched.recipes import GDN_WILDCARDS, KEPT, modelopt, packed

if TYPE_CHECKING:
    from pathlib import Path

ATTENTION = "model.language_model.layers.1.self_attn."
KV_SCALES = {
    f"{ATTENTION}k_proj.k_scale": torch.tensor(0.5),
    f"{ATTENTION}v_proj.v_scale": torch.tensor(0.25),
}


def said(folder: Path, *, drafter: bool = False) -> list[str]:
    with warnings_of("model_loader.unread_scales") as texts:
        load(folder, drafter=drafter)
    return texts


def mixed(**extra: torch.Tensor) -> checkpoints.Recipe:
    """A mixed checkpoint whose attention has no KV cache method, and so no scale parameters."""
    listed = {
        f"model.language_model.layers.{layer}.mlp.{name}_proj": {"quant_algo": "NVFP4"}
        for layer in range(2)
        for name in ("gate", "up", "down")
    }
    return modelopt(
        *KEPT,
        packed=lambda module: packed(module) and ".mlp." in module,
        config={"quant_algo": "MIXED_PRECISION", "quantized_layers": listed},
        extra=extra,
    )


def test_scales_without_a_parameter_are_counted_and_one_is_named(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, mixed(**KV_SCALES))
    (text,) = said(tmp_path)
    assert text.startswith("2 scales")
    assert "1 k_scale, 1 v_scale" in text
    assert any(name in text for name in KV_SCALES)


def test_scales_of_a_cache_that_is_not_quantized_are_reported(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, modelopt(*KEPT, *GDN_WILDCARDS, extra=KV_SCALES))
    (text,) = said(tmp_path)
    assert text.startswith("2 scales")
    assert "layers.1.self_attn.attn.k_scale" in text
    assert "--kv-cache-dtype" in text


def test_a_drafter_reports_its_own_scales(tmp_path: Path) -> None:
    attention = "mtp.layers.0.self_attn."
    extra = {f"{attention}{name}_proj.{name}_scale": torch.tensor(0.5) for name in "kv"}
    checkpoints.write(tmp_path, mixed(**extra, **KV_SCALES))
    (text,) = said(tmp_path, drafter=True)
    assert text.startswith("2 scales")
    assert attention in text


def test_a_checkpoint_whose_scales_are_all_read_is_silent(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, modelopt(*KEPT, *GDN_WILDCARDS))
    assert said(tmp_path) == []
    checkpoints.write(tmp_path, mixed(**KV_SCALES))
    assert len(said(tmp_path)) == 1
