"""The checkpoint command's verdicts come true: what it says of a checkpoint is how loading ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm.model_executor.layers.quantization import modelopt as vllm_modelopt

from imagebuild.checkpoint import report, source
from imagebuild.checkpoint.verdict import LM_HEAD, MTP, RESOLVER
from tests.patched import checkpoints
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
    from pathlib import Path

IS_PATCHED = hasattr(vllm_modelopt, "ModuleExclusions")
PATCHES = frozenset({RESOLVER, MTP, LM_HEAD})
ATTENTION = "model.language_model.layers.1.self_attn."


def with_head(module: str) -> bool:
    return packed(module) or module == "lm_head"


def below_model(name: str) -> str:
    return f"model.{name}" if name.startswith("mtp.") else name


RECIPES = {
    "nothing quantized": checkpoints.Recipe(),
    "each layer listed": modelopt(*KEPT, "model.language_model.layers.0.linear_attn.in_proj_*"),
    "wildcards": modelopt(*KEPT, *GDN_WILDCARDS),
    "only the mlp.gate": modelopt(*KEPT, *GDN_WILDCARDS, "model.language_model.layers.0.mlp.gate"),
    "two shards, all in BF16": modelopt(
        *KEPT,
        *GDN_WILDCARDS,
        f"{ATTENTION}q_proj",
        f"{ATTENTION}k_proj",
        packed=packed_except("q_proj", "k_proj", "v_proj"),
    ),
    "two shards, one packed": modelopt(
        *KEPT,
        *GDN_WILDCARDS,
        f"{ATTENTION}q_proj",
        f"{ATTENTION}k_proj",
        packed=packed_except("q_proj", "k_proj"),
    ),
    "regexes": compressed_tensors(*KEPT_CT, GDN_REGEX),
    "packed head": modelopt("lm_head*", *KEPT[1:], *GDN_WILDCARDS, packed=with_head),
    "a BF16 layer that no list names": modelopt(
        *KEPT, "*linear_attn.in_proj_[qzab]*", packed=packed_except("down_proj")
    ),
    "a drafter elsewhere": modelopt(*KEPT, *GDN_WILDCARDS, name=below_model),
    "no drafter": modelopt(*KEPT, *GDN_WILDCARDS, mtp=False),
    "fc not listed": compressed_tensors(
        "lm_head", r"re:^model\.visual.*", GDN_REGEX, r"re:^mtp\.layers\.0.*"
    ),
}


@pytest.mark.parametrize("part", ["alone", "drafter"])
@pytest.mark.parametrize("name", RECIPES)
def test_loading_ends_as_told(tmp_path: Path, name: str, part: str) -> None:
    drafter = part == "drafter"
    written = checkpoints.write(tmp_path, RECIPES[name])
    told = report.make(source.read(str(tmp_path), None), "v0.33.0", PATCHES)
    mine = [row for row in told.rows if row.module.of_drafter == drafter]
    mine += [row for row in told.rows if row.module.name.endswith("lm_head")]
    words = {(row.patched_verdict if IS_PATCHED else row.stock_verdict).value for row in mine}
    if drafter and told.missing:
        words = {"clear error" if IS_PATCHED else "random drafter"}
    if words == {"random drafter"}:
        load(tmp_path, drafter=True)
    elif words <= {"loads", "garbage"}:
        loaded = load(tmp_path, drafter=drafter, vision=not drafter)
        wrong = loaded.differences(written.matrices)
        assert bool(wrong) == (words != {"loads"})
    else:
        with pytest.raises((ValueError, AssertionError, AttributeError, RuntimeError)) as error:
            load(tmp_path, drafter=drafter, vision=not drafter)
        is_clear = "shards" in str(error.value) or "drafter needs" in str(error.value)
        assert is_clear == ("clear error" in words)
