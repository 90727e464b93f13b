# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Planning FlashInfer's fa2 decode from bounds of the sequence lengths.

With speculative decoding only the GPU knows how many drafts were accepted. The
planner wants lengths on the host, the kernel reads its own from device arrays.
So the plan is made for an upper bound and the arrays are written on the GPU.

One thing ties the two together. The kernel lays partial outputs out by the
number of KV chunks that it computes from the true length, and the merge reads
them by the number that the host computed from the bound. The chunk must
therefore be one for which every possible length has the same number of chunks.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from vllm.triton_utils import tl, triton

# FlashInfer plans two blocks for each SM and never fewer tokens to a chunk.
_BLOCKS_PER_SM = 2
_MIN_CHUNK_TOKENS = 128
_MAX_TILE_ROWS = 64
# A chunk that does not fit is rare; many in a row cost more than a wait.
_MAX_TRIES = 64


def is_one_query_tile(query_rows: int, head_dim: int) -> bool:
    """Whether fa2 takes a request's query rows (times group size) as one tile."""
    return query_rows <= _MAX_TILE_ROWS and head_dim <= 256


def max_tiles(num_sms: int, num_kv_heads: int) -> int:
    """Tiles that a plan with KV splits may have."""
    return _BLOCKS_PER_SM * num_sms // num_kv_heads


def choose_kv_split(
    min_lens: np.ndarray, max_lens: np.ndarray, page_size: int, max_tiles: int
) -> int | None:
    """Return the pages of a KV chunk that fit every length within the bounds.

    Args:
        min_lens: the shortest each request can be, in tokens, shape [num_reqs].
        max_lens: the longest each request can be.
        page_size: tokens of a page.
        max_tiles: tiles that the plan may have, one query tile to a request.

    Returns:
        -1 if FlashInfer's own choice is right whatever it is, since no request
        can have more than one chunk; None if no such chunk was found, and the
        true lengths are needed.
    """
    min_lens, max_lens = np.maximum(min_lens, 1), np.maximum(max_lens, 1)
    longest = int(max_lens.max())
    floor = max(_MIN_CHUNK_TOKENS // page_size, 1)
    if longest <= floor * page_size:
        return -1

    def chunks(lens: np.ndarray, pages: int) -> np.ndarray:
        return -(-lens // (pages * page_size))

    def fits(pages: int) -> bool:
        return bool((chunks(min_lens, pages) == chunks(max_lens, pages)).all())

    # At least one request must be split: only then does the plan of a fixed
    # chunk have the form that a CUDA graph was captured with.
    last = -(-longest // page_size) - 1
    first, end = floor, last + 1
    while first < end:
        middle = (first + end) // 2
        if int(chunks(max_lens, middle).sum()) > max_tiles:
            first = middle + 1
        else:
            end = middle
    larger = range(first, last + 1)
    smaller = range(min(first, last + 1) - 1, 0, -1)
    for pages in itertools.islice(itertools.chain(larger, smaller), _MAX_TRIES):
        if int(chunks(max_lens, pages).sum()) <= max_tiles and fits(pages):
            return pages
    return None


class PlanStaging:
    """Pinned host buffers that plans are copied from, each used when it is free.

    plan() writes a pinned buffer and copies it to the GPU without waiting. Its
    next call may come before that copy was made, if nothing in between waited
    for the GPU, so it gets another buffer then.
    """

    def __init__(self, max_buffers: int):
        self._max_buffers = max_buffers
        self._free_at: deque[tuple[torch.Tensor, torch.Event]] = deque()

    def _take(self, like: torch.Tensor) -> torch.Tensor:
        if self._free_at:
            buffer, copied = self._free_at[0]
            if copied.query() or len(self._free_at) >= self._max_buffers:
                copied.synchronize()
                self._free_at.popleft()
                return buffer
        return torch.empty_like(like, pin_memory=like.is_pinned())

    @contextmanager
    def lend(self, wrapper) -> Iterator[None]:
        """Let `wrapper` plan in a buffer whose last copy has been made."""
        own = wrapper._pin_memory_int_workspace_buffer
        buffer = self._take(own)
        wrapper._pin_memory_int_workspace_buffer = buffer
        try:
            yield
        finally:
            wrapper._pin_memory_int_workspace_buffer = own
            copied = torch.Event()
            copied.record()
            self._free_at.append((buffer, copied))


@triton.jit
def _page_table_kernel(
    indptr_ptr,
    indices_ptr,
    last_page_len_ptr,
    seq_lens_ptr,
    block_table_ptr,
    block_table_stride,
    PAGE_SIZE: tl.constexpr,
    REQS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    req = tl.program_id(0)
    offsets = tl.arange(0, REQS)
    before = tl.load(seq_lens_ptr + offsets, mask=offsets < req, other=0)
    start = tl.sum((before + PAGE_SIZE - 1) // PAGE_SIZE, axis=0)
    seq_len = tl.load(seq_lens_ptr + req)
    num_pages = (seq_len + PAGE_SIZE - 1) // PAGE_SIZE
    tl.store(indptr_ptr + req + 1, start + num_pages)
    tl.store(indptr_ptr, 0, mask=req == 0)
    last = tl.where(seq_len > 0, seq_len - (num_pages - 1) * PAGE_SIZE, 0)
    tl.store(last_page_len_ptr + req, last)

    row_ptr = block_table_ptr + req.to(tl.int64) * block_table_stride
    columns = tl.arange(0, BLOCK)
    for first in tl.range(0, num_pages, BLOCK):
        mask = first + columns < num_pages
        pages = tl.load(row_ptr + first + columns, mask=mask)
        tl.store(indices_ptr + start + first + columns, pages, mask=mask)


def write_page_table(
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
) -> None:
    """Write FlashInfer's page table from lengths that only the GPU knows.

    Args:
        indptr: int32 [num_reqs + 1], written.
        indices: int32 [max_pages], written.
        last_page_len: int32 [num_reqs], written; 0 for a request of no tokens.
        seq_lens: int32 [num_reqs].
        block_table: int32 [num_reqs, max_pages_per_req].
        page_size: tokens of a page.
    """
    num_reqs = seq_lens.shape[0]
    _page_table_kernel[(num_reqs,)](
        indptr,
        indices,
        last_page_len,
        seq_lens,
        block_table,
        block_table.stride(0),
        PAGE_SIZE=page_size,
        REQS=triton.next_power_of_2(num_reqs),
        BLOCK=1024,
    )
