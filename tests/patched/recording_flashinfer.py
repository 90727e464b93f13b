"""The tree's FlashInfer backend on a CPU, over a FlashInfer that only records what it is asked.

FlashInfer's kernels and its planner are CUDA. What stands in for them here keeps the arguments of
each plan; the builder, its choices and its arrays are the tree's own. `attend` then computes what
the real kernel and merge would from those arrays, by the rules of FlashInfer 0.7.2's
include/flashinfer/attention/{scheduler,prefill}.cuh.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

NUM_SMS = 24
HEADS, KV_HEADS, HEAD_DIM, PAGE = 12, 2, 32, 16


class Wrapper:
    """Records plans and runs."""

    def __init__(self, *_: Any, **options: Any) -> None:
        self.options = options
        self.is_cuda_graph_enabled = bool(options.get("use_cuda_graph"))
        self.plans: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        self._pin_memory_int_workspace_buffer = torch.zeros(4, dtype=torch.uint8)

    def plan(self, **arguments: Any) -> None:
        held = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        self.plans.append(held)

    def run(self, query: torch.Tensor, _: Any, **arguments: Any) -> None:
        self.runs.append({"query": query, **arguments})


def fast_decode_plan(wrapper: Wrapper, **arguments: Any) -> None:
    wrapper.plan(**arguments)


def get_seq_lens(indptr: torch.Tensor, last: torch.Tensor, page_size: int) -> torch.Tensor:
    return torch.clamp(indptr[1:] - indptr[:-1] - 1, min=0) * page_size + last


def install() -> None:
    """Put the recording FlashInfer where vLLM's backend imports it from."""
    names: dict[str, dict[str, Any]] = {
        "flashinfer": {
            "BatchAttentionWithAttentionSinkWrapper": Wrapper,
            "BatchDecodeWithPagedKVCacheWrapper": Wrapper,
            "BatchPrefillWithPagedKVCacheWrapper": Wrapper,
            "BatchPrefillWithRaggedKVCacheWrapper": Wrapper,
            "get_seq_lens": get_seq_lens,
            "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping": None,
        },
        "flashinfer.decode": {
            "fast_decode_plan": fast_decode_plan,
            "trtllm_batch_decode_with_kv_cache": None,
        },
        "flashinfer.prefill": {"trtllm_batch_context_with_kv_cache": None},
        "flashinfer.utils": {
            "FP4Tensor": None,
            "get_device_sm_count": lambda _: NUM_SMS,
            "get_trtllm_gen_multi_ctas_kv_counter_bytes": lambda *_: 4,
        },
    }
    for name, attributes in names.items():
        module = ModuleType(name)
        module.__dict__.update(attributes, __spec__=SimpleNamespace(name=name))
        sys.modules[name] = module


@dataclass
class Machine:
    """The machine and the settings that the builder is asked to work for."""

    capability: int = 120
    xqa: bool = False
    kv_cache_dtype: str = "auto"
    choice: str = "auto"
    drafts: int = 3
    graphs: bool = True
    max_seqs: int = 8
    max_model_len: int = 65536
    head_dim: int = HEAD_DIM
    dcp: int = 1
    non_causal: bool = False
    concurrent_batches: int = 2
    force_trtllm: bool | None = None
    log: list[str] = field(default_factory=list)

    @property
    def quantised(self) -> bool:
        return self.kv_cache_dtype != "auto"

    def config(self) -> Any:
        from vllm.config import AttentionConfig, CUDAGraphMode

        attention = AttentionConfig()
        if self.choice != "auto":
            assert hasattr(attention, "flashinfer_decode_kernel"), "there is no choice of kernel"
            attention = AttentionConfig(flashinfer_decode_kernel=self.choice)
        attention.use_non_causal = self.non_causal
        speculative = SimpleNamespace(
            num_speculative_tokens=self.drafts,
            enable_adaptive_verification=False,
            parallel_drafting=False,
            method="mtp",
        )
        mode = CUDAGraphMode.FULL_AND_PIECEWISE if self.graphs else CUDAGraphMode.NONE
        return SimpleNamespace(
            cache_config=SimpleNamespace(
                cache_dtype=self.kv_cache_dtype, get_resolved_kv_cache_layout=lambda: None
            ),
            model_config=SimpleNamespace(
                dtype=torch.bfloat16,
                max_model_len=self.max_model_len,
                get_num_attention_heads=lambda _: HEADS,
                get_num_kv_heads=lambda _: KV_HEADS,
            ),
            attention_config=attention,
            num_speculative_tokens=self.drafts,
            max_concurrent_batches=self.concurrent_batches,
            speculative_config=speculative if self.drafts else None,
            compilation_config=SimpleNamespace(cudagraph_mode=mode, max_cudagraph_capture_size=256),
            scheduler_config=SimpleNamespace(
                max_num_batched_tokens=2048, max_num_seqs=self.max_seqs
            ),
            parallel_config=SimpleNamespace(
                decode_context_parallel_size=self.dcp,
                cp_kv_cache_interleave_size=1,
                dcp_comm_backend="ag",
            ),
        )

    def spec(self) -> Any:
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode

        modes = {"auto": "NONE", "fp8": "FP8_PER_TENSOR", "nvfp4": "NVFP4"}
        return FullAttentionSpec(
            block_size=PAGE,
            num_kv_heads=KV_HEADS,
            head_size=self.head_dim,
            dtype=torch.uint8 if self.quantised else torch.bfloat16,
            kv_quant_mode=KVQuantMode[modes[self.kv_cache_dtype]],
        )

    def enter(self, patch: pytest.MonkeyPatch) -> Any:
        """Answer the backend's questions about the platform as this machine; return its module."""
        from vllm.utils import flashinfer as questions
        from vllm.v1 import utils as v1_utils
        from vllm.v1.attention.backends import flashinfer as backend

        family = self.capability // 10
        platform = SimpleNamespace(
            fp8_dtype=lambda: torch.float8_e4m3fn,
            has_device_capability=lambda c: self.capability >= c,
            is_device_capability=lambda c: self.capability == c,
            is_device_capability_family=lambda c: c // 10 == family,
            get_device_capability=lambda: SimpleNamespace(major=family, minor=self.capability % 10),
        )
        for module in (backend, questions):
            patch.setattr(module, "current_platform", platform)
        questions.supports_trtllm_attention.cache_clear()
        patch.setattr(questions, "has_nvidia_artifactory", lambda: self.xqa)
        if not self.xqa:
            # Nothing else may bring XQA: these tests are about what serves without it.
            patch.setattr(backend, "can_use_trtllm_attention", lambda *_, **__: False)
            patch.setattr(backend, "supports_trtllm_attention", lambda *_, **__: False)
        else:
            patch.setattr(backend, "can_use_trtllm_attention", lambda *_, **__: True)
        for module in (backend, questions):
            patch.setattr(module, "force_use_trtllm_attention", lambda: self.force_trtllm)
        patch.setattr(backend, "get_num_attention_heads_from_layers", lambda *_: HEADS)
        patch.setattr(backend, "get_per_layer_parameters", lambda *_: {})
        patch.setattr(
            backend,
            "infer_global_hyperparameters",
            lambda _: SimpleNamespace(
                sm_scale=1 / math.sqrt(self.head_dim), window_left=-1, logits_soft_cap=None,
                has_sinks=False, has_same_window_lefts=True, has_same_all_params=True,
            ),
        )  # fmt: skip
        patch.setattr(backend, "get_dcp_world_size_and_rank", lambda _: (self.dcp, 0))
        patch.setattr(backend, "get_flashinfer_layout_string", lambda _: "HND")
        patch.setattr(backend, "use_trtllm_attention", lambda *_, **__: False)
        for module in (backend, v1_utils):
            patch.setattr(module, "PIN_MEMORY", False)
        patch.setattr(backend, "pin_host_range_buf", lambda _: None)
        for name in ("info_once", "warning_once"):
            patch.setattr(backend.logger, name, self._hear)
        return backend

    def _hear(self, message: str, *values: Any, **_: Any) -> None:
        self.log.append(message % values)

    def builder(self, patch: pytest.MonkeyPatch) -> Any:
        backend = self.enter(patch)
        builder = backend.FlashInferMetadataBuilder(
            self.spec(), ["layer"], self.config(), torch.device("cpu")
        )
        builder._workspace_buffer = torch.zeros(4, dtype=torch.uint8)
        return builder


class OnTheGpu(torch.Tensor):  # type: ignore[misc]
    """A tensor that the host may not read: a step that does would wait for the GPU."""

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        pytest.fail("the host waited for lengths that only the GPU knows")

    tolist = item = numpy = cpu


def batch(
    true_lens: list[int], bounds: list[int] | None, q_len: int, *, free: bool = False
) -> tuple[Any, torch.Tensor]:
    """Return the metadata of a pure decode, and its block table.

    Args:
        true_lens: each request's length in tokens, the query included; the GPU knows it.
        bounds: what the host knows of it.
        q_len: query tokens of each request.
        free: let the host read the true lengths.
    """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    requests = len(true_lens)
    columns = max(-(-max([*true_lens, *(bounds or [])]) // PAGE), 1) + 1
    table = torch.randperm(requests * columns).to(torch.int32).view(requests, columns)
    lens = torch.tensor(true_lens, dtype=torch.int32)
    starts = torch.arange(requests + 1, dtype=torch.int32) * q_len
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=lens if free else lens.as_subclass(OnTheGpu),
        num_reqs=requests,
        num_actual_tokens=requests * q_len,
        max_query_len=q_len,
        max_seq_len=max(bounds or true_lens),
        block_table_tensor=table,
        slot_mapping=torch.zeros(requests * q_len, dtype=torch.int64),
        causal=True,
        seq_lens_cpu_upper_bound=(
            None if bounds is None else torch.tensor(bounds, dtype=torch.int32)
        ),
        is_prefilling=torch.zeros(requests, dtype=torch.bool),
    )
    return common, table


@dataclass
class Pool:
    """A paged KV cache in float32, and the queries of a decode over it.

    Attributes:
        table: each request's pages, [requests, columns].
        true_lens: each request's length, its query tokens included.
        q_len: query tokens of each request.
    """

    table: torch.Tensor
    true_lens: list[int]
    q_len: int

    def __post_init__(self) -> None:
        make = torch.Generator().manual_seed(7)
        size = (int(self.table.max()) + 1, PAGE, KV_HEADS, HEAD_DIM)
        self.keys = torch.randn(size, generator=make)
        self.values = torch.randn(size, generator=make)
        rows = len(self.true_lens) * self.q_len
        self.queries = torch.randn(rows, HEADS, HEAD_DIM, generator=make)

    def scores(
        self, request: int, pages: torch.Tensor, first: int, end: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return causal scores over the keys `first` to `end`, [q, heads, keys], and values."""
        group = HEADS // KV_HEADS
        rows = self.queries[request * self.q_len : (request + 1) * self.q_len]
        keys, values = (
            x[pages.long()].flatten(0, 1)[first:end].repeat_interleave(group, 1)
            for x in (self.keys, self.values)
        )
        scores = torch.einsum("qhd,khd->qhk", rows, keys) / math.sqrt(HEAD_DIM)
        position = torch.arange(first, end)[None, None, :]
        last = length - self.q_len + torch.arange(self.q_len)[:, None, None]
        return scores.masked_fill(position > last, -math.inf), values

    def exact(self) -> torch.Tensor:
        """Return plain causal attention, [rows, heads, head size]; zero for no tokens."""
        outputs = []
        for request, length in enumerate(self.true_lens):
            if length == 0:
                outputs.append(torch.zeros(self.q_len, HEADS, HEAD_DIM))
                continue
            pages = self.table[request, : -(-length // PAGE)]
            scores, values = self.scores(request, pages, 0, length, length)
            outputs.append(torch.einsum("qhk,khd->qhd", scores.softmax(-1), values))
        return torch.cat(outputs)

    def planned(
        self,
        plan: dict[str, Any],
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
    ) -> torch.Tensor:
        """Return what fa2 and its merge compute, [rows, heads, head size].

        The host's plan says how many chunks each request has and where the merge looks for them;
        the kernel counts chunks, and lays partial outputs out, by the device's arrays.

        Args:
            plan: the arguments of the plan.
            indptr, indices, last_page_len: the device's arrays when the kernel runs.
        """
        requests, q_len = len(self.true_lens), self.q_len
        planned = (plan["indptr"][1:] - plan["indptr"][:-1]).clamp(min=1)
        chunk_pages = plan["fixed_split_size"]
        if chunk_pages < 0:
            chunk_pages = _own_choice(planned.tolist())
        chunks = (-(-planned // chunk_pages)).tolist()
        assert sum(chunks) <= 2 * NUM_SMS // KV_HEADS or max(chunks) == 1, "too many tiles"
        if plan["fixed_split_size"] > 0:
            assert max(chunks) > 1, "a plan of one chunk has not the form of the captured graph"
        starts = [q_len * sum(chunks[:r]) for r in range(requests + 1)]
        partial = torch.full((starts[-1], HEADS, HEAD_DIM), math.nan)
        weight = torch.full((starts[-1], HEADS), math.nan)
        for request in range(requests):
            pages = indices[int(indptr[request]) : int(indptr[request + 1])]
            length = max(len(pages) - 1, 0) * PAGE + int(last_page_len[request])
            own = -(-max(length, 1) // (chunk_pages * PAGE))
            for tile in range(chunks[request]):
                first = min(tile * chunk_pages * PAGE, length)
                end = min(first + chunk_pages * PAGE, length)
                rows = [starts[request] + q * own + tile for q in range(q_len)]
                if first == end:
                    partial[rows], weight[rows] = 0.0, -math.inf
                    continue
                scores, values = self.scores(request, pages, first, end, length)
                weight[rows] = scores.logsumexp(-1)
                shares = (scores - weight[rows].unsqueeze(-1)).exp().nan_to_num()
                partial[rows] = torch.einsum("qhk,khd->qhd", shares, values)
        outputs = []
        for request in range(requests):
            for q in range(q_len):
                first = starts[request] + q * chunks[request]
                parts = slice(first, first + chunks[request])
                if bool((weight[parts] == -math.inf).all()):
                    outputs.append(torch.zeros(HEADS, HEAD_DIM))
                    continue
                share = weight[parts].softmax(0).unsqueeze(-1)
                outputs.append((share * partial[parts]).sum(0))
        return torch.stack(outputs)


def _own_choice(pages: list[int]) -> int:
    """Return the chunk that FlashInfer's planner chooses by itself, in pages."""
    low, high = max(128 // PAGE, 1), max(pages)
    while low < high:
        middle = (low + high) // 2
        if sum(-(-n // middle) for n in pages) > 2 * NUM_SMS // KV_HEADS:
            low = middle + 1
        else:
            high = middle
    return low
