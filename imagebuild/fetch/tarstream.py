"""The stream under a `.tar.gz`: hashed while packed, bounded while unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
from typing import IO, TYPE_CHECKING

from imagebuild.errors import ArchiveError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

    from typing_extensions import Buffer

_CHUNK = 1 << 18
_BLOCK = 512
_HEADER = 1 << 16
"""Bytes; the longest extended header that is read. An honest one holds a path and a time."""
_SHOWN = 1024


def refused(archive: Path, member: str, expected: str, found: str | None = None) -> ArchiveError:
    """Return the error for a member that is not what an sdist's member must be."""
    shown = member.encode("utf-8", "backslashreplace").decode()
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shown)
    return ArchiveError(
        "the archive is damaged or holds what no source archive holds",
        file=f"{archive}: {shown[:_SHOWN]}",
        expected=expected,
        found=found or shown[:_SHOWN],
        next_command=f"rm {archive}  (then build again, which fetches it anew)",
    )


class HashingFile(io.RawIOBase):
    """A file that hashes what is read from it.

    Attributes:
        digest: the running hash.
        consumed: bytes read so far.
    """

    def __init__(self, file: BufferedReader) -> None:
        """Read from `file`, which is closed together with this one."""
        self._file = file
        self.digest = hashlib.sha256()
        self.consumed = 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer` from the file; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        count = self._file.readinto(view)
        self.digest.update(view[:count])
        self.consumed += count
        return count

    def drain(self) -> None:
        """Read what is left."""
        while self.read(_CHUNK):
            pass

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class Stream(io.RawIOBase):
    """The unpacked bytes for `tarfile`: only forward, bounded, and an early end is an error.

    Every method that reads raises ArchiveError on damage, an early end or too much data.

    Attributes:
        member: the name of the member that was read last.
    """

    def __init__(self, packed: HashingFile, archive: Path, total: int) -> None:
        """Unpack `packed`, the file of `archive`, up to `total` bytes."""
        from isal import igzip  # noqa: PLC0415  (kept out of start-up)

        self._raw: IO[bytes] = igzip.open(packed)  # type: ignore[no-untyped-call]  # no annotations
        self._archive = archive
        self._total = total
        self._position = 0
        self._last = b""
        self.member = ""

    @property
    def after(self) -> str:
        """Where the stream stands, for messages."""
        return f"(after {self.member})" if self.member else "(start)"

    def readable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return the position in the unpacked stream."""
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Skip forward to `offset`; return it."""
        if whence != 0 or offset < self._position:
            raise refused(self._archive, self.after, "a tar archive read front to back")
        for _ in self.content(offset - self._position, padded=False):
            pass
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Return exactly `size` bytes of a header."""
        if not 0 <= size <= _HEADER:
            raise refused(self._archive, self.after, f"headers of at most {_HEADER} bytes")
        self._last = self._exactly(size)
        return self._last

    def content(self, size: int, *, padded: bool = True) -> Iterator[bytes]:
        """Yield the next `size` bytes, and skip what fills up their last block."""
        rest = size
        while rest:
            chunk = self._exactly(min(rest, _CHUNK))
            rest -= len(chunk)
            yield chunk
        if padded:
            self._exactly(-size % _BLOCK)

    def finish(self) -> None:
        """Check that the archive ends here as an archive ends."""
        if len(self._last) != _BLOCK or any(self._last):
            raise refused(self._archive, self.after, "a member's header", "a damaged header")
        while chunk := self._some(_CHUNK):
            if any(chunk):
                raise refused(self._archive, self.after, "the end of the archive", "more data")

    def _exactly(self, size: int) -> bytes:
        data = self._some(size)
        while len(data) < size:
            more = self._some(size - len(data))
            if not more:
                raise refused(self._archive, self.after, "more data", "the archive is cut short")
            data += more
        return data

    def _some(self, size: int) -> bytes:
        from isal import isal_zlib  # noqa: PLC0415  (kept out of start-up)

        try:
            data = self._raw.read(size)
        except (EOFError, gzip.BadGzipFile, isal_zlib.error) as error:  # type: ignore[misc]  # its stub
            raise refused(
                self._archive, self.after, "intact gzip data", f"{type(error).__name__}: {error}"
            ) from error
        except OSError as error:
            raise SourceError(
                "the archive cannot be read",
                file=self._archive,
                expected="a readable file",
                found=error.strerror,
                next_command=f"ls -l {self._archive}",
            ) from error
        self._position += len(data)
        if self._position > self._total:
            raise refused(
                self._archive, self.after, f"at most {self._total} bytes unpacked", "more"
            )
        return data
