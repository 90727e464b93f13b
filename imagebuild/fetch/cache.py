"""The user's cache: downloaded files by the hash of their content.

    blobs/sha256/HEX              a whole file, read-only
    blobs/sha256/HEX.part         what has come of it so far
    blobs/sha256/HEX.part.etag    the server's validator for those bytes (RFC 9110 section 8.8.3)
    verified/HEX.json             what the file looked like when this code last hashed it
    locks/HEX.lock                held by the process that writes any of these

A blob gets its name only after its hash was right. The record in `verified/` spares hashing a wheel
of 336 MB at each build: as long as device, inode, size, modification and change time are those of
the last verification, the content is taken as unchanged. The change time cannot be set by a user's
program, so a file rewritten in place with its old modification time is hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  (dataclasses name it)
from typing import TYPE_CHECKING

import msgspec

from imagebuild import project
from imagebuild.digest import Sha256
from imagebuild.files import storing, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagebuild.progress import Progress

_CHUNK = 1 << 20


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file looks like from outside; changes whenever its content does."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def fingerprint(path: Path) -> Fingerprint | None:
    """Return the fingerprint of a regular file, or None where there is none."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Fingerprint(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


@dataclass(frozen=True)
class Slot:
    """One digest's place in the cache, held under its lock.

    Attributes:
        sha256: the digest.
        blob: the final name of the content.
        part: what has come so far; may be missing.
        etag: the validator of `part`; may be missing.
        record: the record of the last verification; may be missing.
    """

    sha256: Sha256
    blob: Path
    part: Path
    etag: Path
    record: Path

    def verified(self, progress: Progress, what: str) -> Path | None:
        """Return the blob if its content is right; a blob with wrong content is thrown away.

        Args:
            progress: told of hashing, when the record does not spare it.
            what: the file's name, for people.

        Raises:
            StorageError: if the cache cannot be read or written.
        """
        before = fingerprint(self.blob)
        if before is None:
            return None
        if before == _read_record(self.record):
            return self.blob
        if _hash(self.blob, progress, what, before.size) == self.sha256:
            self._remember(before)
            return self.blob
        progress.note(f"{what}: the cached copy is damaged and is fetched again")
        with storing(self.blob):
            self.record.unlink(missing_ok=True)
            self.blob.unlink(missing_ok=True)
        return None

    def publish(self, found: Sha256) -> Path:
        """Give the finished part its final name.

        Args:
            found: the digest of the part's bytes, as hashed by the caller.

        Returns:
            The blob.

        Raises:
            ValueError: if `found` is another digest than the slot's.
            StorageError: if the cache cannot be written.
        """
        if found != self.sha256:
            raise ValueError(f"{found} is not {self.sha256}")
        with storing(self.part), self.part.open("rb+") as file:
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        with storing(self.blob):
            self.part.replace(self.blob)
            self.etag.unlink(missing_ok=True)
        after = fingerprint(self.blob)
        if after is not None:
            self._remember(after)
        return self.blob

    def discard_part(self) -> None:
        """Throw away what has come so far.

        Raises:
            StorageError: if the cache cannot be written.
        """
        with storing(self.part):
            self.part.unlink(missing_ok=True)
            self.etag.unlink(missing_ok=True)

    def _remember(self, seen: Fingerprint) -> None:
        if fingerprint(self.blob) == seen:
            write_atomic(self.record, msgspec.json.encode(seen))


@dataclass(frozen=True)
class Cache:
    """The cache in one folder. Any number of processes may use it at once.

    Attributes:
        root: the folder; created when something is stored.
    """

    root: Path

    @classmethod
    def default(cls) -> Cache:
        """Return the user's cache, or the one that `VLLM_SM120_CACHE` names."""
        return cls(project.cache_root())

    def known(self, sha256: Sha256) -> Path | None:
        """Return the blob if it is there and unchanged since its last verification.

        Neither hashes nor locks nor writes, so it works on a read-only cache.
        """
        slot = self._slot(sha256)
        seen = fingerprint(slot.blob)
        return slot.blob if seen is not None and seen == _read_record(slot.record) else None

    @contextlib.contextmanager
    def locked(self, sha256: Sha256, progress: Progress, what: str) -> Iterator[Slot]:
        """Hold the digest's lock; waits for another process that holds it, and says so.

        The system releases the lock of a killed process.

        Args:
            sha256: the digest.
            progress: told of waiting.
            what: the file's name, for people.

        Raises:
            StorageError: if the cache cannot be written.
        """
        slot = self._slot(sha256)
        with self.lock(sha256, progress, what):
            with storing(slot.blob):
                slot.blob.parent.mkdir(parents=True, exist_ok=True)
                for folder in (slot.blob.parent, slot.record.parent):
                    for leftover in folder.glob(f".{sha256}.*.tmp"):
                        leftover.unlink(missing_ok=True)
            yield slot

    @contextlib.contextmanager
    def lock(self, name: str, progress: Progress, what: str) -> Iterator[None]:
        """Hold the cache's lock of that name; waits for another process, and says so.

        Raises:
            StorageError: if the cache cannot be written.
        """
        import filelock  # noqa: PLC0415  (kept out of start-up)

        path = self.root / "locks" / f"{name}.lock"
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(path)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                progress.note(f"{what}: waiting for another process that works on it")
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def folder(self, name: str) -> Path:
        """Return a folder of the cache for derived data, created.

        Raises:
            StorageError: if it cannot be created.
        """
        path = self.root / name
        with storing(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def _slot(self, sha256: Sha256) -> Slot:
        blob = self.root / "blobs" / "sha256" / sha256
        return Slot(
            sha256,
            blob,
            blob.with_name(f"{sha256}.part"),
            blob.with_name(f"{sha256}.part.etag"),
            self.root / "verified" / f"{sha256}.json",
        )


def _read_record(path: Path) -> Fingerprint | None:
    """Return the record, or None for one that is missing or not readable as one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Fingerprint)
    except (OSError, msgspec.DecodeError):
        return None


def _hash(path: Path, progress: Progress, what: str, size: int) -> Sha256:
    digest = hashlib.sha256()
    with storing(path), path.open("rb") as file, progress.step("verify", what, size) as advance:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return Sha256(digest.hexdigest())
