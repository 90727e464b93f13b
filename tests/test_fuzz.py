"""Any bytes give a value or a BuildError; and what is made of a value gives it back."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from imagebuild import upstream
from imagebuild.errors import BuildError
from imagebuild.fetch.tree import MemoryTree
from imagebuild.patching import apply, checksums, diff, hunks, metadata, series
from imagebuild.patching.apply import Outcome
from imagebuild.patching.checksums import Checksums, LineChecksums, TargetPin
from imagebuild.patching.series import Series
from tests.support import patching, tiny
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = Path("file")
FAST = settings(
    deadline=None,  # no test depends on time
    derandomize=True,
    database=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
FEW = settings(FAST, max_examples=60)


def value_or_error(parse: Callable[[], object]) -> None:
    with contextlib.suppress(BuildError):
        parse()


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """Return good bytes with a piece taken out, doubled, or replaced."""

    def damage(start: int, length: int, new: bytes, twice: int) -> bytes:
        return good[:start] + new + good[start : start + length] * twice + good[start + length :]

    where = st.integers(0, len(good))
    pieces = st.binary(max_size=6) | st.sampled_from(
        [
            b"\n",
            b'"',
            b"[",
            b"=",
            b"\r\n",
            b"\0",
            b"\xff",
            b"9" * 5000,
            b"@@ -1 +1 @@\n",
            b"\\ No newline",
        ]
    )
    return st.builds(damage, where, st.integers(0, 40), pieces, st.integers(0, 2))


def around(good: bytes) -> st.SearchStrategy[bytes]:
    return damaged(good) | st.binary(max_size=60)


MAIL = tiny.mails((tiny.BOUNDS,))[tiny.BOUNDS.name]
LOCK = tiny.upstream_lock()
SIDECAR = tiny.metadata()
A, B = "a" * 64, "b" * 64
LINE = LineChecksums(
    version="1.2.3+sm120.1",
    sdist=A,
    patchset=A,
    patches={"one.patch": A, "one.toml": B},
    overlay={"vllm/new.py": A},
    targets=(TargetPin(patch="one", path="vllm/x.py", before=A, after=B),),
    produced={"vllm/x.py": B, "vllm/new.py": A},
)
CHECKSUMS = checksums.dump(Checksums(schema=1, lines={"v1.2.3": LINE}))


@FAST
@given(around(LOCK))
@example(b"schema = " + b"9" * 5000)
@example(b"a = " + b"[" * 5000)
@example(b"a" + b".a" * 5000 + b" = 1")
def test_any_upstream_lock_gives_a_value_or_an_error(data: bytes) -> None:
    value_or_error(lambda: upstream.parse(data, PATH))


@FAST
@given(around(CHECKSUMS))
def test_any_checksums_give_a_value_or_an_error(data: bytes) -> None:
    value_or_error(lambda: checksums.parse(data, PATH))


@FAST
@given(around(SIDECAR))
def test_any_metadata_give_a_value_or_an_error(data: bytes) -> None:
    value_or_error(lambda: metadata.parse(data, PATH))


@FAST
@given(around(b"# why\none\ntwo-three  # and so\n"))
def test_any_series_gives_a_value_or_an_error(data: bytes) -> None:
    value_or_error(lambda: series.parse_names(data, PATH))


@settings(FAST, max_examples=400)
@given(around(MAIL))
@example(patching.HEAD.replace(b"Do one thing", b" \t" * 50_000))
@example(b"From x\n" * 20_000)
@example(patching.HEAD + b"---\n" * 20_000)
def test_any_patch_gives_a_value_or_an_error(data: bytes) -> None:
    value_or_error(lambda: diff.parse(data, PATH))


@FAST
@given(damaged(MAIL))
def test_a_damaged_patch_is_refused_or_changes_what_it_says(data: bytes) -> None:
    """No damage makes the reader and `apply` stumble later."""
    try:
        text = diff.parse(data, PATH)
    except BuildError:
        return
    patch = dataclasses.replace(patching.patch("a", MAIL), text=text)
    apply.plan(Series("v1.2.3", (patch,), {}), MemoryTree(TREE))


words = st.text("abc", min_size=1, max_size=3)
names = st.lists(words, min_size=1, max_size=3).map("-".join)
digests = st.integers(0, 2**256 - 1).map("{:064x}".format)
paths = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(metadata.is_tree_path)


@st.composite
def line_checksums(draw: st.DrawFn) -> LineChecksums:
    patches = draw(st.lists(names, unique=True, max_size=4))
    overlay = draw(st.dictionaries(paths, digests, max_size=3))
    targets: list[TargetPin] = []
    state: dict[str, str] = {}
    for patch in patches:
        for path in draw(st.lists(paths, unique=True, max_size=2)):
            before = state.get(path) or draw(digests)
            after = draw(digests)
            assume(after != before)
            targets.append(TargetPin(patch=patch, path=path, before=before, after=after))
            state[path] = after
    files = {f"{name}{end}": draw(digests) for name in patches for end in (".patch", ".toml")}
    return LineChecksums(
        version="1.2.3+sm120.1",
        sdist=draw(digests),
        patchset=draw(digests),
        patches=files,
        overlay=overlay,
        targets=tuple(targets),
        produced=overlay | state,
    )


@FAST
@given(st.dictionaries(st.sampled_from(["v1.2.3", "v0.1.0", "v10.0.0"]), line_checksums()))
def test_checksums_that_are_written_are_read_back(lines: dict[str, LineChecksums]) -> None:
    lock = Checksums(schema=1, lines=lines)
    data = checksums.dump(lock)
    assert checksums.parse(data, PATH) == lock
    assert checksums.dump(checksums.parse(data, PATH)) == data


@FAST
@given(st.lists(names, unique=True))
def test_a_written_series_is_read_back(listed: list[str]) -> None:
    data = "".join(f"{name}\n" for name in listed).encode()
    assert series.parse_names(data, PATH) == tuple(listed)


@FAST
@given(st.binary())
def test_splitting_loses_nothing(data: bytes) -> None:
    lines = hunks.split(data)
    assert b"".join(lines) == data
    assert all(line.endswith(b"\n") for line in lines[:-1])


def contents(words: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return files of lines, with a final newline and without."""
    ends = st.sampled_from([b"", b"\n"])
    return st.builds(lambda lines, end: b"\n".join(lines) + end, st.lists(words, max_size=24), ends)


few_words = contents(st.sampled_from([b"", b"a", b"b", b"def f():", b"    x", b"    x\r"]))
"""Files that repeat themselves a lot, so that hunks are often ambiguous."""


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return a file of lines that are all different, and the same with some lines edited."""
    count = draw(st.integers(1, 40))
    old = [b"line %d\n" % number for number in range(count)]
    new = list(old)
    for number in draw(st.sets(st.integers(0, count - 1), max_size=4)):
        new[number] = draw(st.sampled_from([b"", b"new %d\n" % number, b"one\ntwo %d\n" % number]))
    cut = draw(st.booleans())
    before, after = b"".join(old), b"".join(new)
    return (before[:-1], after[:-1]) if cut and after else (before, after)


def by_difflib(before: bytes, after: bytes) -> bytes:
    """Return the diff that Python's own library makes, in git's form; empty where it cannot."""
    old, new = hunks.split(before), hunks.split(after)
    body = b""
    for line in difflib.diff_bytes(difflib.unified_diff, old, new, lineterm=b"\n"):
        body += line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
    path = patching.FILE.encode()
    head = b"diff --git a/%b b/%b\nindex 1111111..2222222 100644\n" % (path, path)
    names = b"--- \n+++ \n"
    return head + body.replace(names, b"--- a/%b\n+++ b/%b\n" % (path, path), 1) if body else b""


def plan(difference: bytes, content: bytes) -> apply.Plan:
    patch = patching.patch("a", patching.HEAD + difference)
    return apply.plan(Series("v1.2.3", (patch,), {}), MemoryTree({patching.FILE: content}))


def outcome(made: apply.Plan) -> Outcome:
    return made.reports[0].outcome


@FEW
@given(edited())
def test_what_git_says_about_different_lines_applies_and_gives_the_new_file(
    pair: tuple[bytes, bytes],
) -> None:
    before, after = pair
    assume(before != after)
    made = plan(patching.difference(before, after), before)
    assert outcome(made) is Outcome.APPLIES
    assert made.after == {patching.FILE: after}
    again = plan(patching.difference(before, after), after)
    assert outcome(again) is Outcome.ALREADY_APPLIED


@FAST
@given(edited())
def test_what_difflib_says_about_different_lines_applies_and_gives_the_new_file(
    pair: tuple[bytes, bytes],
) -> None:
    before, after = pair
    assume(before != after)
    made = plan(by_difflib(before, after), before)
    assert outcome(made) is Outcome.APPLIES
    assert made.after == {patching.FILE: after}


def assert_never_wrong(difference: bytes, before: bytes, after: bytes) -> None:
    made = plan(difference, before)
    assert outcome(made) in (Outcome.APPLIES, Outcome.DRIFTED)
    if outcome(made) is Outcome.APPLIES:
        assert made.after == {patching.FILE: after}
    again = plan(difference, after)
    assert outcome(again) in (Outcome.ALREADY_APPLIED, Outcome.DRIFTED)


@FEW
@given(few_words, few_words)
def test_what_git_says_about_repetitive_files_is_refused_or_gives_the_new_file(
    before: bytes, after: bytes
) -> None:
    assume(before != after)
    assert_never_wrong(patching.difference(before, after), before, after)


@FAST
@given(few_words, few_words)
def test_what_difflib_says_about_repetitive_files_is_refused_or_gives_the_new_file(
    before: bytes, after: bytes
) -> None:
    difference = by_difflib(before, after)
    assume(difference)
    assert_never_wrong(difference, before, after)


@FAST
@given(edited(), few_words, few_words)
def test_an_upstream_that_grew_at_both_ends_gets_the_same_change_or_none(
    pair: tuple[bytes, bytes], head: bytes, tail: bytes
) -> None:
    before, after = pair
    assume(before != after and before.endswith(b"\n") and after.endswith(b"\n"))
    head = head + b"\n" if head and not head.endswith(b"\n") else head
    made = plan(by_difflib(before, after), head + before + tail)
    assert outcome(made) in (Outcome.APPLIES, Outcome.DRIFTED)
    if outcome(made) is Outcome.APPLIES:
        assert made.after == {patching.FILE: head + after + tail}


@FAST
@given(few_words, few_words, few_words)
def test_matches_are_in_order_and_never_overlap(before: bytes, after: bytes, other: bytes) -> None:
    difference = by_difflib(before, after)
    assume(difference)
    lines = hunks.split(other)
    end = 0
    for match in hunks.locate(lines, patching.text(difference).files[0].hunks):
        if match.state == "neither":
            continue
        block = match.hunk.pre if match.state == "before" else match.hunk.post
        assert match.at >= end
        assert tuple(lines[match.at : match.at + len(block)]) == block
        end = match.at + len(block)
