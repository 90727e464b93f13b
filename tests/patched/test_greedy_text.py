"""The engine's greedy tokens on a checkpoint with all these faults are those of its BF16 twin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.patched import checkpoints
from tests.patched.checkpoints import Recipe
from tests.patched.loading import greedy
from tests.patched.recipes import (
    GDN_REGEX,
    GDN_WILDCARDS,
    KEPT_CT,
    compressed_tensors,
    modelopt,
    packed,
)

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("linear_attention", "full_attention", "linear_attention", "full_attention")


def with_head(module: str) -> bool:
    return packed(module) or module == "lm_head"


def texts(folder: Path, recipe: Recipe) -> tuple[list[list[int]], list[list[int]]]:
    """The tokens of the checkpoint and of the same weights in BF16."""
    checkpoints.write(folder / "packed", replace(recipe, layers=KINDS))
    checkpoints.write(folder / "twin", Recipe(layers=KINDS))
    return greedy(folder / "packed"), greedy(folder / "twin")


def test_modelopt_wildcards_and_a_packed_head_give_the_twins_text(tmp_path: Path) -> None:
    gate = "model.language_model.layers.0.mlp.gate"
    excluded = ("lm_head*", "model.visual*", "model.mtp*", gate, *GDN_WILDCARDS)
    mine, twins = texts(tmp_path, modelopt(*excluded, packed=with_head))
    assert mine == twins
    assert len({tuple(tokens) for tokens in twins}) == len(twins)


def test_compressed_tensors_regexes_give_the_twins_text(tmp_path: Path) -> None:
    mine, twins = texts(tmp_path, compressed_tensors(*KEPT_CT, GDN_REGEX))
    assert mine == twins
