"""As test_state_index_bounds, for what v0.27.1 has and v0.33.0 has not: conv columns by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.patched import interpreter, states
from tests.patched.states import REQUESTS, Seen, assert_isolated

interpreter.enable()

from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

if TYPE_CHECKING:
    from tests.patched.states import Record

WIDTH, DIM, COLUMNS = 4, 8, 3
LINES = 1 + REQUESTS * COLUMNS


def conv_cache() -> torch.Tensor:
    return states.random(LINES, WIDTH - 1, DIM, seed=1)


def run_conv(cache: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Run the middle request alone: the rows about it are read only by mistake."""
    return causal_conv1d_update(
        states.random(1, DIM, seed=2),
        cache.transpose(1, 2),
        states.random(DIM, WIDTH, seed=3),
        states.random(DIM, seed=4),
        "silu",
        conv_state_indices=states.slot_table()[1:2],
        block_idx_last_scheduled_token=torch.tensor([last], dtype=torch.int32),
        initial_state_idx=torch.tensor([first], dtype=torch.int32),
    )


@pytest.mark.parametrize(
    ("first", "last"), [(-1, 0), (0, -1), (COLUMNS, 0), (0, COLUMNS), (COLUMNS + 1, COLUMNS + 1)]
)
def test_conv_uses_no_column_out_of_the_row(first: int, last: int) -> None:
    own = states.slot_table()[1].tolist()
    others = [line for line in range(LINES) if line not in own]

    def once(cache: torch.Tensor) -> Seen:
        return Seen(run_conv(cache, first, last), cache)

    assert_isolated(once, conv_cache(), own, others)


def test_conv_is_unchanged_within_the_row(record_property: Record) -> None:
    cache = conv_cache()
    record_property("sha256", states.digest(run_conv(cache, 0, 2), cache))
