"""Reading a patch: a commit in mail form, as `git format-patch` writes it.

Only what a typed patch may do is read: text changes of files that exist. Creating, deleting,
renaming or re-moding a file, a binary change or a quoted name is an error that says where such a
change belongs. Lines are bytes, so that nothing is decoded and re-encoded on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import PatchFormatError
from imagebuild.patching.metadata import is_tree_path

if TYPE_CHECKING:
    from pathlib import Path

_HUNK = re.compile(rb"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: ?(.*))?\n?$")
_GIT = re.compile(rb"^diff --git a/(\S+) b/(\S+)\n?$")
_INDEX = re.compile(rb"^index [0-9a-f]{4,64}\.\.[0-9a-f]{4,64}(?: 100(?:644|755))?\n$")
_SUBJECT = re.compile(rb"^Subject: (?:\[PATCH[^\]]*\] )?(.*(?:\n[ \t].*)*)", re.MULTILINE)
_NO_NEWLINE = b"\\ No newline at end of file"
_FORBIDDEN = {
    b"new file mode": "a patch changes files; a new file belongs in overlay/<line>/",
    b"deleted file mode": "a patch may not delete a file",
    b"old mode": "a patch may not change a file's mode",
    b"rename from": "a patch may not rename a file",
    b"copy from": "a patch may not copy a file",
    b"GIT binary patch": "a patch changes text only",
    b"Binary files": "a patch changes text only",
}


@dataclass(frozen=True)
class Hunk:
    """One place that a patch changes.

    Attributes:
        old_start: the first line in the file before, from 1; 0 for an empty file.
        lines: each with its mark: `b" "` context, `b"-"` taken out, `b"+"` put in.
        section: the text behind the second `@@`, for messages.
    """

    old_start: int
    lines: tuple[tuple[bytes, bytes], ...]
    section: bytes

    @property
    def pre(self) -> tuple[bytes, ...]:
        """The lines that must stand in the file before."""
        return tuple(text for mark, text in self.lines if mark != b"+")

    @property
    def post(self) -> tuple[bytes, ...]:
        """The lines that stand in the file after."""
        return tuple(text for mark, text in self.lines if mark != b"-")

    def text(self) -> str:
        """Return the hunk as a person reads it."""
        return "".join(
            (mark + line).decode("utf-8", "replace").rstrip("\n") + "\n"
            for mark, line in self.lines
        )


@dataclass(frozen=True)
class FileDiff:
    """What a patch does to one file.

    Attributes:
        path: the file's path in the tree.
        hunks: in the order of the file.
    """

    path: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class PatchText:
    """A patch file that has been read.

    Attributes:
        subject: the first line of its message.
        body: the rest of its message.
        files: what it changes.
        data: the patch file itself.
    """

    subject: str
    body: str
    files: tuple[FileDiff, ...]
    data: bytes = field(repr=False)

    @property
    def sha256(self) -> Sha256:
        """The digest of the patch file."""
        return sha256_bytes(self.data)


class _Reader:
    """The lines of one patch file, and where reading stands."""

    def __init__(self, data: bytes, path: Path) -> None:
        # At line feeds only: a carriage return is part of its line.
        self.lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
        self.path = path
        self.at = 0

    def peek(self) -> bytes | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def take(self) -> bytes | None:
        line = self.peek()
        self.at += 1
        return line

    def fail(self, expected: str, found: object) -> NoReturn:
        raise PatchFormatError(
            "the patch cannot be read",
            file=f"{self.path}:{min(self.at, len(self.lines)) or 1}",
            expected=expected,
            found=found,
            next_command=f"git log -p -- {self.path}",
        )


def _text(line: bytes | None) -> str:
    return "the end of the file" if line is None else line.decode("utf-8", "replace").strip()


def _hunk_line(reader: _Reader, missing: str) -> tuple[bytes, bytes]:
    """Return the next line of a hunk: its mark, and its text with its line's end."""
    line = reader.take()
    if line is None or not line.endswith(b"\n"):
        reader.fail(missing, "the end of the file")
    mark, text = line[:1], line[1:]
    if mark == b"\n":  # some mailers strip the mark of an empty context line
        mark, text = b" ", b"\n"
    if mark not in (b" ", b"+", b"-"):
        reader.fail("a line of the hunk", _text(line))
    following = reader.peek()
    if following is not None and following.startswith(_NO_NEWLINE):
        reader.take()
        text = text.removesuffix(b"\n")
    return mark, text


def _check_hunk(reader: _Reader, hunk: Hunk) -> None:
    if all(mark == b" " for mark, _ in hunk.lines):
        reader.fail("a hunk that changes something", "context only")
    if hunk.pre == hunk.post:
        reader.fail("a hunk that changes something", "the same lines taken out and put in")
    if any(not line.endswith(b"\n") for side in (hunk.pre, hunk.post) for line in side[:-1]):
        reader.fail("no lines after the one without a newline", "more lines of the file")
    if hunk.old_start > 1 and hunk.lines[0][0] != b" ":
        reader.fail("three lines of context (git format-patch --unified=3)", "a hunk without any")


def _hunk(reader: _Reader, header: bytes, delta: int) -> Hunk:
    """Return a hunk; `delta` is how many lines the hunks before it add to the file."""
    match = _HUNK.match(header)
    if match is None:
        reader.fail("@@ -START,COUNT +START,COUNT @@", _text(header))
    old_start, old_left = int(match[1]), int(match[2] or b"1")
    new_start, new_left = int(match[3]), int(match[4] or b"1")
    # A side without lines names the line before it.
    implied = old_start + delta + (not old_left) - (not new_left)
    if new_start != implied:
        reader.fail(f"+{implied} after the hunks before it", f"+{new_start}")
    lines: list[tuple[bytes, bytes]] = []
    while old_left or new_left:
        missing = f"{old_left} more old and {new_left} more new lines"
        mark, text = _hunk_line(reader, missing)
        old_left -= mark != b"+"
        new_left -= mark != b"-"
        if old_left < 0 or new_left < 0:
            reader.fail("as many lines as the hunk's header says", "more")
        lines.append((mark, text))
    hunk = Hunk(old_start, tuple(lines), (match[5] or b"").rstrip(b"\n"))
    _check_hunk(reader, hunk)
    return hunk


def _path(reader: _Reader, header: bytes) -> str:
    match = _GIT.match(header)
    if match is None or match[1] != match[2]:
        reader.fail(
            "diff --git a/PATH b/PATH, a plain UTF-8 path without spaces, the same twice",
            _text(header),
        )
    try:
        path = match[1].decode("utf-8")
    except UnicodeDecodeError:
        reader.fail("a path in UTF-8", match[1])
    if not is_tree_path(path):
        reader.fail("a path inside the tree", path)
    return path


def _file(reader: _Reader, header: bytes) -> FileDiff:
    path = _path(reader, header)
    while (line := reader.take()) is not None and not line.startswith(b"--- "):
        for start, rule in _FORBIDDEN.items():
            if line.startswith(start):
                reader.fail(rule, _text(line))
        if _INDEX.match(line) is None:
            reader.fail("index OLD..NEW of a regular file, --- or +++", _text(line))
    names = (line, reader.take())
    if names != (f"--- a/{path}\n".encode(), f"+++ b/{path}\n".encode()):
        reader.fail(f"--- a/{path} and +++ b/{path}", " and ".join(_text(name) for name in names))
    hunks: list[Hunk] = []
    delta = end = 0
    while (line := reader.peek()) is not None and line.startswith(b"@@ "):
        reader.take()
        hunk = _hunk(reader, line, delta)
        if hunks and hunk.old_start < end:
            reader.fail("hunks in the order of the file, none over another", _text(line))
        delta += len(hunk.post) - len(hunk.pre)
        end = hunk.old_start + len(hunk.pre)
        hunks.append(hunk)
    if not hunks:
        reader.fail("at least one hunk", _text(line))
    return FileDiff(path, tuple(hunks))


def _message(reader: _Reader, head: bytes) -> tuple[str, str]:
    if head.partition(b"\n")[0].endswith(b"\r"):
        reader.fail("line feeds", "carriage returns at the ends of the mail's own lines")
    match = _SUBJECT.search(head.partition(b"\n\n")[0])
    if not head.startswith(b"From ") or match is None:
        reader.fail("a commit in mail form (git format-patch)", "no From line and Subject")
    body = head.partition(b"\n\n")[2]
    body = re.split(rb"^---\s*$", body, maxsplit=1, flags=re.MULTILINE)[0]
    try:
        folded = match[1].decode("utf-8").split("\n")
        return " ".join(line.strip() for line in folded).strip(), body.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        reader.fail("a message in UTF-8", error)


def _signature(reader: _Reader) -> None:
    """Read git's version at the end of a mail; nothing may hide behind it."""
    version = reader.take()
    rest = [line for line in reader.lines[reader.at :] if line.strip()]
    if version is None or not re.fullmatch(rb"[0-9][0-9A-Za-z. ()-]*\n?", version) or rest:
        reader.fail("git's version, then the end", _text(rest[0] if rest else version))
    reader.at = len(reader.lines)


def parse(data: bytes, path: Path) -> PatchText:
    """Return the patch that `data` holds; `path` is for messages.

    Raises:
        PatchFormatError: if it is not a commit in mail form that changes text files only.
    """
    reader = _Reader(data, path)
    while (line := reader.peek()) is not None and not line.startswith(b"diff --git "):
        reader.take()
    subject, body = _message(reader, b"".join(reader.lines[: reader.at]))
    if not body:
        reader.fail("a message that says why the patch exists", "a subject only")
    files = []
    while (line := reader.take()) is not None:
        if line.startswith(b"diff --git "):
            files.append(_file(reader, line))
        elif line == b"-- \n":
            _signature(reader)
        elif line.strip():
            reader.fail("diff --git, or the end", _text(line))
    if not files:
        reader.fail("at least one changed file", "none")
    paths = [file.path for file in files]
    if len(set(paths)) != len(paths):
        reader.fail("each file once", ", ".join(paths))
    return PatchText(subject, body, tuple(files), data)
