"""What each thing that an upstream does to the code means for a patch, on tiny git repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagebuild.following import carry, overlaps, threeway
from imagebuild.patching import apply, dropwhen, explain, scratch
from imagebuild.patching.series import Series
from tests.support import tiny, upstreams
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.following.carry import Carried
    from imagebuild.patching.apply import Report
    from tests.support.upstreams import Upstream


def meets(upstream: Upstream, series: Series | None = None) -> Report:
    return apply.plan(series or upstreams.fix(), upstream.tree).reports[0]


def carried(upstream: Upstream, folder: Path, series: Series | None = None) -> Carried:
    found = series or upstreams.fix()
    carrier = carry.Carrier.start(folder, found, upstreams.release(), upstream.tree, "v1.3.0")
    return carrier.run()[0]


@pytest.mark.parametrize("fault", upstreams.FAULTS)
def test_a_patch_meets_what_upstream_did(fault: str, tmp_path: Path) -> None:
    assert meets(upstreams.after(fault, tmp_path)).outcome.value == upstreams.FAULTS[fault][1]


@pytest.mark.parametrize("fault", upstreams.FAULTS)
def test_a_bump_decides_by_what_upstream_did(fault: str, tmp_path: Path) -> None:
    upstream = upstreams.after(fault, tmp_path / "upstream")
    assert carried(upstream, tmp_path / "scratch").decision == upstreams.FAULTS[fault][2]


@pytest.mark.parametrize(
    "fault", [name for name, (_, outcome, _) in upstreams.FAULTS.items() if outcome != "upstreamed"]
)
def test_drop_when_holds_only_where_upstream_has_the_fix(fault: str, tmp_path: Path) -> None:
    tree = upstreams.after(fault, tmp_path).tree
    found = upstreams.fix()
    assert not dropwhen.upstreamed(found.patches[0].meta.drop_when, tree)


def test_a_renamed_file_is_found_by_its_content(tmp_path: Path) -> None:
    upstream = upstreams.after("renamed file", tmp_path)
    text = explain.explain(meets(upstream), upstream.tree, upstreams.release())
    assert f"{tiny.KERNELS} is gone" in text
    assert "vllm/model_executor/state_kernels.py" in text


def test_the_part_that_moved_to_another_file_is_found_by_name(tmp_path: Path) -> None:
    upstream = upstreams.after("split file", tmp_path)
    found = list(overlaps.moved_symbols(meets(upstream), upstreams.release(), upstream.tree))
    assert [(overlap.kind, overlap.path) for overlap in found] == [("symbol moved", tiny.KERNELS)]
    assert found[0].text == "write_state is in vllm/model_executor/write_kernels.py now"


def test_a_drift_says_which_side_changed_the_lines(tmp_path: Path) -> None:
    upstream = upstreams.after("symbol kept, body changed", tmp_path)
    text = explain.explain(meets(upstream), upstream.tree, upstreams.release())
    assert f"Upstream changed between {tiny.SDIST_NAME} and" in text
    assert "+        self.check(row)" in text


def test_what_is_merged_by_half_gets_the_other_half(tmp_path: Path) -> None:
    upstream = upstreams.after("half of the patch merged", tmp_path / "upstream")
    result = carried(upstream, tmp_path / "scratch")
    assert result.new is not None
    assert result.new.targets == (tiny.WORKER,)
    assert not result.same_change
    assert "read it" in result.reason


def test_a_change_beside_the_patch_is_merged_with_the_true_base(tmp_path: Path) -> None:
    """The patch's own context changed, but none of the lines that it changes."""
    upstream = upstreams.Upstream.at_release(tmp_path / "upstream")
    upstream.replace(tiny.WORKER, "self.copies = 0", "self.copies: int = 0")
    upstream.commit("a type")
    assert meets(upstream).outcome is apply.Outcome.DRIFTED
    result = carried(upstream, tmp_path / "scratch")
    assert (result.decision, result.same_change) == ("merged", True)
    assert result.new is not None
    again = Series("v1.3.0", (result.new,), {})
    assert apply.plan(again, upstream.tree).reports[0].reason == "at the exact lines"


def test_a_conflict_is_committed_nowhere(tmp_path: Path) -> None:
    upstream = upstreams.after("fix merged differently", tmp_path / "upstream")
    folder = tmp_path / "scratch"
    carrier = carry.Carrier.start(
        folder, upstreams.fix(), upstreams.release(), upstream.tree, "v1.3.0"
    )
    (result,) = carrier.run()
    assert result.new is None
    assert carrier.git.text("rev-list", "upstream..HEAD") == ""
    carry.open_conflict(carrier, [result.old.name])
    assert b"<<<<<<<" in (folder / tiny.KERNELS).read_bytes()
    assert b"|||||||" in (folder / tiny.KERNELS).read_bytes()
    assert carrier.git.text("rev-list", "upstream..HEAD") == ""


def test_a_merge_that_is_no_python_is_told_from_a_file_that_never_was() -> None:
    assert threeway.is_broken("a.py", b"x = 1\n", b"x = (\n")
    assert not threeway.is_broken("a.py", b"x = (\n", b"x = (\n")
    assert not threeway.is_broken("a.jinja", b"x = 1\n", b"x = (\n")


def test_a_carried_patch_is_what_export_would_write(tmp_path: Path) -> None:
    upstream = upstreams.after("license header added", tmp_path / "upstream")
    found = upstreams.fix()
    carrier = carry.Carrier.start(
        tmp_path / "scratch", found, upstreams.release(), upstream.tree, "v1.3.0"
    )
    (result,) = carrier.run()
    assert result.new is not None
    assert result.same_change
    assert result.new.text.data != found.patches[0].text.data  # other line numbers, other blobs
    exported = scratch.export(tmp_path / "scratch", carrier.series())
    assert exported.patches == {result.old.name: result.new.text.data}


def test_the_tiny_release_is_the_one_that_the_patch_was_written_for() -> None:
    report = apply.plan(upstreams.fix(), upstreams.release()).reports[0]
    assert report.reason == "at the exact lines"
    assert tiny.KERNELS in TREE
