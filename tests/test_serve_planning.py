"""The planner: the published pools, vLLM's own counting, and limits that no public row passes."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from imagebuild.errors import UsageError
from serve import profile
from serve.errors import ModelError, ProfileError
from serve.planning import asking, load, picture, pool, shape, table
from serve.planning.cards import CARDS, GIB, card
from serve.planning.load import Weights
from serve.planning.pool import Caching
from serve.tiny import checkpoint as tiny
from serve.tiny import vocabulary
from tests.support.serving import serve

if TYPE_CHECKING:
    from pathlib import Path

DENSE = profile.load("qwen3.8-27b-nvfp4").profile.shape
EXPERTS = profile.load("qwen3.5-35b-a3b-nvfp4").profile.shape
CONTEXT = 262144


def tokens(caching: Caching, size: int = 8 * GIB, of: shape.Shape = DENSE) -> int:
    return pool.pool(of, caching, size, CONTEXT).tokens


def test_the_published_pool_of_a_float32_state_comes_out_exactly() -> None:
    """373,797 tokens at an 8 GiB pin, NVFP4 KV, MTP-3, as v0.27.1's log says it."""
    assert tokens(Caching("nvfp4", "float32", 3, checkpoints=False)) == 373_797


def test_the_published_pool_of_a_bfloat16_state_comes_out_within_one_per_cent() -> None:
    assert tokens(Caching("nvfp4", "bfloat16", 3, checkpoints=False)) == pytest.approx(
        400_000, rel=0.01
    )


@pytest.mark.parametrize(
    ("of", "caching", "size", "context", "logged"),
    [
        # One H200, v0.33.0 with the patches: 16 layers of the 27B geometry, no prefix cache.
        (
            {"full_attention": 4, "linear_attention": 12},
            Caching("nvfp4", "float32", 3, prefix=False, checkpoints=False),
            16 * GIB,
            17408,
            959_272,
        ),
    ],
)
def test_the_log_of_an_engine_on_a_gpu_comes_out_exactly(
    of: dict[str, int], caching: Caching, size: int, context: int, logged: int
) -> None:
    import msgspec  # noqa: PLC0415

    found = pool.pool(msgspec.structs.replace(DENSE, **of), caching, size, context)
    assert found.tokens == logged
    assert found.block_tokens == 2848


def cases() -> list[tuple[dict[str, object], int]]:
    """Return the pools that vLLM's own functions are asked for, and what the planner says."""
    found = []
    for of, kv, state, drafts, checkpoints in itertools.product(
        (DENSE, EXPERTS),
        ("bfloat16", "fp8", "nvfp4"),
        ("bfloat16", "float32"),
        (0, 3),
        (False, True),
    ):
        caching = Caching(kv, state, drafts, checkpoints=checkpoints)  # type: ignore[arg-type]
        made = pool.pool(of, caching, 8 * GIB, CONTEXT)
        sizes = {key: getattr(of, key) for key in of.__struct_fields__}
        case: dict[str, object] = {
            "shape": sizes, "kv": kv, "state": state, "drafts": drafts, "checkpoints": checkpoints,
            "block": made.block_tokens, "context": CONTEXT, "pin": 8 * GIB,
            "attention": of.full_attention + (of.mtp_layers if drafts else 0),
        }  # fmt: skip
        found.append((case, made.tokens))
    return found


def test_a_smaller_type_of_cache_holds_more_tokens() -> None:
    per_gib = [tokens(Caching(kv, "bfloat16", 3)) / 8 for kv in ("bfloat16", "fp8", "nvfp4")]
    assert per_gib == sorted(per_gib)
    assert per_gib[2] / per_gib[0] > 3


def test_two_cards_hold_four_times_the_tokens_of_one_with_the_pool_of_two() -> None:
    one = tokens(Caching("nvfp4", "bfloat16", 3))
    two = tokens(Caching("nvfp4", "bfloat16", 3, tensor_parallel=2), 16 * GIB)
    assert two / one == pytest.approx(4, rel=0.02)


def test_weights_are_counted_from_the_headers_alone(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    model = asking.of_name(str(tmp_path))
    size = (tmp_path / "model.safetensors").stat().st_size
    assert model.exact
    assert model.weights.total < size < model.weights.total + 20_000
    assert 0 < model.weights.drafter < model.weights.total
    assert model.weights.embedding == 2 * 512 * model.shape.vocab_size


def test_a_step_reads_no_embedding_no_vision_and_only_the_chosen_experts() -> None:
    weights = Weights(total=1000, embedding=100, vision=50, experts=512, drafter=30)
    assert weights.step(DENSE, 0) == 1000 - 100 - 50 - 30
    assert weights.step(DENSE, 3) == 1000 - 100 - 50 + 2 * 30
    assert weights.step(EXPERTS, 0) == 1000 - 100 - 50 - 30 - 512 * 248 // 256


@pytest.mark.parametrize(
    ("name", "kv", "drafts", "context", "published"),
    [
        ("qwen3.5-27b-nvfp4", "fp8", 0, 4096, 80),
        ("qwen3.5-35b-a3b-nvfp4", "fp8", 0, 4096, 196),
        ("qwen3.5-35b-a3b-nvfp4", "fp8", 0, 262144, 156),
        ("qwen3.5-35b-a3b-nvfp4", "bfloat16", 0, 4096, 256),
    ],
)
def test_no_public_row_without_drafts_is_faster_than_the_limit(
    name: str, kv: str, drafts: int, context: int, published: float
) -> None:
    model = asking.of_profile(profile.load(name), drafts=drafts)
    made = asking.make(asking.with_kv(model, kv), card("5090"))  # type: ignore[arg-type]
    limit = next(each for each in made.limits if each.context == context)
    assert published < limit.tokens


def test_a_plan_says_whether_it_fits() -> None:
    model = asking.of_name("qwen3.8-27b-nvfp4")
    fits = {each.key: asking.make(model, each).fits for each in CARDS}
    assert fits == {
        "5090": True, "5090-laptop": False, "5080": False, "pro-6000": True, "spark": True,
    }  # fmt: skip


def test_a_pool_that_is_too_small_for_one_sequence_does_not_fit() -> None:
    model = asking.of_name("qwen3.8-27b-nvfp4")
    small = replace(model, asked=replace(model.asked, kv_pin=GIB))
    assert not asking.make(small, card("5090")).fits
    none = replace(model, asked=replace(model.asked, kv_pin=0))
    assert asking.make(none, card("5090")).pool is None
    assert "does not fit" in table.text(asking.make(none, card("5090")))


def test_estimated_weights_say_so() -> None:
    made = asking.make(asking.of_name("qwen3.8-27b-nvfp4"), card("5090"))
    assert "estimated" in made.model
    assert made.weights == load.estimated(DENSE).total


def test_the_picture_is_the_same_bytes_each_time_and_well_formed() -> None:
    model = asking.of_name("qwen3.8-27b-nvfp4")
    plans = [
        asking.make(asking.with_kv(model, kv), card("5090")) for kv in ("bfloat16", "fp8", "nvfp4")
    ]
    drawn = picture.render(plans)
    assert drawn == picture.render(plans)
    ET.fromstring(drawn)  # noqa: S314 # our own
    assert "395,212 tokens" in drawn


def test_a_config_of_another_kind_of_model_is_refused() -> None:
    with pytest.raises(ModelError, match="hybrid"):
        shape.of_config({"hidden_size": 8}, "config.json")
    wrong = tiny.config(vocabulary.build())
    wrong["text_config"]["head_dim"] = "wide"
    with pytest.raises(ModelError) as refused:
        shape.of_config(wrong, "config.json")
    assert refused.value.found == "'wide'"


def test_an_unknown_card_and_an_unknown_profile_are_errors_that_list_the_known() -> None:
    with pytest.raises(UsageError) as refused:
        card("4090")
    assert "5090-laptop" in str(refused.value.expected)
    with pytest.raises(ProfileError) as unknown:
        asking.of_name("qwen9")
    assert "tiny-cpu" in str(unknown.value.expected)


def test_the_command_prints_a_table_and_writes_a_picture(tmp_path: Path) -> None:
    done = serve("plan", "qwen3.8-27b-nvfp4", "--gpu", "5090", "--svg", str(tmp_path / "p.svg"))
    assert done.returncode == 0
    assert "KV cache size  " in done.stdout
    assert "395,212 tokens" in done.stdout
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    asked = serve("plan", "tp2", "--kv", "fp8", "--seqs", "4", "--context", "32768", "--json")
    facts = json.loads(asked.stdout)
    assert facts["rows"]["shared by 4"]["value"].endswith("tokens")
    assert "fp8" in facts["rows"]["KV of a token"]["remark"]
