"""Many files in one, for reading any of them at once: the cache's form of an unpacked sdist.

    content of each file, raw deflate (RFC 1951), one after another
    manifest: a map of path to [sha256, size, executable, offset, length], MessagePack
    trailer: offset and length of the manifest (8 bytes each, little-endian), its SHA-256, magic

Opening reads the trailer and the manifest only (1 MB and about 10 ms for vLLM's 8,500 files; the
directory of a zip takes several times that), and a pack that is cut short or changed does not open.
Every read is checked against the manifest.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FORMAT = 1
"""Raised with every change of the format; part of a pack's file name and of its magic."""
_MAGIC = b"vsm-pk%02d" % FORMAT
_TRAILER = struct.Struct("<QQ32s8s")
_RAW = -15
_LEVEL = 1


class DamagedPackError(Exception):
    """A pack is not what was written; whoever holds the original makes it again."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One file of a pack.

    Attributes:
        sha256: the digest of its content, hexadecimal.
        size: bytes of its content.
        executable: whether it is a program.
        offset, length: where its deflated bytes are.
    """

    sha256: str
    size: int
    executable: bool
    offset: int
    length: int


class _Manifest(msgspec.Struct, frozen=True):
    name: str
    entries: dict[str, Entry]


@dataclass
class PackWriter:
    """Writes a pack into an open file.

    Attributes:
        file: where to; empty at the start.
        entries: what was added so far.
    """

    file: IO[bytes]
    entries: dict[str, Entry] = field(default_factory=dict)
    _offset: int = 0

    def add(self, path: str, pieces: Iterable[bytes], *, executable: bool) -> None:
        """Add a file whose content comes in pieces."""
        from isal import isal_zlib  # noqa: PLC0415  (kept out of start-up)

        digest = hashlib.sha256()
        deflate = isal_zlib.compressobj(_LEVEL, wbits=_RAW)
        size = length = 0
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            length += self.file.write(deflate.compress(piece))
        length += self.file.write(deflate.flush())
        self.entries[path] = Entry(digest.hexdigest(), size, executable, self._offset, length)
        self._offset += length

    def finish(self, name: str) -> None:
        """Write the manifest and the trailer; `name` says what the pack holds."""
        ordered = dict(sorted(self.entries.items()))
        manifest = msgspec.msgpack.encode(_Manifest(name, ordered))
        digest = hashlib.sha256(manifest).digest()
        self.file.write(manifest)
        self.file.write(_TRAILER.pack(self._offset, len(manifest), digest, _MAGIC))


@dataclass(frozen=True)
class Pack:
    """A pack on disk.

    Attributes:
        path: the file.
        name: what it holds.
        entries: its files by path, sorted.
    """

    path: Path
    name: str
    entries: Mapping[str, Entry]

    @classmethod
    def open(cls, path: Path) -> Pack:
        """Return the pack in the file `path`.

        Raises:
            DamagedPackError: if it is missing, unreadable, cut short or changed.
        """
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TRAILER.size))
                offset, length, digest, magic = _TRAILER.unpack(file.read())
                if magic != _MAGIC or offset + length + _TRAILER.size != size:
                    raise DamagedPackError("not a whole pack")
                file.seek(offset)
                data = file.read(length)
            if hashlib.sha256(data).digest() != digest:
                raise DamagedPackError("the manifest is damaged")
            manifest = msgspec.msgpack.decode(data, type=_Manifest)
        except (OSError, struct.error, msgspec.DecodeError) as error:
            raise DamagedPackError(str(error)) from error
        return cls(path, manifest.name, manifest.entries)

    def read(self, entry: Entry) -> bytes:
        """Return the content of one of the pack's files.

        Raises:
            DamagedPackError: if it is not what was written.
        """
        from isal import isal_zlib  # noqa: PLC0415  (kept out of start-up)

        try:
            with self.path.open("rb") as file:
                file.seek(entry.offset)
                deflated = file.read(entry.length)
            inflate = isal_zlib.decompressobj(_RAW)
            data = inflate.decompress(deflated, entry.size + 1)
        except (OSError, isal_zlib.error) as error:  # type: ignore[misc]  # its stub
            raise DamagedPackError(str(error)) from error
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise DamagedPackError("a file is damaged")
        return data
