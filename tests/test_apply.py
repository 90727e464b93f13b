"""The six outcomes, on the one path that plans, checks and applies."""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import TYPE_CHECKING

import pytest

from imagebuild.errors import (
    ChecksumError,
    ConflictError,
    DriftedError,
    PartialError,
    TargetGoneError,
    UpstreamedError,
)
from imagebuild.fetch.tree import DirTree, MemoryTree, Tree
from imagebuild.patching import apply, assemble, checksums
from imagebuild.patching.apply import FileState, Outcome, Plan
from imagebuild.patching.checksums import LineChecksums, TargetPin
from tests.support import patching, tiny
from tests.support.tiny import BOUNDS, CLEAR, KERNELS, WORKER, Change, Edit
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagebuild.patching.series import Series

FIXED = BOUNDS.put_in(TREE)
OLD_KERNEL, NEW_KERNEL = b"column = count - 1\n", b"column = max(count - 1, 0)\n"
OLD_WORKER, NEW_WORKER = b"offset = accepted - 1\n", b"offset = max(accepted - 1, 0)\n"
DROP = [
    {"file": KERNELS, "contains": "max(count - 1, 0)"},
    {"file": WORKER, "contains": "max(accepted - 1, 0)"},
]
CHAIN = (
    BOUNDS,
    Change("first", "Rename", (Edit(KERNELS, "CHUNK = 64\n", "CHUNK = 64\nSMALL = 16\n"),)),
    CLEAR,
    Change("last", "Say it", (Edit(KERNELS, '"""Return a line for logs."""', '"""Say."""'),)),
)


def bounds(drop_when: object = None) -> Series:
    return patching.series(BOUNDS, drop_when=DROP if drop_when is None else drop_when)


def pins_of(series: Series, tree: Tree) -> LineChecksums:
    """Return the lock's digests of a series on its own release, as `build.py lock` derives them."""
    plan = apply.plan(series, tree)
    assert plan.success
    targets = tuple(
        TargetPin(patch=name, path=path, before=before, after=after)
        for name, path, before, after in plan.steps
    )
    return LineChecksums(
        version=tiny.LOCAL_VERSION,
        sdist="0" * 64,
        patchset=checksums.patchset_sha256(series),
        patches=dict(checksums.patch_files(series)),
        overlay={},
        targets=targets,
        produced={},
    )


def states_of(changes: tuple[Change, ...]) -> list[dict[str, bytes]]:
    """Return the tree after each prefix of the changes."""
    return list(itertools.accumulate(changes, lambda tree, c: c.put_in(tree), initial=TREE))


def outcomes(plan: Plan) -> list[Outcome]:
    return [report.outcome for report in plan.reports]


def changed(path: str, old: bytes, new: bytes, count: int = -1) -> dict[str, bytes]:
    assert old in TREE[path]
    return TREE | {path: TREE[path].replace(old, new, count)}


def without(path: str) -> dict[str, bytes]:
    return {name: data for name, data in TREE.items() if name != path}


@pytest.fixture(params=["memory", "folder"])
def tree_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, bytes]], Tree]:
    """Return a maker of trees, once in memory and once in a folder."""

    def memory(contents: dict[str, bytes]) -> Tree:
        return MemoryTree(contents)

    def folder(contents: dict[str, bytes]) -> Tree:
        tiny.write_tree(tmp_path, contents)
        return DirTree(tmp_path)

    return memory if request.param == "memory" else folder


def test_a_patch_applies_to_its_own_release(
    tree_of: Callable[[dict[str, bytes]], Tree],
) -> None:
    plan = apply.plan(bounds(), tree_of(TREE))
    assert outcomes(plan) == [Outcome.APPLIES]
    assert plan.after == {path: FIXED[path] for path in (KERNELS, WORKER)}
    assert plan.reports[0].reason == "at the exact lines"


def test_a_patched_tree_has_the_patch_already(
    tree_of: Callable[[dict[str, bytes]], Tree],
) -> None:
    pins = pins_of(bounds(), MemoryTree(TREE))
    plan = apply.plan(bounds(), tree_of(FIXED), pins)
    assert outcomes(plan) == [Outcome.ALREADY_APPLIED]
    assert plan.after == {path: FIXED[path] for path in (KERNELS, WORKER)}
    assert plan.reports[0].reason == "every file has the patch's content"
    apply.check_results(plan, pins)


def test_a_release_with_the_fix_made_otherwise_is_upstreamed(
    tree_of: Callable[[dict[str, bytes]], Tree],
) -> None:
    theirs = TREE | {
        path: TREE[path].replace(old, new)
        for path, old, new in (
            (KERNELS, OLD_KERNEL, b"# stale\n    column = max(count - 1, 0)  # clamp\n"),
            (WORKER, OLD_WORKER, b"offset = max(accepted - 1, 0)  # clamp\n"),
        )
    }
    plan = apply.plan(bounds(), tree_of(theirs))
    assert outcomes(plan) == [Outcome.UPSTREAMED]
    assert plan.reports[0].reason == "drop-when holds"


def test_changed_lines_are_drift(tree_of: Callable[[dict[str, bytes]], Tree]) -> None:
    plan = apply.plan(bounds(), tree_of(changed(WORKER, OLD_WORKER, b"offset = accepted\n")))
    assert outcomes(plan) == [Outcome.DRIFTED]
    assert plan.reports[0].reason == f"no exact place for {WORKER}, hunk 1 of 1"
    assert plan.after == {}


def test_a_missing_file_is_a_target_gone(tree_of: Callable[[dict[str, bytes]], Tree]) -> None:
    plan = apply.plan(bounds(), tree_of(without(WORKER)))
    assert outcomes(plan) == [Outcome.TARGET_GONE]
    assert WORKER in plan.reports[0].reason


def test_one_file_of_two_patched_is_partial(tree_of: Callable[[dict[str, bytes]], Tree]) -> None:
    plan = apply.plan(bounds(), tree_of(TREE | {WORKER: FIXED[WORKER]}))
    assert outcomes(plan) == [Outcome.PARTIAL]
    assert plan.reports[0].reason == f"{KERNELS} is not patched; {WORKER} is patched"


def test_one_hunk_of_two_in_is_partial(tree_of: Callable[[dict[str, bytes]], Tree]) -> None:
    half = changed(KERNELS, OLD_KERNEL, NEW_KERNEL, 1)
    plan = apply.plan(bounds(), tree_of(half | {WORKER: FIXED[WORKER]}))
    assert outcomes(plan) == [Outcome.PARTIAL]
    assert [file.state for file in plan.reports[0].files] == [FileState.HALF, FileState.DONE]


def test_one_hunk_of_two_in_the_only_file_is_partial() -> None:
    series = patching.series(dataclasses.replace(BOUNDS, edits=BOUNDS.edits[:1]))
    plan = apply.plan(series, MemoryTree(changed(KERNELS, OLD_KERNEL, NEW_KERNEL, 1)))
    assert outcomes(plan) == [Outcome.PARTIAL]
    assert plan.reports[0].reason == f"{KERNELS} is half patched"


@pytest.mark.parametrize("with_pins", [True, False])
def test_a_half_patched_tree_is_partial_with_the_lock_and_without(*, with_pins: bool) -> None:
    pins = pins_of(bounds(), MemoryTree(TREE)) if with_pins else None
    plan = apply.plan(bounds(), MemoryTree(TREE | {WORKER: FIXED[WORKER]}), pins)
    assert outcomes(plan) == [Outcome.PARTIAL]


def test_only_the_first_two_outcomes_are_success() -> None:
    assert [o for o in Outcome if o.success] == [Outcome.APPLIES, Outcome.ALREADY_APPLIED]


def test_each_failing_outcome_has_its_own_error() -> None:
    errors = [outcome.error for outcome in Outcome]
    assert errors == [
        None,
        None,
        UpstreamedError,
        DriftedError,
        TargetGoneError,
        PartialError,
    ]


# Synthetic upstreams: what a next release may have done, each with the only right outcome.

LICENSE = b"# SPDX-FileCopyrightText: Copyright contributors\n"
HELPER = b"\n\ndef clamp(count):\n    return max(count - 1, 0)\n"


def merged(path: str) -> bytes:
    return FIXED[path]


UPSTREAMS: dict[str, tuple[dict[str, bytes], Outcome]] = {
    "unchanged": (TREE, Outcome.APPLIES),
    "another-file-changed": (TREE | {"vllm/envs.py": b"NEW = 1\n"}, Outcome.APPLIES),
    "context-moved-by-one-line": (
        changed(KERNELS, b"CHUNK = 64\n", b"CHUNK = 64\nSMALL = 16\n"),
        Outcome.APPLIES,
    ),
    "license-header-added": (
        {path: LICENSE + data if data else data for path, data in TREE.items()},
        Outcome.APPLIES,
    ),
    "function-moved-up": (
        TREE | {KERNELS: TREE[KERNELS].replace(b"def describe", b"# moved\n\n\ndef describe")},
        Outcome.APPLIES,
    ),
    "context-reworded": (
        changed(WORKER, b"return self.table[row][offset]", b"return self.table[row, offset]"),
        Outcome.DRIFTED,
    ),
    "whitespace-only": (
        changed(KERNELS, b"    column = count - 1\n", b"    column = count-1\n"),
        Outcome.DRIFTED,
    ),
    "reindented": (
        TREE | {WORKER: TREE[WORKER].replace(b"\n    ", b"\n\t")},
        Outcome.DRIFTED,
    ),
    "trailing-space": (changed(WORKER, OLD_WORKER, b"offset = accepted - 1 \n"), Outcome.DRIFTED),
    "carriage-returns": (
        {path: data.replace(b"\n", b"\r\n") for path, data in TREE.items()},
        Outcome.DRIFTED,
    ),
    "renamed-file": (
        without(WORKER) | {"vllm/v1/copier.py": TREE[WORKER]},
        Outcome.TARGET_GONE,
    ),
    "split-file": (
        TREE
        | {
            KERNELS: TREE[KERNELS].partition(b"\n\ndef write_state")[0],
            "vllm/model_executor/writers.py": b"def write_state"
            + TREE[KERNELS].partition(b"\n\ndef write_state")[2],
        },
        Outcome.DRIFTED,
    ),
    "emptied-file": (TREE | {WORKER: b""}, Outcome.DRIFTED),
    "file-now-generated": (
        TREE | {WORKER: b"# Generated. Do not edit.\nSOURCE = lambda a: a - 1\n"},
        Outcome.DRIFTED,
    ),
    "file-now-a-folder": (
        without(WORKER) | {f"{WORKER}/__init__.py": TREE[WORKER]},
        Outcome.TARGET_GONE,
    ),
    "merged-word-for-word": (FIXED, Outcome.UPSTREAMED),
    "merged-word-for-word-and-moved": (
        {path: LICENSE + data if data else data for path, data in FIXED.items()},
        Outcome.UPSTREAMED,
    ),
    "merged-differently": (
        {
            path: data.replace(b"    column = max", b"    # stale\n    column = max").replace(
                b"        offset = max", b"        # stale\n        offset = max"
            )
            for path, data in FIXED.items()
        },
        Outcome.UPSTREAMED,
    ),
    "merged-in-another-way-than-drop-when-knows": (
        TREE
        | {
            KERNELS: TREE[KERNELS].replace(OLD_KERNEL, b"column = clamp(count)\n") + HELPER,
            WORKER: TREE[WORKER].replace(OLD_WORKER, b"offset = clamp(accepted)\n"),
        },
        Outcome.DRIFTED,
    ),
    "merged-and-reverted": (TREE, Outcome.APPLIES),
    "merged-and-half-reverted": (TREE | {WORKER: merged(WORKER)}, Outcome.PARTIAL),
    "half-merged-by-file": (TREE | {KERNELS: merged(KERNELS)}, Outcome.PARTIAL),
    "half-merged-by-hunk": (changed(KERNELS, OLD_KERNEL, NEW_KERNEL, 1), Outcome.PARTIAL),
    "half-merged-the-rest-changed": (
        TREE
        | {
            KERNELS: merged(KERNELS),
            WORKER: TREE[WORKER].replace(OLD_WORKER, b"offset = accepted  - 1\n"),
        },
        Outcome.DRIFTED,
    ),
    "half-merged-the-rest-gone": (
        without(WORKER) | {KERNELS: merged(KERNELS)},
        Outcome.TARGET_GONE,
    ),
    "symbol-kept-but-body-changed": (
        changed(WORKER, OLD_WORKER, b"offset = self.last(accepted)\n"),
        Outcome.DRIFTED,
    ),
    "copied-into-a-second-function": (
        TREE
        | {
            WORKER: TREE[WORKER].replace(OLD_WORKER, b"offset = self.last(accepted)\n")
            + b"\n\n"
            + TREE[WORKER].partition(b'blocks."""\n\n\n')[2].replace(b"StateCopier", b"Old")
        },
        Outcome.DRIFTED,
    ),
}


@pytest.mark.parametrize("name", UPSTREAMS)
def test_a_synthetic_upstream_has_its_outcome(name: str) -> None:
    contents, expected = UPSTREAMS[name]
    (report,) = apply.plan(bounds(), MemoryTree(contents)).reports
    assert (report.outcome, report.reason) == (expected, report.reason)


@pytest.mark.parametrize(
    "name", [name for name, (_, outcome) in UPSTREAMS.items() if outcome is Outcome.APPLIES]
)
def test_where_it_applies_exactly_the_meant_lines_change(name: str) -> None:
    contents, _ = UPSTREAMS[name]
    assert apply.plan(bounds(), MemoryTree(contents)).after == {
        path: BOUNDS.put_in(contents)[path] for path in (KERNELS, WORKER)
    }


@pytest.mark.parametrize("name", UPSTREAMS)
def test_a_failing_plan_changes_no_file(name: str) -> None:
    contents, expected = UPSTREAMS[name]
    plan = apply.plan(bounds(), MemoryTree(contents))
    assert plan.success is expected.success
    assert bool(plan.after) is expected.success


def test_each_drop_when_alone_is_false_wherever_the_outcome_is_not_upstreamed() -> None:
    """A mutation test over drop-whens: half of the proof must not be enough."""
    upstreamed = {n for n, (_, outcome) in UPSTREAMS.items() if outcome is Outcome.UPSTREAMED}
    for check in DROP:
        found = {
            name
            for name, (contents, _) in UPSTREAMS.items()
            if outcomes(apply.plan(bounds([check]), MemoryTree(contents)))[0] is Outcome.UPSTREAMED
        }
        assert found <= upstreamed


def test_a_half_that_was_merged_does_not_speak_for_a_half_that_changed() -> None:
    contents, _ = UPSTREAMS["half-merged-the-rest-changed"]
    (report,) = apply.plan(bounds(DROP[:1]), MemoryTree(contents)).reports
    assert report.outcome is Outcome.DRIFTED
    assert report.reason.endswith(f"drop-when holds, but not a word on {WORKER}")


def test_a_half_that_was_merged_does_not_speak_for_a_half_that_is_gone() -> None:
    contents, _ = UPSTREAMS["half-merged-the-rest-gone"]
    assert outcomes(apply.plan(bounds(DROP[:1]), MemoryTree(contents))) == [Outcome.TARGET_GONE]


def test_a_drop_when_that_holds_where_the_patch_still_applies_says_so() -> None:
    always = [{"file": KERNELS, "symbol": "read_state"}]
    (report,) = apply.plan(bounds(always), MemoryTree(TREE)).reports
    assert report.outcome is Outcome.UPSTREAMED
    assert report.reason == "drop-when holds, though its hunks still apply"


def test_a_lacking_line_is_no_proof_where_only_its_spaces_changed() -> None:
    drop_when = [
        {"file": WORKER, "lacks": OLD_WORKER.decode().strip()},
        {"file": WORKER, "symbol": "StateCopier"},
    ]
    change = dataclasses.replace(BOUNDS, edits=BOUNDS.edits[1:])
    series = patching.series(change, drop_when=drop_when)
    drifted = changed(WORKER, OLD_WORKER, b"offset = accepted-1\n")
    assert outcomes(apply.plan(series, MemoryTree(drifted))) == [Outcome.DRIFTED]
    gone = changed(WORKER, OLD_WORKER, b"offset = last(accepted)\n")
    assert outcomes(apply.plan(series, MemoryTree(gone))) == [Outcome.UPSTREAMED]


def test_words_merged_without_a_drop_when_that_knows_are_in_already() -> None:
    never = [{"file": KERNELS, "symbol": "no_such_thing"}]
    plan = apply.plan(bounds(never), MemoryTree(FIXED))
    assert outcomes(plan) == [Outcome.ALREADY_APPLIED]
    assert plan.reports[0].reason == "every hunk is in, word for word"


# Several patches on one file.


def test_a_chain_applies_in_order() -> None:
    plan = apply.plan(patching.series(*CHAIN), MemoryTree(TREE))
    assert outcomes(plan) == [Outcome.APPLIES] * len(CHAIN)
    assert plan.after[KERNELS] == states_of(CHAIN)[-1][KERNELS]


def test_the_steps_of_a_chain_join_end_to_end() -> None:
    plan = apply.plan(patching.series(*CHAIN), MemoryTree(TREE))
    steps = [(before, after) for _, path, before, after in plan.steps if path == KERNELS]
    assert len(steps) == len(CHAIN)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(steps))


@pytest.mark.parametrize("done", range(len(CHAIN) + 1))
@pytest.mark.parametrize("with_pins", [True, False])
def test_from_every_state_of_a_chain_the_rest_applies(done: int, *, with_pins: bool) -> None:
    series = patching.series(*CHAIN)
    pins = pins_of(series, MemoryTree(TREE))
    plan = apply.plan(series, MemoryTree(states_of(CHAIN)[done]), pins if with_pins else None)
    expected = [Outcome.ALREADY_APPLIED] * done + [Outcome.APPLIES] * (len(CHAIN) - done)
    assert outcomes(plan) == expected
    apply.check_results(plan, pins)


def test_planning_on_the_result_finds_everything_applied() -> None:
    series = patching.series(*CHAIN)
    pins = pins_of(series, MemoryTree(TREE))
    once = apply.plan(series, MemoryTree(TREE), pins)
    again = apply.plan(series, MemoryTree(TREE | once.after), pins)
    assert outcomes(again) == [Outcome.ALREADY_APPLIED] * len(CHAIN)
    assert again.after == once.after
    assert again.steps == []


def test_a_state_that_later_patches_covered_is_known_by_the_lock() -> None:
    cover = Change(
        "cover", "Cover", (Edit(KERNELS, "    count = accepted[row]\n", "    count = 1\n"),)
    )
    series = patching.series(BOUNDS, cover)
    pins = pins_of(series, MemoryTree(TREE))
    final = MemoryTree(cover.put_in(FIXED))
    assert outcomes(apply.plan(series, final, pins)) == [Outcome.ALREADY_APPLIED] * 2
    assert not apply.plan(series, final).success


def test_a_later_patch_waits_for_one_that_does_not_apply() -> None:
    tree = MemoryTree(changed(KERNELS, OLD_KERNEL, b"column = 0\n"))
    assert outcomes(apply.plan(patching.series(*CHAIN), tree)) == [
        Outcome.DRIFTED,
        *[Outcome.APPLIES] * 3,
    ]


def test_an_empty_series_succeeds() -> None:
    assert apply.plan(patching.series(), MemoryTree(TREE)).success


def test_two_patches_that_write_the_same_lines_are_a_conflict() -> None:
    other = Change("other", "Again", (Edit(KERNELS, "max(count - 1, 0)", "max(0, count - 1)"),))
    with pytest.raises(
        ConflictError, match="state-index-bounds and other write the same"
    ) as caught:
        apply.plan(patching.series(BOUNDS, other), MemoryTree(TREE))
    assert caught.value.file == f"{KERNELS}:11"
    assert caught.value.next_command == "python build.py edit v1.2.3"


def test_two_patches_that_write_neighbouring_lines_are_none() -> None:
    other = Change(
        "other",
        "Beside",
        (Edit(KERNELS, "block = table[row][column]", "block = table[row, column]"),),
    )
    assert apply.plan(patching.series(BOUNDS, other), MemoryTree(TREE)).success


def test_a_patch_on_an_overlay_file_is_a_conflict() -> None:
    series = patching.series(BOUNDS, overlay={WORKER: b""})
    with pytest.raises(ConflictError, match="changes an overlay file") as caught:
        apply.plan(series, MemoryTree(TREE))
    assert caught.value.file == WORKER


# Ends of files.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\nb", b"a\nc"),
        (b"a\nb\n", b"a\nb"),
        (b"a\nb", b"a\nb\n"),
        (b"", b"a\n"),
        (b"", b"a"),
        (b"a\n", b""),
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        (b"a\xff\x00b\n".replace(b"\x00", b""), b"a\xfeb\n"),
    ],
)
def test_a_files_end_and_bytes_are_kept(old: bytes, new: bytes) -> None:
    difference = patching.difference(old, new)
    series = patching.series()
    patch = patching.patch("a", patching.HEAD + difference)
    series = dataclasses.replace(series, patches=(patch,))
    plan = apply.plan(series, MemoryTree({patching.FILE: old}))
    assert outcomes(plan) == [Outcome.APPLIES]
    assert plan.after == {patching.FILE: new}
    again = apply.plan(series, MemoryTree({patching.FILE: new}))
    assert outcomes(again) == [Outcome.ALREADY_APPLIED]


# The lock's word on the results.


def test_other_content_around_the_hunks_is_found_by_the_digest() -> None:
    pins = pins_of(bounds(), MemoryTree(TREE))
    touched = MemoryTree(changed(KERNELS, b"CHUNK = 64\n", b"CHUNK = 32\n"), "a touched tree")
    plan = apply.plan(bounds(), touched, pins)
    assert plan.success
    with pytest.raises(ChecksumError) as caught:
        apply.check_results(plan, pins)
    assert caught.value.file == KERNELS
    assert "a touched tree" in str(caught.value.detail)


def test_a_file_that_the_lock_does_not_know_is_refused() -> None:
    pins = pins_of(bounds(), MemoryTree(TREE))
    plan = apply.plan(bounds(), MemoryTree(TREE), pins)
    plan.after["vllm/envs.py"] = b""
    with pytest.raises(ChecksumError) as caught:
        apply.check_results(plan, pins)
    assert caught.value.expected == "no patch to change it"


def test_a_file_that_stayed_as_it_was_is_refused() -> None:
    pins = pins_of(bounds(), MemoryTree(TREE))
    plan = apply.plan(bounds(), MemoryTree(TREE), pins)
    del plan.after[WORKER]
    with pytest.raises(ChecksumError) as caught:
        apply.check_results(plan, pins)
    assert caught.value.found == "unchanged"


# Trees in folders.


def test_planning_writes_nothing(tmp_path: Path) -> None:
    tiny.write_tree(tmp_path, TREE)
    times = {path: (tmp_path / path).stat().st_mtime_ns for path in TREE}
    apply.plan(bounds(), DirTree(tmp_path))
    assert {path: (tmp_path / path).read_bytes() for path in TREE} == TREE
    assert {path: (tmp_path / path).stat().st_mtime_ns for path in TREE} == times
    assert sorted(DirTree(tmp_path).files()) == sorted(TREE)


def test_a_tree_inside_another_git_repository_is_read_all_the_same(tmp_path: Path) -> None:
    """`git apply` would say nothing and change nothing here."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    tiny.write_tree(tmp_path / "inner", TREE)
    plan = apply.plan(bounds(), DirTree(tmp_path / "inner"))
    assert plan.after[KERNELS] == FIXED[KERNELS]


def test_a_link_out_of_the_tree_is_no_file_of_it(tmp_path: Path) -> None:
    tiny.write_tree(tmp_path / "outside", TREE)
    tiny.write_tree(tmp_path / "tree", without(WORKER))
    (tmp_path / "tree" / WORKER).symlink_to(tmp_path / "outside" / WORKER)
    assert DirTree(tmp_path / "tree").read(WORKER) is None
    assert outcomes(apply.plan(bounds(), DirTree(tmp_path / "tree"))) == [Outcome.TARGET_GONE]


@pytest.mark.parametrize("odd", ["loop", "pipe", "folder", "long"])
def test_what_is_no_regular_file_is_none(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "odd"
    match odd:
        case "loop":
            path.symlink_to(path)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    assert DirTree(tmp_path).read("x" * 5000 if odd == "long" else "odd") is None
    assert list(DirTree(tmp_path).files()) == []


def test_git_s_own_files_are_none_of_the_tree(tmp_path: Path) -> None:
    tiny.write_tree(tmp_path, {".git/config": b"", "vllm/a.py": b"", "vllm/sub/.git/config": b""})
    assert list(DirTree(tmp_path).files()) == ["vllm/a.py"]


def test_the_first_failure_is_raised_with_its_facts() -> None:
    tree = MemoryTree(without(WORKER), "vllm-9.tar.gz")
    with pytest.raises(TargetGoneError) as caught:
        assemble.raise_first_failure(apply.plan(bounds(), tree), tree)
    assert caught.value.summary == "patch state-index-bounds: target gone"
    assert caught.value.file == f"{KERNELS}, {WORKER}"
    assert caught.value.found == f"no {WORKER} in vllm-9.tar.gz"
    assert caught.value.next_command == "python build.py edit v1.2.3"
