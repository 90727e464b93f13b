"""Where a hunk stands, exactly, or nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagebuild.patching import hunks
from imagebuild.patching.hunks import Lines
from tests.support import patching, tiny
from tests.support.patching import states
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from imagebuild.patching.diff import Hunk

KERNELS = TREE[tiny.KERNELS]
FIXED = KERNELS.replace(b"column = count - 1\n", b"column = max(count - 1, 0)\n")
HALF = KERNELS.replace(b"column = count - 1\n", b"column = max(count - 1, 0)\n", 1)
BOUNDS = patching.hunks(KERNELS, FIXED)


def located(content: bytes, change: tuple[Hunk, ...] = BOUNDS) -> tuple[hunks.Match, ...]:
    return hunks.locate(hunks.split(content), change)


def replaced(content: bytes, change: tuple[Hunk, ...]) -> bytes:
    matches = located(content, change)
    assert {match.state for match in matches} == {"before"}
    return hunks.replace(Lines(hunks.split(content)), matches, "a").data


def numbered(count: int) -> bytes:
    return b"".join(b"    line %d\n" % number for number in range(count))


def test_split_is_the_inverse_of_join() -> None:
    for content in (b"", b"\n", b"a", b"a\n", b"a\r\nb\rc\n\n", b"\x0c\n\x0b\x1c\n\x85"):
        assert b"".join(hunks.split(content)) == content
    assert hunks.split(b"a\rb\x0cc\r\nd") == [b"a\rb\x0cc\r\n", b"d"]


def test_hunks_stand_where_they_were_made() -> None:
    assert [(m.state, m.offset) for m in located(KERNELS)] == [("before", 0)] * 2


def test_hunks_that_are_in_stand_as_after() -> None:
    assert [(m.state, m.offset) for m in located(FIXED)] == [("after", 0)] * 2


def test_each_hunk_has_its_own_state() -> None:
    assert states(located(HALF)) == ["after", "before"]


def test_replacing_gives_the_new_content() -> None:
    assert replaced(KERNELS, BOUNDS) == FIXED


def test_a_hunk_that_moved_is_found_at_the_only_other_place() -> None:
    moved = KERNELS.replace(b"CHUNK = 64\n", b"CHUNK = 64\nSMALL = 16\n")
    assert [(m.state, m.offset) for m in located(moved)] == [("before", 1), ("before", 0)]
    assert replaced(moved, BOUNDS) == moved.replace(b"= count - 1\n", b"= max(count - 1, 0)\n")


def test_a_change_between_hunks_moves_only_the_later_one() -> None:
    moved = KERNELS.replace(b"def describe", b"# a note\n\n\ndef describe")
    assert [m.offset for m in located(moved)] == [0, 3]


def test_a_hunk_made_longer_by_an_earlier_one_is_expected_further_down() -> None:
    longer = KERNELS.replace(b"CHUNK = 64\n", b"CHUNK = 64\nA = 1\nB = 2\n").replace(
        b"states[block] = value", b"states[block] = row"
    )
    change = patching.hunks(KERNELS, longer)
    assert len(change) == 2
    assert [(m.state, m.offset) for m in located(KERNELS, change)] == [("before", 0)] * 2
    assert [(m.state, m.offset) for m in located(longer, change)] == [("after", 0)] * 2


def test_lines_that_differ_in_spaces_only_are_other_lines() -> None:
    (first, _) = located(KERNELS.replace(b"column = count - 1\n", b"column = count -1\n", 1))
    assert (first.state, first.cause) == ("neither", "absent")


def test_lines_with_carriage_returns_are_other_lines() -> None:
    assert states(located(KERNELS.replace(b"\n", b"\r\n"))) == ["neither"] * 2


def test_lines_in_two_places_are_ambiguous() -> None:
    body = b"    a\n    b\n    c\n    d\n    e\n    f\n    g\n"
    change = patching.hunks(b"def f():\n" + body, b"def f():\n" + body.replace(b"d", b"D"))
    assert states(located(b"def f():\n    0\n" + body, change)) == ["before"]
    (match,) = located(b"def f():\n    0\n" + body + body, change)
    assert (match.state, match.cause, match.places) == ("neither", "many", 2)


SISTERS = b"""\
import a


def first():
    x = 1
    y = 2
    z = 3
    load(x)
    w = 4
    v = 5
    u = 6
    return x


def second():
    x = 1
    y = 2
    z = 3
    load(x)
    w = 4
    v = 5
    u = 6
    return x
"""
MASKED = b"    load(x, mask)\n"


def second_masked(content: bytes) -> bytes:
    head, _, tail = content.rpartition(b"    load(x)\n")
    return head + MASKED + tail


def first_masked(content: bytes) -> bytes:
    return content.replace(b"    load(x)\n", MASKED, 1)


def test_the_expected_place_goes_before_a_sister_function_with_the_same_lines() -> None:
    change = patching.hunks(SISTERS, second_masked(SISTERS))
    assert replaced(SISTERS, change) == second_masked(SISTERS)


def test_a_sister_function_that_has_the_fix_does_not_make_it_applied() -> None:
    sister_fixed = first_masked(SISTERS)
    change = patching.hunks(sister_fixed, second_masked(sister_fixed))
    assert states(located(sister_fixed, change)) == ["before"]
    assert replaced(sister_fixed, change) == second_masked(sister_fixed)


def test_a_sister_function_that_has_the_fix_does_not_hide_lines_that_moved() -> None:
    sister_fixed = first_masked(SISTERS)
    change = patching.hunks(sister_fixed, second_masked(sister_fixed))
    moved = sister_fixed.replace(b"import a\n", b"import a\nimport b\n")
    assert replaced(moved, change) == second_masked(moved)


def test_an_insertion_is_not_taken_for_done_because_a_sister_has_it() -> None:
    guarded = SISTERS.replace(b"    load(x)\n", b"    check(x)\n    load(x)\n", 1)
    head, _, tail = guarded.rpartition(b"    load(x)\n")
    change = patching.hunks(guarded, head + b"    check(x)\n    load(x)\n" + tail)
    assert states(located(guarded, change)) == ["before"]


def test_lines_left_in_another_function_are_not_the_patchs_lines() -> None:
    change = patching.hunks(SISTERS, first_masked(SISTERS))
    mended_otherwise = SISTERS.replace(b"    load(x)\n", b"    load(x, other)\n", 1)
    assert mended_otherwise.count(b"    load(x)\n") == 1
    (match,) = located(mended_otherwise, change)
    assert (match.state, match.cause) == ("neither", "section")
    assert match.at > SISTERS[: SISTERS.index(b"def second")].count(b"\n")


def test_another_functions_lines_at_the_expected_number_are_not_the_patchs_lines() -> None:
    change = patching.hunks(SISTERS, second_masked(SISTERS))
    first, second = SISTERS.index(b"def first"), SISTERS.index(b"def second")
    shifted = b"import b\n" * SISTERS[first:second].count(b"\n") + SISTERS
    assert replaced(shifted, change) == second_masked(shifted)


def test_lines_that_repeat_too_much_to_tell_old_from_new_have_no_place() -> None:
    row = b"    0,\n"
    one_more = patching.text(
        b"diff --git a/vllm/file.py b/vllm/file.py\nindex 1111111..2222222 100644\n"
        b"--- a/vllm/file.py\n+++ b/vllm/file.py\n@@ -2,6 +2,7 @@\n"
        + (b" " + row) * 3
        + (b"+" + row)
        + (b" " + row) * 3
    )
    (match,) = located(b"x = [\n" + row * 12 + b"]\n", one_more.files[0].hunks)
    assert (match.state, match.cause) == ("neither", "both")


def test_an_addition_at_the_end_stays_at_the_end() -> None:
    change = patching.hunks(KERNELS, KERNELS + b"\n\ndef more(): ...\n")
    assert replaced(KERNELS, change).endswith(b"def more(): ...\n")
    assert states(located(KERNELS + b"    return None\n", change)) == ["neither"]


def test_a_change_of_the_first_line_stays_at_the_first_line() -> None:
    change = patching.hunks(KERNELS, KERNELS.replace(b"Apache-2.0", b"MIT"))
    assert states(located(KERNELS, change)) == ["before"]
    assert states(located(b"#!/usr/bin/env python\n" + KERNELS, change)) == ["neither"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\nb", b"a\nB"),
        (b"a\nb", b"a\nb\n"),
        (b"a\nb\n", b"a\nb"),
        (b"a\nb", b"a\nb\nc"),
        (b"", b"a\n"),
        (b"", b"a"),
        (b"a\n", b""),
        (b"a", b""),
        (b"\n", b"\n\n"),
        (b"a\r\nb\r\n", b"a\r\nB\r\n"),
    ],
)
def test_ends_of_files_are_kept_as_they_are(old: bytes, new: bytes) -> None:
    change = patching.hunks(old, new)
    assert replaced(old, change) == new
    assert states(located(new, change)) == ["after"]


def test_a_patch_for_an_empty_file_does_not_fit_one_that_is_not() -> None:
    change = patching.hunks(b"", b"a\nb\n")
    assert states(located(b"x\na\nb\n", change)) == ["neither"]


def test_hunks_whose_lines_changed_their_order_are_not_placed_backwards() -> None:
    lines = numbered(40)
    change = patching.hunks(
        lines, lines.replace(b"line 5\n", b"5\n").replace(b"line 25\n", b"25\n")
    )
    assert len(change) == 2
    old = hunks.split(lines)
    assert states(located(b"".join(old[20:] + old[:20]), change)) == ["before", "neither"]


def test_a_patch_that_takes_out_anothers_line_is_noticed() -> None:
    by_one = hunks.replace(Lines(hunks.split(KERNELS)), located(KERNELS), "one")
    other = patching.hunks(FIXED, FIXED.replace(b"max(count - 1, 0)", b"max(0, count - 1)"))
    assert hunks.overwritten(by_one, hunks.locate(by_one.lines, other)) == ("one", 11)


def test_a_patch_that_stands_on_anothers_line_is_no_conflict() -> None:
    by_one = hunks.replace(Lines(hunks.split(KERNELS)), located(KERNELS), "one")
    other = patching.hunks(FIXED, FIXED.replace(b"    return states[block]", b"    return None"))
    assert hunks.overwritten(by_one, hunks.locate(by_one.lines, other)) is None


def test_locating_looks_at_few_places_of_a_large_file() -> None:
    old = b"".join(b"    x = %d\n\n    return\n" % n for n in range(4000))
    new = old
    for n in range(100, 4000, 200):
        new = new.replace(b"    x = %d\n" % n, b"    x = -%d\n" % n)
    change = patching.hunks(old, new)
    index = hunks._Index(hunks.split(old))
    assert len(change) == 20
    for hunk in change:
        rarest = min(len(index.where[line]) for line in hunk.pre)
        assert rarest == 1
    assert states(located(old, change)) == ["before"] * 20


TWINS = b"""\
class Loader:
    def first(self, scale):
        scale = scale * 2
        limit = scale + 1
        width = limit - 1
        checked = abs(scale)
        stored = float(checked)
        packed = stored * width
        return packed

    def second(self, scale):
        scale = scale * 2
        limit = scale + 1
        width = limit - 1
        checked = abs(scale)
        stored = float(checked)
        packed = stored * width
        return packed
"""
ONE_FIXED = TWINS.replace(b"checked = abs(scale)", b"checked = scale", 1)


def test_a_twin_in_the_same_class_is_not_taken_for_lines_that_upstream_changed() -> None:
    old = hunks.split(TWINS)
    (hunk,) = patching.hunks(TWINS, ONE_FIXED)
    left = hunks.split(TWINS.replace(b"checked = abs(scale)", b"checked = max(scale, 0)", 1))
    (match,) = hunks.locate(left, (hunk,))
    assert (match.state, match.offset) == ("before", 9)  # the guard has something to stop
    refused = hunks.doubtful(match, old)
    assert (refused.state, refused.cause, refused.places) == ("neither", "many", 2)


def test_lines_that_were_unique_are_followed_to_where_they_moved() -> None:
    base = TWINS.replace(b"        width = limit - 1\n", b"", 1)
    (hunk,) = patching.hunks(base, base.replace(b"abs(scale)", b"scale", 1))
    (match,) = hunks.locate(hunks.split(b"import a\n" + base), (hunk,))
    assert match.offset == 1
    assert hunks.doubtful(match, hunks.split(base)) == match
