"""The tables of docs/nvfp4-kv.md are those of the recorded data and of the formula."""

from __future__ import annotations

import pytest

from bench.nvfp4_kv import report
from tests.support.serving import ROOT

PAGE = (ROOT / "docs/nvfp4-kv.md").read_text()


@pytest.mark.parametrize("table", [report.steps, report.errors, report.tokens])
def test_a_table_is_that_of_its_data(table: object) -> None:
    assert callable(table)
    assert table() in PAGE


def test_a_patched_step_waits_for_no_stream_and_takes_at_most_half_the_time() -> None:
    import json  # noqa: PLC0415

    found = json.loads((report.DATA / "h200-decode-step.json").read_text())
    for old, new in zip(found["stock-graphs"], found["patched-graphs"], strict=True):
        assert "cudaStreamSynchronize" not in new["waits_per_step"]
        assert new["graph_launches_per_step"] > 0
        assert old["ms"] / new["ms"] >= 2
