"""Zip archives written so that the same members give the same bytes everywhere.

Fresh local headers, one time for all members, no extra fields but zip64's, no data descriptors.
New content is stored, never deflated: zlib, zlib-ng and ISA-L give different bytes for the same
content, and between their versions too; stored bytes are the same on every machine.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from imagebuild.artifacts.zipdir import (
    CENTRAL,
    END,
    END64,
    LIMIT16,
    LIMIT32,
    LOCAL,
    LOCATOR64,
    STORED,
    UTF8,
    Member,
)
from imagebuild.digest import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable

_WIDE = LIMIT32  # from here on a field needs its zip64 form (4.3.9.2)
_UNIX = 3 << 8  # 4.4.2.2
_PLAIN, _ZIP64 = 20, 45  # versions needed (4.4.3.2)
_EARLIEST = datetime(1980, 1, 1, tzinfo=UTC)
_LATEST = datetime(2107, 12, 31, 23, 59, 58, tzinfo=UTC)


def dos_time(epoch: int) -> tuple[int, int]:
    """Return MS-DOS time and date (4.4.6) of `epoch`, in UTC, within 1980 to 2107."""
    low, high = int(_EARLIEST.timestamp()), int(_LATEST.timestamp())
    moment = datetime.fromtimestamp(min(max(epoch, low), high), tz=UTC)
    return (
        moment.hour << 11 | moment.minute << 5 | moment.second // 2,
        (moment.year - 1980) << 9 | moment.month << 5 | moment.day,
    )


@dataclass(frozen=True, slots=True)
class _Written:
    member: Member
    offset: int


class ZipWriter:
    """Writes an archive from front to back and hashes it on the way.

    Attributes:
        size: bytes written so far.
    """

    def __init__(self, file: IO[bytes], epoch: int) -> None:
        """Write to `file`; all members get the time `epoch` (seconds since 1970)."""
        self.size = 0
        self._file = file
        self._time, self._date = dos_time(epoch)
        self._digest = hashlib.sha256()
        self._written: list[_Written] = []

    def copy(self, member: Member, raw: Iterable[bytes]) -> None:
        """Add a member of another archive; `raw` gives its compressed bytes."""
        self._written.append(_Written(member, self.size))
        self._local(member)
        for piece in raw:
            self._write(piece)

    def store(self, name: str, data: bytes, *, executable: bool = False) -> None:
        """Add new content, stored."""
        size = len(data)
        member = Member(name, STORED, zlib.crc32(data), size, size, 0, executable)
        self.copy(member, (data,))

    def finish(self) -> Sha256:
        """Write the directory and return the digest of the whole archive."""
        start = self.size
        for written in self._written:
            self._central(written)
        self._end(len(self._written), start, self.size - start)
        return Sha256(self._digest.hexdigest())

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    def _local(self, member: Member) -> None:
        name, flags = _name(member)
        sizes = (member.compressed, member.size)
        wide = any(size >= _WIDE for size in sizes)
        # 4.5.3: in a local header the zip64 field holds both sizes or is absent.
        extra = struct.pack("<2H2Q", 1, 16, member.size, member.compressed) if wide else b""
        head = LOCAL.pack(
            b"PK\x03\x04",
            _ZIP64 if wide else _PLAIN,
            flags,
            member.method,
            self._time,
            self._date,
            member.crc,
            *((LIMIT32, LIMIT32) if wide else sizes),
            len(name),
            len(extra),
        )
        self._write(head + name + extra)

    def _central(self, written: _Written) -> None:
        member = written.member
        name, flags = _name(member)
        sizes = (member.compressed, member.size)
        wide = any(size >= _WIDE for size in sizes)
        large = [member.size, member.compressed] if wide else []
        large += [written.offset] if written.offset >= _WIDE else []
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        version = _ZIP64 if large else _PLAIN
        mode = 0o100755 if member.executable else 0o100644
        head = CENTRAL.pack(
            b"PK\x01\x02",
            _UNIX | version,
            version,
            flags,
            member.method,
            self._time,
            self._date,
            member.crc,
            *((LIMIT32, LIMIT32) if wide else sizes),
            len(name),
            len(extra),
            0,
            0,
            0,
            mode << 16,
            LIMIT32 if written.offset >= _WIDE else written.offset,
        )
        self._write(head + name + extra)

    def _end(self, count: int, start: int, length: int) -> None:
        if count >= LIMIT16 or start >= _WIDE:
            end = self.size
            version = _UNIX | _ZIP64
            fields = (version, _ZIP64, 0, 0, count, count, length, start)
            self._write(END64.pack(b"PK\x06\x06", END64.size - 12, *fields))
            self._write(LOCATOR64.pack(b"PK\x06\x07", 0, end, 1))
        count, start = min(count, LIMIT16), LIMIT32 if start >= _WIDE else start
        self._write(END.pack(b"PK\x05\x06", 0, 0, count, count, length, start, 0))


def _name(member: Member) -> tuple[bytes, int]:
    """Return a name's bytes and the flags that say how to read them."""
    return member.name.encode(), 0 if member.name.isascii() else UTF8
