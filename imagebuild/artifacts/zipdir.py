"""The directory of a zip archive, read strictly: what one reader sees, every reader sees.

The format is PKWARE's APPNOTE 6.3.10; numbers in parentheses are its sections. What it leaves open,
honest wheels do not use, and it is refused here: bytes before, between or after the members,
overlapping members, local headers that contradict the central directory, comments, duplicate
names, names that leave the folder, links, folders, encryption, methods other than stored and
deflated, sizes that no deflate stream has.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NoReturn

from imagebuild.errors import ArchiveError

if TYPE_CHECKING:
    from pathlib import Path

STORED = 0
DEFLATED = 8
UTF8 = 0x800
LIMIT16 = 0xFFFF
LIMIT32 = 0xFFFFFFFF

LOCAL = struct.Struct("<4s5H3I2H")  # 4.3.7
CENTRAL = struct.Struct("<4s6H3I5H2I")  # 4.3.12
END = struct.Struct("<4s4H2IH")  # 4.3.16
END64 = struct.Struct("<4sQ2H2I4Q")  # 4.3.14
LOCATOR64 = struct.Struct("<4sIQI")  # 4.3.15

_DESCRIPTOR = 0x8
_DEFLATE_HINTS = 0x6
_MAX_MEMBERS = 200_000
_MAX_DIRECTORY = 64 << 20
_MAX_TOTAL = 16 << 30
_MAX_NAME = 1024
_ODD = re.compile(r"[\\\x00-\x1f\x7f]")
_MAX_RATIO = 1032  # zlib's technical notes: deflate cannot do better than 1032:1
_UNICODE_PATH = 0x7075
_UNIX = 3  # 4.4.2.2


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive.

    Attributes:
        name: its path, relative and `/`-separated.
        method: `STORED` or `DEFLATED`.
        crc: CRC-32 of its content.
        compressed, size: bytes in the archive, and of its content.
        start: where its compressed bytes begin.
        executable: whether anybody may execute it.
    """

    name: str
    method: int
    crc: int
    compressed: int
    size: int
    start: int
    executable: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    """A central directory entry before its local header is known."""

    name: str
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    offset: int
    executable: bool


def bad_zip(path: Path, summary: str, expected: object, found: object) -> ArchiveError:
    """Return the error for a damaged or dishonest archive."""
    return ArchiveError(
        summary,
        file=path,
        expected=expected,
        found=found,
        next_command=f"python -m zipfile --list {path}",
    )


class Directory:
    """The checked directory of an open archive.

    Attributes:
        members: the members by name, in the directory's order.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Read the directory of `file`; `path` is for messages.

        Raises:
            ArchiveError: if the archive is damaged or does what no honest wheel does.
        """
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        count, start, length, end = self._end()
        if end != start + length:
            self._bad("bytes between the directory and its end record", start + length, end)
        self.members = self._locate(self._directory(count, start, length), start)

    def _at(self, offset: int, length: int) -> bytes:
        data = os.pread(self._file.fileno(), length, offset)
        if len(data) != length:
            self._bad("the archive ends too early", f"{length} bytes at {offset}", len(data))
        return data

    def _end(self) -> tuple[int, int, int, int]:
        """Return member count, directory offset and length, and where the end records begin."""
        if self._size < END.size:
            self._bad("not a zip archive", "an end record", f"{self._size} bytes")
        end = self._size - END.size
        fields = END.unpack(self._at(end, END.size))
        signature, disk, first, here, count, length, start, comment = fields
        if signature != b"PK\x05\x06" or comment:
            self._bad("not a zip archive", "an end record without comment", "other bytes")
        locator = end - LOCATOR64.size
        if locator >= 0 and (near := self._at(locator, LOCATOR64.size)).startswith(b"PK\x06\x07"):
            _, _, end, disks = LOCATOR64.unpack(near)
            if disks != 1 or end + END64.size != locator:
                self._bad("the zip64 end record is not where it belongs", locator, end)
            fields = END64.unpack(self._at(end, END64.size))
            signature, size, _, _, disk, first, here, count, length, start = fields
            if signature != b"PK\x06\x06" or size != END64.size - 12:
                self._bad("not a zip64 end record", "56 bytes without extensions", size)
        if disk or first or here != count:
            self._bad("the archive is one part of several", "disk 0", f"disk {disk}")
        if start + length > end:
            self._bad("the directory is not inside the archive", f"before {end}", start + length)
        if count > _MAX_MEMBERS or length > _MAX_DIRECTORY:
            found = f"{count} in {length} bytes"
            self._bad("too many members", f"at most {_MAX_MEMBERS} in {_MAX_DIRECTORY}", found)
        return count, start, length, end

    def _directory(self, count: int, start: int, length: int) -> list[_Entry]:
        data = self._at(start, length)
        entries: list[_Entry] = []
        names: set[str] = set()
        position = total = 0
        while position < length:
            entry, position = self._entry(data, position)
            if entry.name in names:
                self._bad(f"{entry.name} is there twice", "one member of that name", "two")
            names.add(entry.name)
            entries.append(entry)
            total += entry.size
        if position != length or len(entries) != count:
            self._bad("the directory does not hold what it says", count, len(entries))
        if total > _MAX_TOTAL:
            self._bad("the content is absurdly large", f"at most {_MAX_TOTAL} bytes", total)
        folders = {name[:end] for name in names for end in _slashes(name)}
        if clash := min(folders & names, default=None):
            self._bad(f"{clash} is a file and a folder", "one of the two", "both")
        return entries

    def _entry(self, data: bytes, position: int) -> tuple[_Entry, int]:
        if len(data) - position < CENTRAL.size:
            self._bad("the directory is cut short", CENTRAL.size, len(data) - position)
        fields = CENTRAL.unpack_from(data, position)
        signature, made, _, flags, method, _, _, crc, compressed, size = fields[:10]
        name_length, extra_length, comment, disk, _, attributes, offset = fields[10:]
        position += CENTRAL.size
        name_bytes = data[position : position + name_length]
        extra = data[position + name_length : position + name_length + extra_length]
        position += name_length + extra_length
        if signature != b"PK\x01\x02" or disk or comment or position > len(data):
            self._bad("a directory entry is damaged", "a signature, disk 0, no comment", fields)
        name = self._name(name_bytes, flags)
        if flags & ~(UTF8 | _DESCRIPTOR | _DEFLATE_HINTS) or method not in (STORED, DEFLATED):
            found = f"flags {flags:#x}, method {method}"
            self._bad(f"{name} is encrypted or packed oddly", "stored or deflated", found)
        size, compressed, offset = self._wide(name, extra, (size, compressed, offset))
        if size > compressed * (_MAX_RATIO if method == DEFLATED else 1):
            self._bad(f"{name} has an absurd size", f"what {compressed} bytes can hold", size)
        mode = attributes >> 16 if made >> 8 == _UNIX else 0
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            self._bad(f"{name} is not a regular file", "a regular file", stat.filemode(mode))
        executable = bool(mode & 0o111)
        return _Entry(name, flags, method, crc, compressed, size, offset, executable), position

    def _wide(self, name: str, extra: bytes, short: tuple[int, ...]) -> list[int]:
        """Return sizes and offset, from the zip64 extra field (4.5.3) where they are too large."""
        values = list(short)
        position = 0
        while position < len(extra):
            if len(extra) - position < 4:  # noqa: PLR2004  (4.5.1: two 16-bit fields)
                self._bad(f"{name} has a damaged extra field", "4 bytes", extra[position:])
            kind, length = struct.unpack_from("<2H", extra, position)
            body = extra[position + 4 : position + 4 + length]
            position += 4 + length
            if kind == _UNICODE_PATH or position > len(extra):
                self._bad(f"{name} has an extra field that readers differ on", "none", hex(kind))
            if kind != 1:
                continue
            wide = [index for index, value in enumerate(values) if value == LIMIT32]
            if not wide and body == struct.pack("<2Q", *values[:2]):
                continue  # Python before 3.11.4 repeats sizes that fit
            if len(body) != 8 * len(wide):
                self._bad(f"{name} has a damaged zip64 field", 8 * len(wide), len(body))
            for index, value in zip(wide, struct.unpack(f"<{len(wide)}Q", body), strict=True):
                values[index] = value
        return values

    def _name(self, raw: bytes, flags: int) -> str:
        try:
            name = raw.decode("utf-8" if flags & UTF8 else "ascii")
        except UnicodeDecodeError:
            self._bad("a name is not UTF-8, or not declared so", "UTF-8", raw)
        odd = len(raw) > _MAX_NAME or _ODD.search(name) is not None
        if odd or not all(part not in ("", ".", "..") for part in name.split("/")):
            self._bad("a name is no relative path to a file", "folder/file", repr(name))
        return name

    def _locate(self, entries: list[_Entry], directory: int) -> dict[str, Member]:
        """Return the members; they must fill the archive up to the directory, without overlap."""
        starts: dict[str, int] = {}
        position = 0
        for entry in sorted(entries, key=lambda entry: entry.offset):
            if entry.offset != position:
                self._bad(f"{entry.name} overlaps or leaves a gap", position, entry.offset)
            starts[entry.name] = self._local(entry)
            position = starts[entry.name] + entry.compressed
            if entry.flags & _DESCRIPTOR:
                position += self._descriptor(entry, position)
            if position > directory:
                self._bad(f"{entry.name} reaches into the directory", directory, position)
        if position != directory:
            self._bad("bytes that belong to no member", position, directory)
        return {
            e.name: Member(
                e.name, e.method, e.crc, e.compressed, e.size, starts[e.name], e.executable
            )
            for e in entries
        }

    def _local(self, entry: _Entry) -> int:
        """Check a local header against its directory entry; return where the data begin."""
        head = self._at(entry.offset, LOCAL.size)
        signature, _, flags, method, _, _, *numbers, name_length, extra_length = LOCAL.unpack(head)
        rest = self._at(entry.offset + LOCAL.size, name_length + extra_length)
        crc, compressed, size = numbers
        size, compressed = self._wide(entry.name, rest[name_length:], (size, compressed))
        found = (signature, flags, method, rest[:name_length], crc, compressed, size)
        name = entry.name.encode()
        same = (b"PK\x03\x04", entry.flags, entry.method, name)
        full = (*same, entry.crc, entry.compressed, entry.size)
        late = (*same, 0, 0, 0) if entry.flags & _DESCRIPTOR else full
        if found not in (full, late):
            self._bad(f"{entry.name}: local header and directory differ", full, found)
        return entry.offset + LOCAL.size + len(rest)

    def _descriptor(self, entry: _Entry, position: int) -> int:
        """Return the length of the data descriptor (4.3.9) at `position`."""
        for numbers in ("<3I", "<I2Q"):
            with contextlib.suppress(struct.error):
                body = struct.pack(numbers, entry.crc, entry.compressed, entry.size)
                for form in (b"PK\x07\x08" + body, body):
                    if os.pread(self._file.fileno(), len(form), position) == form:
                        return len(form)
        summary = f"{entry.name} has no data descriptor"
        raise bad_zip(self._path, summary, "CRC-32 and sizes", "other bytes")

    def _bad(self, summary: str, expected: object, found: object) -> NoReturn:
        raise bad_zip(self._path, summary, expected, found)


def _slashes(name: str) -> list[int]:
    return [index for index, character in enumerate(name) if character == "/"]
