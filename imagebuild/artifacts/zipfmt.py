"""Zip archives read: members' compressed bytes as they are, and their content."""

from __future__ import annotations

import contextlib
import os
import zlib
from typing import IO, TYPE_CHECKING, NoReturn

from imagebuild.artifacts.zipdir import STORED, Directory, Member, bad_zip
from imagebuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK = 1 << 20


class Archive:
    """An open archive whose directory has been checked.

    Attributes:
        path: the file.
        members: its members by name, in the order of the central directory.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Read the directory of `file`.

        Raises:
            ArchiveError: if the archive is damaged or does what no honest wheel does.
        """
        self.path = path
        self.members = Directory(path, file).members
        self._file = file

    def raw(self, member: Member) -> Iterator[bytes]:
        """Yield the member's bytes as they are in the archive, in pieces of at most 1 MiB."""
        position, left = member.start, member.compressed
        while left:
            piece = os.pread(self._file.fileno(), min(left, CHUNK), position)
            if not piece:
                self._bad("the archive ends too early", f"{left} bytes more", "its end")
            position += len(piece)
            left -= len(piece)
            yield piece

    def content(self, member: Member) -> Iterator[bytes]:
        """Yield the member's content in pieces of at most 1 MiB.

        Raises:
            ArchiveError: if it is not deflate data, or size or CRC-32 are not the declared ones.
        """
        crc = size = 0
        for piece in self.raw(member) if member.method == STORED else self._inflate(member):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
            if size > member.size:
                self._bad(f"{member.name} is larger than declared", member.size, f"over {size}")
            yield piece
        if (crc, size) != (member.crc, member.size):
            expected = f"{member.size} bytes, CRC-32 {member.crc:08x}"
            self._bad(f"{member.name} is damaged", expected, f"{size} bytes, CRC-32 {crc:08x}")

    def read(self, member: Member, limit: int = 64 << 20) -> bytes:
        """Return the member's whole content.

        Raises:
            ArchiveError: if it is damaged or larger than `limit`.
        """
        if member.size > limit:
            self._bad(f"{member.name} is too large", f"at most {limit} bytes", member.size)
        return b"".join(self.content(member))

    def _inflate(self, member: Member) -> Iterator[bytes]:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for piece in self.raw(member):
                data = piece
                while data and not inflater.eof:
                    yield inflater.decompress(data, CHUNK)
                    data = inflater.unconsumed_tail
            while not inflater.eof:
                rest = inflater.decompress(inflater.unconsumed_tail, CHUNK)
                if not rest:
                    break
                yield rest
        except zlib.error as error:
            self._bad(f"{member.name} is not deflate data", "a deflate stream", error)
        if not inflater.eof or inflater.unused_data:
            self._bad(f"{member.name} does not end as a deflate stream", "its end", "other bytes")

    def _bad(self, summary: str, expected: object, found: object) -> NoReturn:
        raise bad_zip(self.path, summary, expected, found)


@contextlib.contextmanager
def open_zip(path: Path) -> Iterator[Archive]:
    """Open an archive and check its directory.

    Raises:
        ArchiveError: if it cannot be read, is damaged, or does what no honest wheel does.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ArchiveError(
            "the archive cannot be read",
            file=path,
            expected="a readable zip archive",
            found=error.strerror or type(error).__name__,
            next_command=f"ls -l {path}",
        ) from error
    with file:
        yield Archive(path, file)
