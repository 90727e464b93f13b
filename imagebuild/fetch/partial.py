"""A file that is still arriving, in the cache."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Self

from imagebuild.digest import Sha256
from imagebuild.files import storing, write_atomic

if TYPE_CHECKING:
    from types import TracebackType

    from imagebuild.fetch.cache import Slot
    from imagebuild.progress import Progress

_CHUNK = 1 << 20


class PartialFile:
    """What has come of a file so far, and the running hash over it. A context manager.

    Attributes:
        size: bytes so far.
        etag: the server's strong validator for them, or None.
        at_once: whether all of them came through this object, none from an earlier run.
    """

    def __init__(self, slot: Slot, name: str, progress: Progress) -> None:
        """Open the slot's part and hash what it holds.

        Raises:
            StorageError: if it cannot be read or written.
        """
        self.slot = slot
        self.name = name
        self.size = 0
        self.at_once = True
        self._hash = hashlib.sha256()
        self.etag: str | None = None
        with storing(slot.part):
            self._file = slot.part.open("ab+", buffering=0)
            self._load(progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if self.size == 0:
            self.slot.discard_part()

    @property
    def digest(self) -> Sha256:
        """The digest of the bytes so far."""
        return Sha256(self._hash.hexdigest())

    def append(self, data: bytes) -> None:
        """Add bytes that arrived.

        Raises:
            StorageError: if they cannot be written.
        """
        rest = memoryview(data)
        with storing(self.slot.part):
            while rest:
                written = self._file.write(rest)
                self._hash.update(rest[:written])
                self.size += written
                rest = rest[written:]

    def start_over(self, etag: str | None) -> None:
        """Drop the bytes so far; `etag` is the validator of those to come.

        Raises:
            StorageError: if the cache cannot be written.
        """
        self._hash, self.size, self.etag = hashlib.sha256(), 0, etag
        self.at_once = True
        with storing(self.slot.part):
            self._file.truncate(0)
            self.slot.etag.unlink(missing_ok=True)
        if etag is not None:
            write_atomic(self.slot.etag, etag.encode("latin-1", "replace"))

    def _load(self, progress: Progress) -> None:
        self._file.seek(0)
        there = self.slot.part.stat().st_size
        if not there:
            return
        with progress.step("verify", f"the first part of {self.name}", there) as advance:
            while chunk := self._file.read(_CHUNK):
                self._hash.update(chunk)
                self.size += len(chunk)
                advance(len(chunk))
        self.at_once = False
        with contextlib.suppress(FileNotFoundError):
            self.etag = self.slot.etag.read_bytes()[:1024].decode("latin-1")
