"""Gzip without compression: the one gzip stream that is the same everywhere.

RFC 1952 around RFC 1951's stored blocks (3.2.4), written here, so that no deflate implementation
has a say. Header: no name, no time, no flags, unknown system.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_BLOCK = 0xFFFF
_MASK = 0xFFFFFFFF


class StoredGzip:
    """Passes what is written on to `sink` as a gzip stream."""

    def __init__(self, sink: Callable[[bytes], object]) -> None:
        """Begin the stream."""
        self._sink = sink
        self._held = bytearray()
        self._crc = 0
        self._size = 0
        sink(_HEADER)

    def write(self, data: bytes) -> None:
        """Add content; block borders do not depend on how it is cut into calls."""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._held += data
        while len(self._held) > _BLOCK:
            self._block(self._held[:_BLOCK], final=False)
            del self._held[:_BLOCK]

    def finish(self) -> None:
        """End the stream."""
        self._block(self._held, final=True)
        self._sink(struct.pack("<2I", self._crc, self._size & _MASK))

    def _block(self, data: bytes | bytearray, *, final: bool) -> None:
        length = len(data)
        self._sink(struct.pack("<B2H", int(final), length, length ^ _BLOCK) + bytes(data))
