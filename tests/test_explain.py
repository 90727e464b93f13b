"""A failing outcome is explained in lines that a maintainer can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild.fetch.tree import MemoryTree
from imagebuild.patching import apply, explain, hunks
from imagebuild.patching.apply import Outcome
from tests.support import patching, tiny
from tests.support.tiny import BOUNDS, KERNELS, WORKER, Change, Edit
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from imagebuild.patching.apply import Report

FIXED = BOUNDS.put_in(TREE)
DRIFTED = TREE | {
    WORKER: TREE[WORKER].replace(b"offset = accepted - 1", b"offset = self.last(accepted)")
}


def report(contents: dict[str, bytes], drop_when: object = ()) -> Report:
    series = patching.series(BOUNDS, drop_when=drop_when) if drop_when else patching.series(BOUNDS)
    return apply.plan(series, MemoryTree(contents)).failures()[0]


def explained(contents: dict[str, bytes], base: dict[str, bytes] | None = None) -> str:
    tree = MemoryTree(contents, "vllm-9.tar.gz")
    return explain.explain(
        report(contents), tree, None if base is None else MemoryTree(base, "vllm-1.2.3.tar.gz")
    )


def test_drift_shows_the_hunk_and_upstreams_lines_with_their_numbers() -> None:
    text = explained(DRIFTED)
    assert f"{WORKER}, hunk 1 of 1 wants to make this change:\n" in text
    assert "  -        offset = accepted - 1\n" in text
    assert "  +        offset = max(accepted - 1, 0)\n" in text
    assert "vllm-9.tar.gz has there now:\n" in text
    assert "      13         offset = self.last(accepted)\n" in text


def test_drift_shows_what_upstream_changed_between_two_releases() -> None:
    text = explained(DRIFTED, TREE)
    assert "Upstream changed between vllm-1.2.3.tar.gz and vllm-9.tar.gz:\n" in text
    assert "  -        offset = accepted - 1\n" in text
    assert "  +        offset = self.last(accepted)\n" in text


def test_without_the_older_release_no_history_is_told() -> None:
    assert "Upstream changed" not in explained(DRIFTED)


def test_a_change_far_away_is_no_history_of_the_hunk() -> None:
    far = {path: data.replace(b"return target", b"return None") for path, data in DRIFTED.items()}
    text = explained(far, TREE)
    assert "return None" not in text


def test_a_long_change_of_upstreams_is_cut() -> None:
    new = b"".join(b"        step_%d()\n" % number for number in range(100))
    long = TREE | {WORKER: TREE[WORKER].replace(b"        offset = accepted - 1\n", new)}
    text = explained(long, TREE)
    assert "  +        step_29()\n  +... 70 more lines\n" in text
    assert "step_30" not in text.partition("Upstream changed")[2]


def test_only_the_hunks_without_a_place_are_shown() -> None:
    half = TREE | {KERNELS: TREE[KERNELS].replace(b"    column = count - 1", b"    column = 0", 1)}
    text = explained(half)
    assert f"{KERNELS}, hunk 1 of 2 wants" in text
    assert "hunk 2 of 2 wants" not in text


def test_lines_in_many_places_are_said_to_be() -> None:
    body = b"    a\n    b\n    c\n    d\n    e\n    f\n    g\n"
    old = TREE | {"vllm/envs.py": b"def f():\n" + body}
    change = Change("d", "D", (Edit("vllm/envs.py", "    d\n", "    D\n"),))
    series = patching.series(change, tree=old)
    tree = MemoryTree({"vllm/envs.py": b"def f():\n    0\n" + body + body})
    (failure,) = apply.plan(series, tree).failures()
    assert "Its lines stand in 2 places.\n" in explain.explain(failure, tree)


def test_lines_left_in_another_function_are_said_to_be() -> None:
    other = TREE[WORKER].replace(b"StateCopier", b"Old").partition(b"class ")[2]
    copied = DRIFTED | {WORKER: DRIFTED[WORKER] + b"\n\nclass " + other}
    assert "only, not in the part that the patch names.\n" in explained(copied)


def test_an_earlier_patch_of_the_series_is_named_as_the_cause() -> None:
    earlier = Change("earlier", "E", (Edit(WORKER, "offset = accepted - 1", "offset = accepted"),))
    mails = tiny.mails((BOUNDS,)) | tiny.mails((earlier,))
    patches = tuple(patching.patch(name, mails[name]) for name in ("earlier", BOUNDS.name))
    series = patching.series()
    plan = apply.plan(type(series)(series.line, patches, {}), MemoryTree(TREE))
    (failure,) = plan.failures()
    text = explain.explain(failure, MemoryTree(TREE, "vllm-9.tar.gz"))
    assert "an earlier patch of the series changes them" in text


def test_a_renamed_file_is_found_by_its_content() -> None:
    renamed = {path: data for path, data in TREE.items() if path != WORKER}
    text = explained(renamed | {"vllm/v1/copier.py": TREE[WORKER]})
    assert f"{WORKER} is gone.\n" in text
    assert "  vllm/v1/copier.py:10 (100% of them)\n" in text


def test_a_file_that_is_nowhere_is_said_to_be() -> None:
    gone = {path: data for path, data in TREE.items() if path != WORKER}
    text = explained(gone)
    assert "They are nowhere else in vllm-9.tar.gz.\n" in text


def test_half_of_a_split_file_is_found_where_it_went() -> None:
    head, _, tail = TREE[KERNELS].partition(b"\n\ndef write_state")
    emptied = TREE | {WORKER: b"pass\n", "vllm/v1/new.py": TREE[WORKER]}
    assert "  vllm/v1/new.py:10 (100% of them)\n" in explained(emptied)
    split = TREE | {KERNELS: head, "vllm/writers.py": b"def write_state" + tail}
    assert f"{KERNELS}, hunk 2 of 2 wants" in explained(split)


def test_the_best_three_homes_are_named_best_first() -> None:
    change = BOUNDS.edits[1]
    lines = TREE[WORKER].splitlines(keepends=True)
    homes = {f"vllm/home{n}.py": b"".join(lines[: 14 - n]) for n in range(5)}
    (diff,) = (f for f in report(DRIFTED).patch.text.files if f.path == change.path)
    found = explain.find_moved(diff, MemoryTree(homes))
    assert [path for path, _, _ in found] == [f"vllm/home{n}.py" for n in range(3)]
    assert [share for _, _, share in found] == sorted((s for _, _, s in found), reverse=True)


def test_the_file_itself_and_files_of_another_kind_are_no_new_home() -> None:
    (_, diff) = report(DRIFTED).patch.text.files
    assert diff.path == WORKER
    homes = {WORKER: TREE[WORKER], "notes.md": TREE[WORKER], "Makefile": TREE[WORKER]}
    assert explain.find_moved(diff, MemoryTree(homes)) == []


def test_a_half_applied_file_tells_of_each_hunk() -> None:
    half = FIXED | {KERNELS: TREE[KERNELS].replace(b"count - 1\n", b"max(count - 1, 0)\n", 1)}
    text = explained(half)
    assert f"{KERNELS}, hunk 1: the lines after it are there\n" in text
    assert f"{KERNELS}, hunk 2: the lines before it are there\n" in text


def test_the_next_command_of_drift_is_to_edit_the_series() -> None:
    assert explain.next_command(report(DRIFTED), "v1.2.3") == "python build.py edit v1.2.3"


def test_the_next_command_of_a_merged_patch_is_to_retire_it() -> None:
    drop = [{"file": WORKER, "contains": "max("}, {"file": KERNELS, "contains": "max("}]
    failure = report(FIXED, drop_when=drop)
    assert failure.outcome is Outcome.UPSTREAMED
    told = explain.next_command(failure, "v1.2.3")
    assert told.startswith("python build.py drop state-index-bounds --line v1.2.3")


def test_a_drop_when_that_holds_where_the_patch_applies_is_what_has_to_be_mended() -> None:
    drop = [{"file": WORKER, "symbol": "StateCopier"}]
    failure = report(TREE, drop_when=drop)
    assert failure.outcome is Outcome.UPSTREAMED
    assert "$EDITOR patches/v1.2.3/state-index-bounds.toml" in explain.next_command(
        failure, "v1.2.3"
    )


def test_lines_that_tell_nothing_do_not_say_where_the_others_went() -> None:
    lines = b"    else:\n    column = compute(the_count)\n    return x\n"
    hunk = patching.hunks(lines, lines.replace(b"the_count", b"count"))[0]
    assert explain.nearest(hunks.split(b"a\n    else:\nb\n    return x\n"), hunk) is None
    assert explain.nearest(hunks.split(b"a\n    column = compute(the_count)\n"), hunk) == 0


def test_nothing_near_is_nowhere() -> None:
    hunk = patching.hunks(b"a\nb\nc\n", b"a\nB\nc\n")[0]
    assert explain.nearest(hunks.split(b"x\ny\n"), hunk) is None
    assert explain.nearest([], hunk) is None
    assert explain.nearest(hunks.split(b"x\na\ny\nc\n"), hunk) == 1
