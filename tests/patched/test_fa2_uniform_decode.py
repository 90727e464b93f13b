"""FlashInfer's fa2 decodes drafted tokens on SM90 and SM12x, and the host waits for no length.

The builder is the tree's own. The platform is said to be another, and FlashInfer is one that
records what it is asked (recording_flashinfer.py); kernels run under Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.patched import interpreter, recording_flashinfer

interpreter.enable()
recording_flashinfer.install()

from tests.patched.recording_flashinfer import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PAGE,
    Machine,
    Pool,
    batch,
)

if TYPE_CHECKING:
    from types import ModuleType

PLAN = "vllm.v1.attention.ops.flashinfer_fa2_plan"


def plan_module() -> ModuleType:
    assert importlib.util.find_spec(PLAN) is not None, "nothing plans from bounds"
    return importlib.import_module(PLAN)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    if importlib.util.find_spec(PLAN) is not None:
        monkeypatch.setattr(plan_module().torch, "Event", DoneAtOnce)
    return monkeypatch


class DoneAtOnce:
    """Stands in for an event of a stream, which a CPU does not have."""

    def record(self) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


FA2 = [
    pytest.param(Machine(120, kv_cache_dtype="nvfp4"), id="SM120 nvfp4"),
    pytest.param(Machine(121, kv_cache_dtype="nvfp4"), id="SM121 nvfp4"),
    pytest.param(Machine(120, kv_cache_dtype="fp8"), id="SM120 fp8"),
    pytest.param(Machine(120), id="SM120 bf16"),
    pytest.param(Machine(90, kv_cache_dtype="nvfp4"), id="SM90 nvfp4"),
    pytest.param(Machine(90), id="SM90 bf16"),
]
ASKED = [
    pytest.param(Machine(90, choice="fa2", kv_cache_dtype="fp8"), id="SM90 fp8"),
    pytest.param(Machine(90, xqa=True, choice="fa2"), id="SM90 bf16, XQA"),
    pytest.param(Machine(120, xqa=True, choice="fa2", kv_cache_dtype="nvfp4"), id="SM120, XQA"),
]


@pytest.mark.parametrize("machine", [*FA2, *ASKED])
def test_drafted_tokens_are_decodes(machine: Machine, patch: pytest.MonkeyPatch) -> None:
    builder = machine.builder(patch)
    assert builder.reorder_batch_threshold == 1 + machine.drafts
    assert builder.use_fa2_native_decode


@pytest.mark.parametrize("machine", [*FA2, *ASKED])
def test_full_graphs_hold_drafted_tokens(machine: Machine, patch: pytest.MonkeyPatch) -> None:
    backend = machine.enter(patch)
    support = backend.FlashInferMetadataBuilder.get_cudagraph_support(
        machine.config(), machine.spec()
    )
    assert support == backend.AttentionCGSupport.UNIFORM_BATCH


@pytest.mark.parametrize("machine", [*FA2, *ASKED])
def test_a_decode_of_drafted_tokens_is_planned_without_the_true_lengths(
    machine: Machine, patch: pytest.MonkeyPatch
) -> None:
    common, _ = batch([1000, 77], [1003, 80], 4)
    made = machine.builder(patch).build(0, common)
    assert (made.num_decodes, made.num_prefills) == (2, 0)
    (plan,) = made.decode.wrapper.plans
    assert made.decode.wrapper.options["backend"] == "fa2"
    assert plan["q_len_per_req"] == 4


def attention(builder: Any, true_lens: list[int], bounds: list[int], q_len: int) -> tuple[Any, Any]:
    """Return what the planned decode computes, and what is right."""
    common, table = batch(true_lens, bounds, q_len)
    wrapper = builder.build(0, common).decode.wrapper
    pool = Pool(table, true_lens, q_len)
    device = (
        builder.paged_kv_indptr.gpu,
        builder.paged_kv_indices,
        builder.paged_kv_last_page_len.gpu,
    )
    return pool.planned(wrapper.plans[-1], *device), pool.exact()


LENGTHS = {
    "all drafts accepted": ([1003, 80], [1003, 80]),
    "all drafts rejected": ([1000, 77], [1003, 80]),
    "a page less than the bound": ([1024, 64], [1027, 67]),
    "a chunk less than the bound": ([128, 256, 384], [130, 259, 390]),
    "one token past the prompt": ([4], [7]),
    "a padded request": ([500, 0], [503, 0]),
    "many short and one long": ([9, 12, 3000, 31], [12, 12, 3003, 34]),
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_the_plan_of_a_bound_gives_the_attention_of_the_true_lengths(
    lengths: tuple[list[int], list[int]], patch: pytest.MonkeyPatch
) -> None:
    builder = Machine(kv_cache_dtype="nvfp4").builder(patch)
    found, right = attention(builder, *lengths, 4)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_the_stand_in_shows_a_chunk_that_the_bound_alone_has(patch: pytest.MonkeyPatch) -> None:
    builder = Machine(kv_cache_dtype="nvfp4").builder(patch)
    patch.setitem(builder.build.__func__.__globals__, "choose_kv_split", lambda *_: 8)
    found, right = attention(builder, [384, 500], [387, 503], 4)
    assert not torch.allclose(found, right, rtol=1e-2, atol=1e-2, equal_nan=False)


def test_random_batches_are_right(patch: pytest.MonkeyPatch) -> None:
    builder = Machine(kv_cache_dtype="nvfp4").builder(patch)
    chance = random.Random(3)  # noqa: S311
    for _ in range(25):
        bounds = [chance.choice([5, 40, 130, 700, 2000]) + chance.randrange(20) for _ in range(3)]
        true_lens = [max(bound - chance.randrange(7), 4) for bound in bounds]
        found, right = attention(builder, true_lens, bounds, 4)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_draft_steps_of_one_token_are_planned_without_the_true_lengths(
    patch: pytest.MonkeyPatch,
) -> None:
    builder = Machine(kv_cache_dtype="nvfp4").builder(patch)
    found, right = attention(builder, [258, 61], [264, 66], 1)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_a_mixed_batch_still_decodes_its_drafted_tokens(patch: pytest.MonkeyPatch) -> None:
    builder = Machine(kv_cache_dtype="nvfp4").builder(patch)
    common, _ = batch([100, 300], [100, 300], 4, free=True)
    common.query_start_loc_cpu = torch.tensor([0, 4, 104], dtype=torch.int32)
    common.query_start_loc = common.query_start_loc_cpu.clone()
    common.num_actual_tokens, common.max_query_len = 104, 100
    common.is_prefilling = torch.tensor([False, True])
    made = builder.build(0, common)
    assert (made.num_decodes, made.num_decode_tokens, made.num_prefills) == (1, 4, 1)
    assert made.decode.wrapper.plans[0]["q_len_per_req"] == 4


BOUNDS = tuple(([length - slack], [length]) for length in range(1, 700) for slack in (0, 3, 6))


def test_every_length_within_the_bounds_has_the_same_number_of_chunks() -> None:
    plan = plan_module()
    np = plan.np
    for low, high in BOUNDS:
        pages = plan.choose_kv_split(np.array(low), np.array(high), PAGE, 24)
        assert pages is not None
        if pages == -1:
            assert high[0] <= 128
            continue
        counts = {-(-max(n, 1) // (pages * PAGE)) for n in range(low[0], high[0] + 1)}
        assert len(counts) == 1
        assert counts.pop() > 1


def test_no_plan_has_more_tiles_than_fit() -> None:
    plan = plan_module()
    np = plan.np
    chance = random.Random(5)  # noqa: S311
    refused = 0
    for _ in range(300):
        high = np.array([chance.randrange(1, 5000) for _ in range(chance.randrange(1, 24))])
        pages = plan.choose_kv_split(high - 6, high, PAGE, 24)
        if pages is None:
            refused += 1
        elif pages > 0:
            assert int((-(-high // (pages * PAGE))).sum()) <= 24
    assert refused < 60


def test_where_no_chunk_fits_the_true_lengths_are_read(patch: pytest.MonkeyPatch) -> None:
    plan = plan_module()
    np = plan.np
    many = np.full(24, 2000)
    assert plan.choose_kv_split(many - 6, many, PAGE, 24) is None
    builder = Machine(kv_cache_dtype="nvfp4", max_seqs=32).builder(patch)
    common, _ = batch([2000] * 24, [2003] * 24, 4, free=True)
    made = builder.build(0, common)
    assert made.decode.wrapper.plans[0]["indptr"][-1] == 24 * 125


def test_a_staging_buffer_is_not_written_before_its_copy_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_module()
    pending: list[Pending] = []

    class Pending(DoneAtOnce):
        """An event that has not come until somebody waits for it."""

        done = False

        def __init__(self) -> None:
            pending.append(self)

        def query(self) -> bool:
            return self.done

        def synchronize(self) -> None:
            self.done = True

    monkeypatch.setattr(plan.torch, "Event", Pending)
    staging, wrapper = plan.PlanStaging(3), recording_flashinfer.Wrapper()
    own = wrapper._pin_memory_int_workspace_buffer
    used = []
    for _ in range(4):
        with staging.lend(wrapper):
            used.append(wrapper._pin_memory_int_workspace_buffer.data_ptr())
        assert wrapper._pin_memory_int_workspace_buffer is own
    assert len(set(used[:3])) == 3, "a buffer was written while its copy was pending"
    assert used[3] == used[0]
    assert pending[0].done, "the fourth plan must wait for the first copy"
    pending[1].done = True
    with staging.lend(wrapper):
        assert wrapper._pin_memory_int_workspace_buffer.data_ptr() == used[1]


def test_xqa_serves_where_it_can(patch: pytest.MonkeyPatch) -> None:
    builder = Machine(120, xqa=True, kv_cache_dtype="nvfp4").builder(patch)
    assert builder.use_xqa
    assert not getattr(builder, "use_fa2_native_decode", False)


def test_fa3_keeps_one_token_to_a_request(patch: pytest.MonkeyPatch) -> None:
    machine = Machine(90, kv_cache_dtype="fp8")
    builder = machine.builder(patch)
    assert builder.reorder_batch_threshold == 1
    assert not builder.use_fa2_native_decode


def test_asking_for_xqa_where_it_cannot_serve_is_an_error(patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"flashinfer_decode_kernel=xqa.*head_dim=32"):
        Machine(120, choice="xqa").builder(patch)


def test_asking_for_xqa_where_it_serves_gives_it(patch: pytest.MonkeyPatch) -> None:
    assert Machine(120, xqa=True, choice="xqa").builder(patch).use_xqa


@pytest.mark.parametrize("choice", ["xqa", "fa2"])
def test_a_choice_on_another_device_is_an_error(choice: str, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="SM90 and SM12x"):
        Machine(80, choice=choice).builder(patch)


def test_an_unknown_kernel_is_refused_and_a_choice_changes_the_hash() -> None:
    from pydantic import ValidationError
    from vllm.config import AttentionConfig

    with pytest.raises((ValidationError, TypeError)) as refused:
        AttentionConfig(flashinfer_decode_kernel="fa3")
    assert "literal_error" in str(refused.value)
    hashes = {
        AttentionConfig(flashinfer_decode_kernel=choice).compute_hash()
        for choice in ("auto", "xqa", "fa2")
    }
    assert len(hashes) == 3


def test_fa2_gets_no_fp8_query(patch: pytest.MonkeyPatch) -> None:
    machine = Machine(90, choice="fa2", kv_cache_dtype="fp8", force_trtllm=False)
    builder = machine.builder(patch)
    assert builder.q_data_type_prefill == torch.float8_e4m3fn, (
        "the queries of prefills are FP8 here"
    )
    assert builder.q_data_type_decode == torch.bfloat16


def query_scale(dtype: torch.dtype, patch: pytest.MonkeyPatch) -> float:
    """Return by what fa2 is told to multiply a query of a layer whose FP8 scale is 4."""
    backend = Machine(kv_cache_dtype="fp8").enter(patch)
    wrapper = recording_flashinfer.Wrapper()
    wrapper._window_left, wrapper._logits_soft_cap, wrapper._sm_scale = -1, 0.0, 0.5
    layer = SimpleNamespace(
        _q_scale=torch.tensor(4.0), _q_scale_float=4.0, _k_scale_float=1.0, _v_scale_float=1.0
    )
    impl = object.__new__(backend.FlashInferImpl)
    impl.__dict__.update(
        bmm1_scale=1.0, bmm2_scale=1.0, scale=0.5, window_left=-1, logits_soft_cap=None, sinks=None,
        is_kvcache_nvfp4=False, nvfp4_fa2=False, nvfp4_trtllm=False, kv_cache_dtype="fp8",
        head_size=HEAD_DIM, num_kv_heads=KV_HEADS, dcp_world_size=1, o_sf_scale=None,
    )  # fmt: skip
    metadata = SimpleNamespace(
        prefill=None, decode=backend.FIDecode(wrapper), num_actual_tokens=4, num_prefills=0,
        num_prefill_tokens=0, num_decodes=1, num_decode_tokens=4, q_data_type_decode=dtype,
        q_data_type_prefill=dtype,
        kv_cache_layout=SimpleNamespace(layer_view_order=(0, 1, 2, 3)),
    )  # fmt: skip
    rows = torch.zeros(4, HEADS, HEAD_DIM)
    pages = torch.zeros(2, KV_HEADS, PAGE, 2 * HEAD_DIM, dtype=torch.uint8)
    impl.forward(layer, rows.to(dtype), None, None, pages, metadata, rows.bfloat16())
    (run,) = wrapper.runs
    return float(run["q_scale"])


def test_a_query_that_is_not_fp8_is_not_scaled_back(patch: pytest.MonkeyPatch) -> None:
    assert query_scale(torch.bfloat16, patch) == 1.0


def test_an_fp8_query_is_scaled_back(patch: pytest.MonkeyPatch) -> None:
    assert query_scale(torch.float8_e4m3fn, patch) == 4.0


def test_dcp_keeps_one_token_to_a_request(patch: pytest.MonkeyPatch) -> None:
    assert Machine(120, dcp=2).builder(patch).reorder_batch_threshold == 1


def test_fa2_holds_no_graph_of_drafts_that_are_not_causal(patch: pytest.MonkeyPatch) -> None:
    machine = Machine(120, choice="fa2", non_causal=True, xqa=True)
    backend = machine.enter(patch)
    support = backend.FlashInferMetadataBuilder.get_cudagraph_support(
        machine.config(), machine.spec()
    )
    assert support == backend.AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
