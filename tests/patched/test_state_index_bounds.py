"""A stale accepted count or a column out of the row reaches no other request's state.

The kernels are the tree's own, launched by the tree's own functions, under Triton's interpreter.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.patched import interpreter, states
from tests.patched.states import BAD_COUNTS, COLUMNS, REQUESTS, VICTIM, Seen, assert_isolated

interpreter.enable()

from vllm.model_executor.layers.mamba.mamba_utils import (
    get_conv_copy_spec,
    get_temporal_copy_spec,
)
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update
from vllm.model_executor.layers.mamba.ops.mamba_ssm import (
    override_ssm_config,
    selective_state_update,
)
from vllm.third_party.flash_linear_attention.ops import fused_recurrent
from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import (
    fused_sigmoid_gating_delta_rule_update,
)
from vllm.third_party.flash_linear_attention.ops.kda import fused_recurrent_kda_fwd
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker import mamba_utils
from vllm.v1.worker.gpu.model_states import mamba_hybrid

from tests.patched import triton_builtins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.patched.states import Record

    DeltaRule = Callable[[torch.Tensor, list[int], list[int], torch.Tensor], torch.Tensor]

fused_recurrent.exp = triton_builtins.exp  # there it is `exp = tl.exp`

SLOTS = 1 + REQUESTS * COLUMNS
HEADS, VALUE_HEADS, KEY, VALUE = 1, 2, 16, 16


def own_slots(request: int = VICTIM) -> list[int]:
    return states.slot_table()[request].tolist()


def other_slots(request: int = VICTIM) -> list[int]:
    return [0, *(slot for slot in range(1, SLOTS) if slot not in own_slots(request))]


# --- Gated DeltaNet and KDA -----------------------------------------------------------------------


def run_recurrent(
    cache: torch.Tensor, accepted: list[int], lengths: list[int], table: torch.Tensor
) -> torch.Tensor:
    tokens = sum(lengths)
    out, _ = fused_recurrent.fused_recurrent_gated_delta_rule(
        q=states.random(1, tokens, HEADS, KEY, seed=1),
        k=states.random(1, tokens, HEADS, KEY, seed=2),
        v=states.random(1, tokens, VALUE_HEADS, VALUE, seed=3),
        g=-states.random(1, tokens, VALUE_HEADS, seed=4).abs(),
        beta=states.random(1, tokens, VALUE_HEADS, seed=5).sigmoid(),
        initial_state=cache,
        cu_seqlens=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        ssm_state_indices=table,
        num_accepted_tokens=torch.tensor(accepted, dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )
    return out[0]


def run_sigmoid(
    cache: torch.Tensor, accepted: list[int], lengths: list[int], table: torch.Tensor
) -> torch.Tensor:
    tokens = sum(lengths)
    out, _ = fused_sigmoid_gating_delta_rule_update(
        A_log=states.random(VALUE_HEADS, seed=6),
        a=states.random(1, tokens, VALUE_HEADS, seed=4),
        b=states.random(1, tokens, VALUE_HEADS, seed=5),
        dt_bias=states.random(VALUE_HEADS, seed=7),
        q=states.random(1, tokens, HEADS, KEY, seed=1),
        k=states.random(1, tokens, HEADS, KEY, seed=2),
        v=states.random(1, tokens, VALUE_HEADS, VALUE, seed=3),
        initial_state=cache,
        cu_seqlens=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        ssm_state_indices=table,
        num_accepted_tokens=torch.tensor(accepted, dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )
    return out[0]


def run_kda(
    cache: torch.Tensor, accepted: list[int], lengths: list[int], table: torch.Tensor
) -> torch.Tensor:
    tokens = sum(lengths)
    out, _ = fused_recurrent_kda_fwd(
        q=states.random(1, tokens, VALUE_HEADS, KEY, seed=1),
        k=states.random(1, tokens, VALUE_HEADS, KEY, seed=2),
        v=states.random(1, tokens, VALUE_HEADS, VALUE, seed=3),
        g=-states.random(1, tokens, VALUE_HEADS, KEY, seed=4).abs(),
        beta=states.random(1, tokens, VALUE_HEADS, seed=5).sigmoid(),
        scale=KEY**-0.5,
        initial_state=cache,
        cu_seqlens=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        ssm_state_indices=table,
        num_accepted_tokens=torch.tensor(accepted, dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )
    return out[0]


DELTA_RULES = pytest.mark.parametrize(
    "run", [run_recurrent, run_sigmoid, run_kda], ids=["recurrent", "sigmoid", "kda"]
)


def delta_cache() -> torch.Tensor:
    return states.random(SLOTS, VALUE_HEADS, VALUE, KEY, seed=8)


@DELTA_RULES
@pytest.mark.parametrize("count", BAD_COUNTS)
def test_delta_rule_reads_no_other_request_by_a_stale_count(run: DeltaRule, count: int) -> None:
    def once(cache: torch.Tensor) -> Seen:
        # Only the victim has tokens, so that nobody else writes.
        out = run(cache, [1, count, 1], [0, 2, 0], states.slot_table())
        return Seen(out, cache)

    assert_isolated(once, delta_cache(), own_slots(), other_slots())


@DELTA_RULES
@pytest.mark.parametrize(("count", "column"), [(-2, 0), (0, 0), (COLUMNS + 1, COLUMNS - 1)])
def test_delta_rule_uses_the_nearest_own_column(run: DeltaRule, count: int, column: int) -> None:
    stale, right = delta_cache(), delta_cache()
    out = run(stale, [1, count, 1], [0, 2, 0], states.slot_table())
    expected = run(right, [1, column + 1, 1], [0, 2, 0], states.slot_table())
    assert torch.equal(out, expected)
    assert torch.equal(stale, right)


@DELTA_RULES
def test_delta_rule_writes_no_other_request_by_a_long_query(run: DeltaRule) -> None:
    def once(cache: torch.Tensor) -> Seen:
        out = run(cache, [1, 1, 1], [0, COLUMNS + 2, 0], states.slot_table())
        return Seen(out, cache)

    assert_isolated(once, delta_cache(), own_slots(), other_slots())


@DELTA_RULES
@pytest.mark.parametrize("slot", [0, -1])
def test_delta_rule_leaves_a_null_or_pad_slot_alone(run: DeltaRule, slot: int) -> None:
    cache = delta_cache()
    run(cache, [1, 1, 1], [0, 2, 0], torch.full((REQUESTS, COLUMNS), slot, dtype=torch.int32))
    assert torch.equal(cache, delta_cache())


@DELTA_RULES
@pytest.mark.parametrize("count", [1, 2, 3])
def test_delta_rule_is_unchanged_for_a_right_count(
    run: DeltaRule, count: int, record_property: Record
) -> None:
    cache = delta_cache()
    out = run(cache, [1, count, 2], [2, 3, 1], states.slot_table())
    record_property("sha256", states.digest(out, cache))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_recurrent_equals_the_delta_rule_in_torch(count: int) -> None:
    lengths, accepted = [2, 3, 1], [1, count, 2]
    cache, table = delta_cache(), states.slot_table()
    expected_cache, expected = delta_cache(), []
    tokens = sum(lengths)
    q, k = (states.random(tokens, HEADS, KEY, seed=seed) for seed in (1, 2))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    v = states.random(tokens, VALUE_HEADS, VALUE, seed=3)
    g = -states.random(tokens, VALUE_HEADS, seed=4).abs()
    beta = states.random(tokens, VALUE_HEADS, seed=5).sigmoid()
    at = 0
    for request, length in enumerate(lengths):
        state = delta_cache()[table[request, accepted[request] - 1]]
        for step in range(length):
            state = state * g[at].exp()[:, None, None]
            delta = (v[at] - (state * k[at]).sum(-1)) * beta[at][:, None]
            state = state + delta[:, :, None] * k[at][:, None, :]
            expected.append((state * q[at] * KEY**-0.5).sum(-1))
            expected_cache[table[request, step]] = state
            at += 1
    out = run_recurrent(cache, accepted, lengths, table)
    torch.testing.assert_close(out, torch.stack(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache, expected_cache, rtol=1e-5, atol=1e-5)


# --- causal_conv1d_update -------------------------------------------------------------------------

WIDTH, DIM = 4, 8
STATE_LEN = WIDTH - 1 + COLUMNS - 1
LINES = 5


def conv_cache() -> torch.Tensor:
    """Cache lines as vLLM lays them: (line, token, feature), seen as (line, feature, token)."""
    return states.random(LINES, STATE_LEN, DIM, seed=1)


def run_conv(
    cache: torch.Tensor, accepted: list[int], lengths: list[int], lines: list[int], seed: int = 2
) -> torch.Tensor:
    return causal_conv1d_update(
        states.random(sum(lengths), DIM, seed=seed),
        cache.transpose(1, 2),
        states.random(DIM, WIDTH, seed=3),
        states.random(DIM, seed=4),
        "silu",
        conv_state_indices=torch.tensor(lines, dtype=torch.int32),
        num_accepted_tokens=torch.tensor(accepted, dtype=torch.int32),
        query_start_loc=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        max_query_len=COLUMNS,
    )


@pytest.mark.parametrize("count", BAD_COUNTS)
def test_conv_reads_no_other_request_by_a_stale_count(count: int) -> None:
    def once(cache: torch.Tensor) -> Seen:
        return Seen(run_conv(cache, [count], [2], [2]), cache)

    assert_isolated(once, conv_cache(), [2], [0, 1, 3, 4])


@pytest.mark.parametrize(("count", "right"), [(-2, 1), (0, 1), (COLUMNS + 1, COLUMNS)])
def test_conv_uses_the_nearest_window(count: int, right: int) -> None:
    stale, fresh = conv_cache(), conv_cache()
    assert torch.equal(run_conv(stale, [count], [2], [2]), run_conv(fresh, [right], [2], [2]))
    assert torch.equal(stale, fresh)


def test_conv_writes_no_other_request_by_a_long_query() -> None:
    def once(cache: torch.Tensor) -> Seen:
        return Seen(run_conv(cache, [1], [COLUMNS + 2], [2]), cache)

    assert_isolated(once, conv_cache(), [2], [0, 1, 3, 4])


@pytest.mark.parametrize("line", [-1, LINES - 2])
def test_conv_leaves_a_pad_line_alone(line: int) -> None:
    """The cache is the middle of a larger buffer, so that a wrong line stays readable memory."""
    buffer = conv_cache()
    run_conv(buffer[1 : LINES - 1], [1], [2], [line])
    assert torch.equal(buffer, conv_cache())


def test_conv_equals_the_convolution_in_torch() -> None:
    accepted, lengths, lines = [1, 3, 2], [2, 3, 1], [3, 1, 4]
    cache, expected_cache, expected = conv_cache(), conv_cache(), []
    x = states.random(sum(lengths), DIM, seed=2)
    weight, bias = states.random(DIM, WIDTH, seed=3), states.random(DIM, seed=4)
    at = 0
    for count, length, line in zip(accepted, lengths, lines, strict=True):
        history = conv_cache()[line, count - 1 : count - 1 + WIDTH - 1]
        window = torch.cat([history, x[at : at + length]])
        expected += [
            (window[step : step + WIDTH] * weight.T).sum(0) + bias for step in range(length)
        ]
        expected_cache[line, : WIDTH - 2 + length] = window[1:]
        at += length
    out = run_conv(cache, accepted, lengths, lines)
    torch.testing.assert_close(out, torch.nn.functional.silu(torch.stack(expected)))
    assert torch.equal(cache, expected_cache)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_conv_is_unchanged_for_a_right_count(count: int, record_property: Record) -> None:
    cache = conv_cache()
    out = run_conv(cache, [1, count, 2], [2, 3, 1], [3, 1, 4])
    record_property("sha256", states.digest(out, cache))


# --- selective_state_update (Mamba-2) -------------------------------------------------------------

SSM_HEADS, SSM_DIM, SSM_STATE = 2, 8, 16


def ssm_cache() -> torch.Tensor:
    return states.random(SLOTS, SSM_HEADS, SSM_DIM, SSM_STATE, seed=1)


def run_ssm(
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: list[int] | None = None,
    accepted: list[int] | None = None,
    targets: torch.Tensor | None = None,
) -> torch.Tensor:
    tokens = sum(lengths) if lengths else table.shape[0]
    out = torch.zeros(tokens, SSM_HEADS, SSM_DIM)
    selective_state_update(
        cache,
        states.random(tokens, SSM_HEADS, SSM_DIM, seed=2),
        states.random(tokens, SSM_HEADS, SSM_DIM, seed=3).abs(),
        -states.random(SSM_HEADS, SSM_DIM, SSM_STATE, seed=4).abs(),
        states.random(tokens, 1, SSM_STATE, seed=5),
        states.random(tokens, 1, SSM_STATE, seed=6),
        states.random(SSM_HEADS, SSM_DIM, seed=7),
        states.random(SSM_HEADS, SSM_DIM, seed=9),
        dt_softplus=True,
        state_batch_indices=table,
        dst_state_batch_indices=targets,
        out=out,
        num_accepted_tokens=None if accepted is None else torch.tensor(accepted, dtype=torch.int32),
        cu_seqlens=None
        if lengths is None
        else torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
    )
    return out


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`selective_state_update` enters its tensor's device and asks for that device's tuning."""
    monkeypatch.setattr(torch.accelerator, "device_index", lambda _: nullcontext())
    with override_ssm_config((8, 1)):
        yield


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize("count", [COLUMNS + 1, COLUMNS + 3])
def test_ssm_reads_no_other_request_by_a_stale_count(count: int) -> None:
    def once(cache: torch.Tensor) -> Seen:
        return Seen(run_ssm(cache, states.slot_table(), [0, 2, 0], [1, count, 1]), cache)

    assert_isolated(once, ssm_cache(), own_slots(), other_slots())


@pytest.mark.usefixtures("no_accelerator")
def test_ssm_writes_no_other_request_by_a_long_query() -> None:
    def once(cache: torch.Tensor) -> Seen:
        return Seen(run_ssm(cache, states.slot_table(), [0, COLUMNS + 2, 0], [1, 1, 1]), cache)

    assert_isolated(once, ssm_cache(), own_slots(), other_slots())


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize("accepted", [[1], None], ids=["speculative", "plain"])
def test_ssm_leaves_a_pad_slot_alone(accepted: list[int] | None) -> None:
    """The cache is the tail of a larger buffer, so that slot -1 stays readable memory."""
    buffer = ssm_cache()
    pad = torch.full((1, 1), -1, dtype=torch.int32)
    run_ssm(buffer[1:], pad, None if accepted is None else [1], accepted)
    assert torch.equal(buffer, ssm_cache())


@pytest.mark.usefixtures("no_accelerator")
def test_ssm_leaves_a_pad_target_alone() -> None:
    buffer = ssm_cache()
    source = torch.full((1, 1), 2, dtype=torch.int32)
    run_ssm(buffer[1:], source, targets=torch.full((1, 1), -1, dtype=torch.int32))
    assert torch.equal(buffer, ssm_cache())


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_ssm_is_unchanged_for_a_right_count(count: int, record_property: Record) -> None:
    cache, plain = ssm_cache(), ssm_cache()
    out = run_ssm(cache, states.slot_table(), [2, 3, 1], [1, count, 2])
    plain_out = run_ssm(plain, states.slot_table()[:, :1])
    record_property("sha256", states.digest(out, cache, plain_out, plain))


# --- state copies between blocks (align mode) -----------------------------------------------------

BLOCK = 4
CONV_WIDTH = STATE_LEN
TABLE_COLUMNS = 6
BLOCKS = 1 + REQUESTS * TABLE_COLUMNS


def block_table() -> torch.Tensor:
    count = REQUESTS * TABLE_COLUMNS
    return torch.arange(1, 1 + count, dtype=torch.int32).view(REQUESTS, TABLE_COLUMNS)


class Copies:
    """The tree's own copy context over one layer with a convolution state and a temporal state."""

    def __init__(self, table: torch.Tensor, conv: torch.Tensor, temporal: torch.Tensor) -> None:
        self.table, self.conv, self.temporal = table, conv, temporal
        spec = MambaSpec(
            block_size=BLOCK,
            shapes=(tuple(conv.shape[1:]), tuple(temporal.shape[1:])),
            dtypes=(conv.dtype, temporal.dtype),
            mamba_cache_mode="align",
            num_speculative_blocks=COLUMNS - 1,
        )
        config = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        functions: Any = (get_conv_copy_spec, get_temporal_copy_spec)
        how: dict[str, Any] = {"num_state_types": len(functions)}
        if hasattr(mamba_utils, "validate_mamba_state_copy_funcs"):  # since v0.33.0
            functions = {spec.mamba_type: functions}
            how = {"copy_funcs": functions}
        self.context = mamba_utils.MambaSpecDecodeGPUContext.create(
            max_num_reqs=REQUESTS,
            kv_cache_config=config,
            device=torch.device("cpu"),
            make_buffer=lambda n, dtype: CpuGpuBuffer(
                n, dtype=dtype, device=torch.device("cpu"), pin_memory=False
            ),
            **how,
        )
        layer = SimpleNamespace(kv_cache=[conv, temporal])
        self.context.initialize_from_forward_context(config, {"layer": layer}, functions, [table])

    def precopy(self, source: list[int], target: list[int], bias: list[int]) -> None:
        self.context.run_fused_precopy(
            REQUESTS, _int(target), _int(source), _int(bias), torch.arange(REQUESTS)
        )

    def postprocess(self, accepted: list[int], column: list[int], computed: list[int]) -> None:
        self.context.run_fused_postprocess_align(
            REQUESTS, _int(accepted), _int(column), _int(computed), torch.arange(REQUESTS)
        )


def _int(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def copy_caches() -> tuple[torch.Tensor, torch.Tensor]:
    conv = states.random(BLOCKS, CONV_WIDTH, DIM, seed=1)
    return conv, states.random(BLOCKS, VALUE_HEADS, VALUE, KEY, seed=2)


def assert_copies_isolated(act: Callable[[Copies], None], columns: int = 4) -> None:
    """Assert that the victim's copy stays within the first `columns` blocks of its row.

    They are those that the request was given; what the row holds past them is left from before.
    """
    own = block_table()[VICTIM, :columns].tolist()
    others = [block for block in range(BLOCKS) if block not in own]
    results = []
    for mark in (0.0, 100.0):
        conv, temporal = copy_caches()
        conv[others] += mark
        temporal[others] += mark
        before = conv.clone(), temporal.clone()
        act(Copies(block_table(), conv, temporal))
        assert torch.equal(conv[others], before[0][others]), "another's conv state was written"
        assert torch.equal(temporal[others], before[1][others]), "another's state was written"
        results.append((conv[own], temporal[own]))
    assert torch.equal(results[0][0], results[1][0]), "the conv state shows another request's"
    assert torch.equal(results[0][1], results[1][1]), "the state shows another request's"


@pytest.mark.parametrize("bias", [-3, COLUMNS, COLUMNS + 2])
def test_precopy_reads_no_other_request_by_a_stale_bias(bias: int) -> None:
    """The victim moves from its column 1, with speculative columns 2 and 3, to its column 0."""
    assert_copies_isolated(lambda copies: copies.precopy([-1, 1, -1], [0, 0, 0], [0, bias, 0]))


@pytest.mark.parametrize("column", [-1, -2, TABLE_COLUMNS, TABLE_COLUMNS + 1])
def test_precopy_writes_no_block_of_a_column_out_of_the_row(column: int) -> None:
    assert_copies_isolated(lambda copies: copies.precopy([-1, 1, -1], [0, column, 0], [0, 0, 0]))


@pytest.mark.parametrize("column", [TABLE_COLUMNS, TABLE_COLUMNS + 2])
def test_precopy_reads_no_block_of_a_column_out_of_the_row(column: int) -> None:
    assert_copies_isolated(lambda copies: copies.precopy([-1, column, -1], [0, 0, 0], [0, 0, 0]))


def test_precopy_leaves_a_negative_block_alone() -> None:
    """The states are tails of larger buffers, so that block -1 stays readable memory."""
    table = block_table()
    table[VICTIM, 0] = -1
    conv, temporal = copy_caches()
    copies = Copies(table, conv[1:], temporal[1:])
    copies.precopy([-1, 1, -1], [0, 0, 0], [0, 0, 0])
    assert torch.equal(conv, copy_caches()[0])
    assert torch.equal(temporal, copy_caches()[1])


@pytest.mark.parametrize("accepted", [COLUMNS + 1, COLUMNS + 2])
def test_postprocess_reads_no_other_request_by_a_stale_count(accepted: int) -> None:
    """At 2 * BLOCK tokens, column 2 runs and its state at the boundary is kept in column 1."""
    computed = [BLOCK - 1, 2 * BLOCK, BLOCK - 1]
    assert_copies_isolated(
        lambda copies: copies.postprocess([1, accepted, 1], [0, 2, 0], computed), columns=5
    )


def test_copies_equal_the_copy_in_torch() -> None:
    conv, temporal = copy_caches()
    table = block_table()
    Copies(table, conv, temporal).precopy([1, 2, -1], [0, 3, 0], [2, 1, 0])
    expected_conv, expected_temporal = copy_caches()
    before_conv, before_temporal = copy_caches()
    for request, source, target, bias in ((0, 1, 0, 2), (1, 2, 3, 1)):
        row = table[request]
        expected_conv[row[target], : CONV_WIDTH - bias] = before_conv[row[source], bias:]
        expected_temporal[row[target]] = before_temporal[row[source + bias]]
    assert torch.equal(conv, expected_conv)
    assert torch.equal(temporal, expected_temporal)


def test_postprocess_equals_the_copy_in_torch() -> None:
    conv, temporal = copy_caches()
    table = block_table()
    computed = [BLOCK, 2 * BLOCK + 1, BLOCK - 1]
    Copies(table, conv, temporal).postprocess([1, 3, 1], [2, 2, 0], computed)
    expected_conv, expected_temporal = copy_caches()
    before_conv, before_temporal = copy_caches()
    for request, source, target, bias in ((0, 2, 0, 0), (1, 2, 1, 1)):
        row = table[request]
        expected_conv[row[target], : CONV_WIDTH - bias] = before_conv[row[source], bias:]
        expected_temporal[row[target]] = before_temporal[row[source + bias]]
    assert torch.equal(conv, expected_conv)
    assert torch.equal(temporal, expected_temporal)


# --- the accepted count's own source (model runner V2) --------------------------------------------


def store_sampled(sampled: int) -> list[int]:
    """Run the model state's own method; its object holds only what the method reads."""
    counts = torch.full((REQUESTS,), 7, dtype=torch.int32)
    state = SimpleNamespace(
        num_accepted_tokens_gpu=counts,
        vllm_config=SimpleNamespace(num_speculative_tokens=COLUMNS - 1),
        recoverssm=None,
        _align_mode=False,
        _mamba_ctx=None,
    )
    mamba_hybrid.MambaHybridModelState.postprocess_state(
        state, _int([2, -1, VICTIM]), _int([1, 1, sampled])
    )
    return counts.tolist()


@pytest.mark.parametrize("sampled", [COLUMNS + 1, COLUMNS + 4])
def test_accepted_counts_stay_within_the_columns(sampled: int) -> None:
    assert store_sampled(sampled) == [7, COLUMNS, 1]


@pytest.mark.parametrize(("sampled", "kept"), [(-1, 1), (0, 1), (1, 1), (COLUMNS, COLUMNS)])
def test_accepted_counts_are_unchanged_for_a_right_count(sampled: int, kept: int) -> None:
    assert store_sampled(sampled) == [7, kept, 1]
