"""Reading a source distribution (`.tar.gz`) as untrusted input, in one pass.

What no honest sdist holds is refused, not repaired. Names: absolute, `..`, `.` or empty parts, a
`.git` folder, control characters, bytes that are not UTF-8, parts longer than file systems allow.
Kinds: everything but regular files and folders. That includes links that stay inside the archive:
vLLM's sdists have none, and every unpacker bug of note began with one. Twice the same name, names
that differ only in case, and a file that is also a folder are refused as well. Sizes and the number
of members are bounded, counted on the unpacked stream, so a compression bomb ends early. An archive
must end with an empty block (POSIX pax, "ustar Interchange Format"), nothing but zeros after it,
and an intact gzip trailer: otherwise it is cut short or damaged.
"""

from __future__ import annotations

import re
import tarfile
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from imagebuild.digest import Sha256
from imagebuild.errors import SourceError
from imagebuild.fetch.tarstream import HashingFile, Stream, refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""What Python makes of such bytes (PEP 383)."""
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_LONGEST_PART = 255
_LONGEST_PATH = 1024


@dataclass(frozen=True)
class Limits:
    """What an archive may hold at most; several times what any release of vLLM holds.

    Attributes:
        members: files and folders.
        member: bytes of one file.
        total: bytes of the whole unpacked archive.
    """

    members: int = 100_000
    member: int = 256 << 20
    total: int = 2 << 30


@dataclass(frozen=True)
class Member:
    """One regular file of an archive.

    Attributes:
        path: its path under the archive's one top folder, `/`-separated.
        size: its size in bytes.
        executable: whether its owner may execute it.
    """

    path: str
    size: int
    executable: bool


class SourceArchive:
    """A `.tar.gz` with one top folder, read front to back. A context manager.

    Attributes:
        path: the archive.
        top: the name of the top folder; empty until the first member is read.
    """

    def __init__(self, path: Path, limits: Limits = Limits()) -> None:
        """Open the archive.

        Raises:
            SourceError: if it cannot be opened.
        """
        self.path = path
        self.top = ""
        self._limits = limits
        try:
            self._packed = HashingFile(path.open("rb"))
        except OSError as error:
            raise SourceError(
                "the archive cannot be read",
                file=path,
                expected="a readable file",
                found=error.strerror,
                next_command=f"ls -l {path}",
            ) from error
        self._stream = Stream(self._packed, path, limits.total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._packed.close()

    @property
    def sha256(self) -> Sha256:
        """The digest of the packed file; whole once all members were read."""
        return Sha256(self._packed.digest.hexdigest())

    @property
    def consumed(self) -> int:
        """Bytes of the packed file that were read so far."""
        return self._packed.consumed

    def members(self) -> Iterator[tuple[Member, Iterator[bytes]]]:
        """Yield each regular file and its content in pieces of at most 256 KiB.

        Content that is not read before the next member is skipped.

        Raises:
            ArchiveError: if the archive is damaged, cut short, too big, or holds what it must not.
        """
        names = _Names(self.path)
        for count, info in enumerate(self._headers()):
            if count >= self._limits.members:
                raise refused(self.path, info.name, f"at most {self._limits.members} members")
            relative = self._relative(info)
            if info.isdir():
                names.add(relative, folder=True)
                continue
            names.add(relative, folder=False)
            if not 0 <= info.size <= self._limits.member:
                limit = f"at most {self._limits.member} bytes"
                raise refused(self.path, info.name, limit, f"{info.size} bytes")
            content = self._stream.content(info.size)
            yield Member(relative, info.size, bool(info.mode & 0o100)), content
            for _ in content:
                pass
        self._stream.finish()
        self._packed.drain()

    def _headers(self) -> Iterator[tarfile.TarInfo]:
        stream = self._stream
        try:
            tar = tarfile.TarFile(fileobj=stream, encoding="utf-8", errors="surrogateescape")
            while (info := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep every header
                stream.member = info.name
                yield info
        except (tarfile.TarError, ValueError, ArithmeticError, RecursionError) as error:
            found = f"{type(error).__name__}: {error}"[:200]
            raise refused(self.path, stream.after, "a tar header", found) from error

    def _relative(self, info: tarfile.TarInfo) -> str:
        """Return the member's path under the top folder; empty for the top folder itself."""
        if info.type not in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE} or info.issparse():
            kinds = "only regular files and folders"
            raise refused(self.path, info.name, kinds, _kind(info))
        problem = _problem(info.name)
        if problem:
            raise refused(self.path, info.name, "a plain relative path in UTF-8", problem)
        top, _, relative = info.name.partition("/")
        self.top = self.top or top
        if top != self.top or not (relative or info.isdir()):
            raise refused(self.path, info.name, f"everything in the one folder {self.top}/")
        return relative


def _kind(info: tarfile.TarInfo) -> str:
    kinds = {
        tarfile.LNKTYPE: f"a hard link to {info.linkname}",
        tarfile.SYMTYPE: f"a symbolic link to {info.linkname}",
        tarfile.CHRTYPE: "a character device",
        tarfile.BLKTYPE: "a block device",
        tarfile.FIFOTYPE: "a named pipe",
    }
    return ascii(kinds.get(info.type, f"type {info.type!r} or a sparse file"))[1:-1]


def _problem(name: str) -> str | None:
    """Return what is wrong with a member's name, or None."""
    parts = name.split("/")
    raw = [part.encode("utf-8", "surrogateescape") for part in parts]
    checks = (
        (_NOT_UTF8.search(name), "bytes that are not UTF-8"),
        (name.startswith("/"), "an absolute path"),
        (not {"..", ".", ""}.isdisjoint(parts), "a part that is empty, `.` or `..`"),
        (".git" in name.lower().split("/"), "a .git folder"),
        (_CONTROL.search(name), "a control character"),
        (max(map(len, raw)) > _LONGEST_PART, f"a part longer than {_LONGEST_PART} bytes"),
        (len(name) > _LONGEST_PATH, f"a path longer than {_LONGEST_PATH} characters"),
    )
    return next((problem for wrong, problem in checks if wrong), None)


@dataclass
class _Names:
    """The names seen so far; refuses what would land on the same place twice."""

    archive: Path
    files: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, *, folder: bool) -> None:
        """Take note of a member.

        Raises:
            ArchiveError: if it collides with an earlier one.
        """
        if not folder:
            self._check(path, path, self.files, "a name that comes once")
            self._check(path, path, self.folders, "a file or a folder, not both")
            self.files[_key(path)] = path
            path = path.rpartition("/")[0]
        whole = path
        while path and self.folders.get(_key(path)) != path:
            self._check(whole, path, self.files, "a file or a folder, not both")
            self._check(whole, path, self.folders, "names that differ in more than case")
            self.folders[_key(path)] = path
            path = path.rpartition("/")[0]

    def _check(self, whole: str, path: str, taken: dict[str, str], expected: str) -> None:
        if (other := taken.get(_key(path))) is not None:
            raise refused(self.archive, whole, expected, f"{other} is there already")


def _key(path: str) -> str:
    return (
        path if path.isascii() and path.islower() else unicodedata.normalize("NFC", path.casefold())
    )
