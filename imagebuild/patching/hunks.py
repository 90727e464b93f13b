"""Finding and replacing a patch's hunks in a file, without fuzz.

A hunk is found where its lines stand exactly, byte for byte: at the expected place, or at the only
other place in the file. The ends of the file and the heading behind the second `@@` are context,
too: a hunk without lines of context before or after its change stays at that end of the file, and
lines that stand in another function than the patch speaks of are not the patch's lines. Nothing is
ever placed by similarity, and nothing that could be taken for either state is placed at all.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuild.patching.diff import Hunk

State = Literal["before", "after", "neither"]
Cause = Literal["found", "absent", "many", "both", "section"]
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
# What git takes for a heading where no attribute says otherwise: xdiff/xemit.c, def_ff.
_HEADING = re.compile(rb"[A-Za-z_$]")
_HEADING_BYTES = 80


def split(data: bytes) -> list[bytes]:
    """Return the lines of `data` with their line feeds; carriage returns stay in their lines."""
    return _LINES.findall(data)


@dataclass(frozen=True)
class Match:
    """Where one hunk stands.

    Attributes:
        hunk: the hunk.
        state: whether its old lines, its new lines or neither were found.
        at: the index of its first line in the file, from 0; for `neither` the place that comes
            nearest to it.
        offset: how many lines away from the expected place it was found.
        places: how often its lines stand in the file, where that is why it has no place.
        cause: why it has no place: its lines are `absent`, stand in `many` places, are `both` old
            and new, or stand below another heading (`section`).
    """

    hunk: Hunk
    state: State
    at: int
    offset: int = 0
    places: int = 0
    cause: Cause = "found"


@dataclass
class Lines:
    """A file's lines while a series is applied to it.

    Attributes:
        lines: the present lines.
        writers: for each line, the patch that wrote it; None for upstream.
    """

    lines: list[bytes]
    writers: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.writers:
            self.writers = [None] * len(self.lines)

    @property
    def data(self) -> bytes:
        """The whole content."""
        return b"".join(self.lines)


class _Index:
    """Where each line of a file stands."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = list(lines)
        self.where: dict[bytes, list[int]] = {}
        for number, line in enumerate(self.lines):
            self.where.setdefault(line, []).append(number)

    def places(self, hunk: Hunk, block: tuple[bytes, ...], start: int) -> list[int]:
        """Return the indices from `start` on where `block` stands whole."""
        if not block:
            return [] if self.lines else [0]
        wanted, size = list(block), len(block)
        rarest = min(range(size), key=lambda i: len(self.where.get(block[i], ())))
        found = (number - rarest for number in self.where.get(block[rarest], ()))
        return [
            at
            for at in found
            if at >= start
            and self.lines[at : at + size] == wanted
            and (hunk.lines[0][0] == b" " or at == 0)
            and (hunk.lines[-1][0] == b" " or at + size == len(self.lines))
        ]

    def same_section(self, hunk: Hunk, at: int) -> bool:
        """Return whether the lines at index `at` stand below the heading that the hunk names."""
        if not hunk.section or any(_HEADING.match(line) for line in hunk.pre):
            return True
        above = bisect.bisect_left(self.headings, at)
        heading = self.lines[self.headings[above - 1]] if above else b""
        return heading[:_HEADING_BYTES].rstrip() == hunk.section

    @cached_property
    def headings(self) -> list[int]:
        """The indices of the lines that git takes for headings."""
        return [number for number, line in enumerate(self.lines) if _HEADING.match(line)]


def _find(index: _Index, hunk: Hunk, start: int, expected: int) -> Match:
    sides: tuple[tuple[State, tuple[bytes, ...]], ...] = (
        ("before", hunk.pre),
        ("after", hunk.post),
    )
    standing = [(state, at) for state, block in sides for at in index.places(hunk, block, start)]
    sure = [
        (state, at)
        for state, at in standing
        if standing == [(state, expected)] or index.same_section(hunk, at)
    ]
    exact = [state for state, at in sure if at == expected]
    match exact, sure:
        case [state], _:
            return Match(hunk, state, expected)
        case [_, _], _:
            return Match(hunk, "neither", expected, cause="both")
        case _, [(state, at)]:
            return Match(hunk, state, at, at - expected)
        case _, []:
            at = standing[0][1] if standing else max(expected, 0)
            return Match(hunk, "neither", at, cause="section" if standing else "absent")
        case _:
            return Match(hunk, "neither", sure[0][1], places=len(sure), cause="many")


def locate(lines: Sequence[bytes], hunks: Sequence[Hunk]) -> tuple[Match, ...]:
    """Return where each hunk stands in `lines`, in order and without overlaps."""
    index = _Index(lines)
    found: list[Match] = []
    start = shift = 0
    for hunk in hunks:
        expected = max(hunk.old_start - 1, 0) + shift
        match = _find(index, hunk, start, expected)
        found.append(match)
        if match.state == "neither":
            continue
        shift += match.offset
        start = match.at + len(hunk.pre if match.state == "before" else hunk.post)
        if match.state == "after":
            shift += len(hunk.post) - len(hunk.pre)
    return tuple(found)


def doubtful(match: Match, base: Sequence[bytes]) -> Match:
    """Return `match`, or none in its place if it moved and its lines were not unique before.

    Two methods of one class can hold the same lines. If upstream changes the one that a patch
    speaks of, the other one is all that is left, and it must not be taken for it.

    Args:
        match: where a hunk stands in some release.
        base: the file's lines in the release that the patch was written for.
    """
    if match.state != "before" or match.offset == 0:
        return match
    places = len(_Index(base).places(match.hunk, match.hunk.pre, 0))
    if places <= 1:
        return match
    return Match(match.hunk, "neither", match.at, places=places, cause="many")


def overwritten(file: Lines, matches: Sequence[Match]) -> tuple[str, int] | None:
    """Return the other patch whose line one of the matches takes out, and the line's number."""
    for match in matches:
        at = match.at
        for mark, _ in match.hunk.lines:
            if mark == b"+":
                continue
            writer = file.writers[at]
            if mark == b"-" and writer is not None:
                return writer, at + 1
            at += 1
    return None


def replace(file: Lines, matches: Sequence[Match], writer: str) -> Lines:
    """Return `file` with every match's old lines replaced by its new ones.

    Args:
        file: the file before; not changed.
        matches: all in state `before`, in order.
        writer: the patch's name, noted on each line that it puts in.
    """
    lines: list[bytes] = []
    writers: list[str | None] = []
    at = 0
    for match in matches:
        lines += file.lines[at : match.at]
        writers += file.writers[at : match.at]
        at = match.at
        for mark, text in match.hunk.lines:
            if mark == b"+":
                lines.append(text)
                writers.append(writer)
                continue
            if mark == b" ":
                lines.append(file.lines[at])
                writers.append(file.writers[at])
            at += 1
    return Lines(lines + file.lines[at:], writers + file.writers[at:])
