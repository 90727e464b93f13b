"""As test_state_index_bounds, for the kernels that v0.33.0 has and v0.27.1 has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.patched import interpreter, states
from tests.patched.states import COLUMNS, REQUESTS, VICTIM, Seen, assert_isolated

interpreter.enable()

from vllm.third_party.flash_linear_attention.ops import (
    fused_gdn_decode_post_conv_mtp as post_conv,
)
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker import mamba_utils

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.patched.states import Record

    TableFunction = Callable[[torch.Tensor], torch.Tensor]

BLOCK = 4
TABLE_COLUMNS = 5
SLOTS = 1 + REQUESTS * COLUMNS
KEY, VALUE = 16, 64


class Device(torch.Tensor):
    """A CPU tensor that says it is on a GPU, so that the functions launch their kernels."""

    is_cuda = True


def spec() -> MambaSpec:
    return MambaSpec(
        block_size=BLOCK,
        shapes=((3, 8), (2, 4)),
        dtypes=(torch.float32, torch.float32),
        mamba_cache_mode="align",
        num_speculative_blocks=COLUMNS - 1,
    )


def table() -> torch.Tensor:
    count = REQUESTS * TABLE_COLUMNS
    return torch.arange(1, 1 + count, dtype=torch.int32).view(REQUESTS, TABLE_COLUMNS)


def by_metadata(lengths: torch.Tensor) -> torch.Tensor:
    return mamba_get_block_table_tensor(
        table().as_subclass(Device), lengths.as_subclass(Device), spec(), "align"
    ).as_subclass(torch.Tensor)


def by_context(lengths: torch.Tensor) -> torch.Tensor:
    blocks = table()
    config = KVCacheConfig(
        num_blocks=int(blocks.max()) + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([], spec())],
    )
    context = mamba_utils.MambaSpecDecodeGPUContext.create(
        max_num_reqs=REQUESTS,
        kv_cache_config=KVCacheConfig(
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec())],
        ),
        copy_funcs={spec().mamba_type: ()},
        device=torch.device("cpu"),
        make_buffer=lambda n, dtype: CpuGpuBuffer(
            n, dtype=dtype, device=torch.device("cpu"), pin_memory=False
        ),
    )
    context.initialize_from_forward_context(config, {}, {spec().mamba_type: ()}, [blocks])
    return context.compute_aligned_state_indices(lengths.as_subclass(Device), REQUESTS)[0]


TABLES = pytest.mark.parametrize("function", [by_metadata, by_context])


@TABLES
def test_columns_past_the_row_are_null(function: TableFunction) -> None:
    """At BLOCK * 4 tokens the window is columns 3 to 5, of which the row has 3 and 4."""
    found = function(torch.tensor([1, BLOCK * 4, BLOCK * 7], dtype=torch.int32))
    rows = table().tolist()
    assert found.tolist() == [rows[0][:3], [*rows[1][3:], 0], [0, 0, 0]]


@TABLES
def test_columns_within_the_row_are_unchanged(function: TableFunction) -> None:
    found = function(torch.tensor([0, BLOCK, BLOCK * 2 + 1], dtype=torch.int32))
    rows = table().tolist()
    assert found.tolist() == [rows[0][:3], rows[1][:3], rows[2][2:5]]


@pytest.fixture
def two_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper asks how many compute units the device has, to choose its tile."""
    monkeypatch.setattr(post_conv, "num_compute_units", lambda _: 2)


def run_post_conv(cache: torch.Tensor, accepted: list[int], lengths: list[int]) -> torch.Tensor:
    tokens = sum(lengths)
    out = torch.zeros(tokens, 1, VALUE)
    return post_conv.fused_gdn_decode_post_conv_mtp_triton(
        states.random(tokens, 2 * KEY + VALUE, seed=1),
        states.random(tokens, 1, seed=2),
        states.random(tokens, 1, seed=3),
        states.random(1, seed=4),
        states.random(1, seed=5),
        states.slot_table(),
        torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        torch.tensor(accepted, dtype=torch.int32),
        cache,
        states.random(tokens, 1, VALUE, seed=6),
        states.random(VALUE, seed=7),
        out,
        KEY**-0.5,
        1e-6,
        "silu",
    )


def post_conv_cache() -> torch.Tensor:
    return states.random(SLOTS, 1, VALUE, KEY, seed=8)


@pytest.mark.usefixtures("two_units")
def test_post_conv_writes_no_other_request_by_a_long_query() -> None:
    own = states.slot_table()[VICTIM].tolist()

    def once(cache: torch.Tensor) -> Seen:
        return Seen(run_post_conv(cache, [1, 1, 1], [0, COLUMNS + 2, 0]), cache)

    others = [slot for slot in range(SLOTS) if slot not in own]
    assert_isolated(once, post_conv_cache(), own, others)


@pytest.mark.usefixtures("two_units")
@pytest.mark.parametrize("count", [0, 1, 3, COLUMNS + 1])
def test_post_conv_is_unchanged(count: int, record_property: Record) -> None:
    cache = post_conv_cache()
    out = run_post_conv(cache, [1, count, 2], [2, 3, 1])
    record_property("sha256", states.digest(out, cache))
