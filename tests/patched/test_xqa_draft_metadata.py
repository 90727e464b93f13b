"""XQA keeps one build of its metadata through all fused draft steps.

The builder is the tree's own; the platform is said to be SM120, and FlashInfer is one that records
(recording_flashinfer.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.patched import recording_flashinfer

recording_flashinfer.install()

from tests.patched.recording_flashinfer import Machine, batch

if TYPE_CHECKING:
    import pytest

XQA = Machine(120, xqa=True, kv_cache_dtype="nvfp4")


def test_xqa_may_stay_through_fused_draft_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = XQA.builder(monkeypatch)
    assert builder.use_xqa
    assert builder.supports_draft_decode_metadata_update


def test_one_build_sees_the_lengths_that_a_later_step_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = XQA.builder(monkeypatch)
    common, table = batch([40, 90], [46, 96], 1)
    lens = common.seq_lens.as_subclass(torch.Tensor)
    built = builder.build(0, common)
    assert builder.supports_draft_decode_metadata_update, "it is built anew for every step"
    for step in range(1, 4):
        lens += 1
        builder.update_draft_decode_metadata(built)
        held = built.decode.seq_lens.as_subclass(torch.Tensor)
        assert held.tolist() == [40 + step, 90 + step]
        assert held.data_ptr() == lens.data_ptr()
        assert built.decode.block_tables.data_ptr() == table.data_ptr()
        assert built.decode.mask is None
        assert built.decode.q_len_per_req == 1


def test_what_is_planned_on_the_host_is_built_for_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = Machine(120, kv_cache_dtype="nvfp4").builder(monkeypatch)
    assert not builder.supports_draft_decode_metadata_update
