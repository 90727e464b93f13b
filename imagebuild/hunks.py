"""Finding and replacing a patch's hunks in a file, without fuzz.

A hunk is found where its lines stand exactly, byte for byte, at the expected place or at the only
other place in the file. Nothing is ever placed by similarity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuild.diff import Hunk

State = Literal["before", "after", "neither"]
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")


def split(data: bytes) -> list[bytes]:
    """Return the lines of `data` with their line feeds; carriage returns stay in their lines."""
    return _LINES.findall(data)


@dataclass(frozen=True)
class Match:
    """Where one hunk stands.

    Attributes:
        hunk: the hunk.
        state: whether its old lines, its new lines or neither were found.
        at: the index of its first line in the file, from 0; the expected one for `neither`.
        offset: how many lines away from the expected place it was found.
        places: how often its lines stand in the file, where that is why it has no place.
    """

    hunk: Hunk
    state: State
    at: int
    offset: int = 0
    places: int = 0


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


def _places(lines: Sequence[bytes], block: tuple[bytes, ...], start: int) -> list[int]:
    if not block:
        return []
    size, first = len(block), block[0]
    return [
        i
        for i in range(start, len(lines) - size + 1)
        if lines[i] == first and tuple(lines[i : i + size]) == block
    ]


def _find(lines: Sequence[bytes], hunk: Hunk, start: int, expected: int) -> Match:
    # The shorter side can be contained in the longer one, so the longer one is looked for first.
    sides: list[tuple[State, tuple[bytes, ...]]] = [("before", hunk.pre), ("after", hunk.post)]
    sides.sort(key=lambda side: -len(side[1]))
    many = 0
    for state, block in sides:
        if not block and not lines:
            return Match(hunk, state, 0)
        places = _places(lines, block, start)
        if expected in places:
            return Match(hunk, state, expected)
        if len(places) == 1:
            return Match(hunk, state, places[0], places[0] - expected)
        many = max(many, len(places))
    return Match(hunk, "neither", max(expected, 0), places=many)


def locate(lines: Sequence[bytes], hunks: Sequence[Hunk]) -> tuple[Match, ...]:
    """Return where each hunk stands in `lines`, in order and without overlaps."""
    found: list[Match] = []
    start = shift = 0
    for hunk in hunks:
        expected = max(hunk.old_start - 1, 0) + shift
        match = _find(lines, hunk, start, expected)
        found.append(match)
        if match.state == "neither":
            continue
        shift += match.offset
        start = match.at + len(hunk.pre if match.state == "before" else hunk.post)
        if match.state == "after":
            shift += len(hunk.post) - len(hunk.pre)
    return tuple(found)


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
