"""Why a patch does not apply, in lines that a maintainer can act on."""

from __future__ import annotations

import difflib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from imagebuild.patching import hunks
from imagebuild.patching.apply import FileState, Outcome, no_place
from imagebuild.patching.diff import FileDiff

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.apply import FileReport, Report
    from imagebuild.patching.diff import Hunk

_CONTEXT = 3
_LONGEST = 30  # lines of one side of one change; who wants more looks at the release
_TELLING = 12  # a line shorter than this, such as `return None`, says nothing of where code went


def next_command(report: Report, line: str) -> str:
    """Return what to run after a failing outcome."""
    name = report.patch.name
    match report.outcome:
        case Outcome.UPSTREAMED if all(file.state is FileState.PENDING for file in report.files):
            return (
                f"$EDITOR patches/{line}/{name}.toml   (its drop-when holds where every line that "
                "the patch replaces still stands; or retire the patch)"
            )
        case Outcome.UPSTREAMED:
            return (
                f"python build.py drop {name} --line {line}   (or with --release X, which has it)"
            )
        case Outcome.PARTIAL:
            return f"python build.py build {line}   (from the sdist, which nobody has touched)"
        case _:
            return f"python build.py edit {line}"


def _show(lines: Sequence[bytes], start: int, stop: int) -> str:
    start, stop = max(start, 0), min(stop, len(lines))
    return "".join(
        f"  {number + 1:>6} {lines[number].decode('utf-8', 'replace').rstrip()}\n"
        for number in range(start, stop)
    )


def nearest(lines: Sequence[bytes], hunk: Hunk) -> int | None:
    """Return the index at which most of the old lines that tell something stand, or None."""
    where: dict[bytes, list[int]] = {}
    for number, line in enumerate(lines):
        where.setdefault(line, []).append(number)
    votes: dict[int, float] = {}
    telling = any(len(line.strip()) >= _TELLING for line in hunk.pre)
    for index, line in enumerate(hunk.pre):
        places = where.get(line, []) if len(line.strip()) >= _TELLING or not telling else []
        for place in places:
            votes[place - index] = votes.get(place - index, 0) + len(line.strip()) / len(places)
    best = max(votes, key=lambda start: (votes[start], -start), default=None)
    return best if best is not None and votes[best] > 0 else None


def _side(mark: bytes, lines: Sequence[bytes]) -> list[bytes]:
    shown = [mark + line for line in lines[:_LONGEST]]
    more = len(lines) - _LONGEST
    return [*shown, mark + b"... %d more lines" % more] if more > 0 else shown


def _history(base: bytes, now: bytes, start: int, stop: int) -> str:
    """Return what upstream changed at lines `start` to `stop` of the older content."""
    old, new = hunks.split(base), hunks.split(now)
    opcodes = difflib.SequenceMatcher(None, old, new).get_opcodes()
    touching = [
        number
        for number, (tag, i1, i2, _, _) in enumerate(opcodes)
        if tag != "equal" and i1 <= stop and i2 >= start
    ]
    if not touching:
        return ""
    near = opcodes[touching[0] : touching[-1] + 1]
    first, last = near[0][1], near[-1][2]
    out = [b" " + line for line in old[max(first - _CONTEXT, 0) : first]]
    for tag, i1, i2, j1, j2 in near:
        if tag == "equal":
            out += [b" " + line for line in old[i1:i2]]
        else:
            out += _side(b"-", old[i1:i2]) + _side(b"+", new[j1:j2])
    out += [b" " + line for line in old[last : last + _CONTEXT]]
    return "".join(f"  {line.decode('utf-8', 'replace').rstrip()}\n" for line in out)


def _drifted(file: FileReport, change: FileDiff, tree: Tree, base: Tree | None) -> Iterator[str]:
    content = tree.read(file.path) or b""
    lines = hunks.split(content)
    before = None if base is None else base.read(file.path)
    for number, match in enumerate(file.matches, 1):
        if match.state != "neither":
            continue
        yield f"{file.path}, hunk {number} of {len(change.hunks)} wants to make this change:\n"
        yield "".join(f"  {line}\n" for line in match.hunk.text().splitlines())
        if match.cause != "absent":
            yield f"Its lines {no_place(match)}.\n"
            continue
        if hunks.locate(lines, (match.hunk,))[0].state == "before":
            yield f"Its lines stand in {tree.label}: an earlier patch of the series changes them.\n"
            continue
        at = nearest(lines, match.hunk)
        if at is None:
            yield f"Its lines are nowhere in this file of {tree.label} any more.\n"
            yield from _elsewhere(FileDiff(file.path, (match.hunk,)), tree)
        else:
            yield f"{tree.label} has there now:\n"
            yield _show(lines, at - 1, at + len(match.hunk.pre) + _CONTEXT)
        if before is not None and before != content:
            start = match.hunk.old_start - 1
            changed = _history(before, content, start, start + len(match.hunk.pre))
            yield f"Upstream changed between {base.label if base else ''} and {tree.label}:\n"
            yield changed or "  nothing near these lines\n"


def find_moved(change: FileDiff, tree: Tree) -> list[tuple[str, int, float]]:
    """Return where the content that a patch looks for went.

    Args:
        change: what the patch wants to do to the file that has lost it.
        tree: the tree to search, all of it.

    Returns:
        Up to three other files of the same kind, best first: path, line (from 1), and the share of
        the patch's telling lines that stand there.
    """
    wanted = {line for hunk in change.hunks for line in hunk.pre if len(line.strip()) >= _TELLING}
    if not wanted:
        return []
    suffix = PurePosixPath(change.path).suffix
    found = []
    for path in tree.files():
        if path == change.path or PurePosixPath(path).suffix != suffix:
            continue
        content = tree.read(path) or b""
        if not any(line in content for line in wanted):
            continue
        lines = hunks.split(content)
        share = len(wanted.intersection(lines)) / len(wanted)
        if share:
            first = next(number for number, line in enumerate(lines, 1) if line in wanted)
            found.append((path, first, share))
    return sorted(found, key=lambda item: (-item[2], item[0]))[:3]


def _elsewhere(change: FileDiff, tree: Tree) -> Iterator[str]:
    moved = find_moved(change, tree)
    if not moved:
        yield f"They are nowhere else in {tree.label}.\n"
        return
    yield "The lines that the patch looks for stand in:\n"
    for path, line, share in moved:
        yield f"  {path}:{line} ({share:.0%} of them)\n"


def explain(report: Report, tree: Tree, base: Tree | None = None) -> str:
    """Return a failing outcome's reasons, several lines; empty where the reason says all.

    Args:
        report: the patch on `tree`.
        tree: the tree it failed on.
        base: the release that the patch was written for, where it is another one and at hand.
    """
    parts: list[str] = []
    changes = {change.path: change for change in report.patch.text.files}
    for file in report.files:
        if file.state is FileState.FOREIGN and report.outcome is Outcome.DRIFTED:
            parts += _drifted(file, changes[file.path], tree, base)
        elif file.state is FileState.MISSING and report.outcome is Outcome.TARGET_GONE:
            parts.append(f"{file.path} is gone.\n")
            parts += _elsewhere(changes[file.path], tree)
        elif file.state is FileState.HALF:
            for number, match in enumerate(file.matches, 1):
                parts.append(f"{file.path}, hunk {number}: the lines {match.state} it are there\n")
    return "".join(parts)
