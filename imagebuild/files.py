"""Files that appear under their final name only when they are whole."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from imagebuild.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_WRITING = _FULL | {errno.EIO, errno.EROFS}


def storage_error(error: OSError, path: Path) -> StorageError:
    """Return `error` as an error for people; `path` is what was being written."""
    full = error.errno in _FULL
    return StorageError(
        "the disk is full" if full else "the system refuses a file operation",
        file=path,
        expected="room for the file" if full else "a file or folder that can be used",
        found=error.strerror or type(error).__name__,
        next_command=f"df -h {path.parent}" if full else f"ls -ld {path.parent}",
    )


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn the operating system's write errors inside the block into `StorageError`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


@contextlib.contextmanager
def atomic(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Open a file that gets its final name when the block ends without an error.

    Until then the bytes are in a temporary file `.NAME.*.tmp` beside it, which is removed on an
    error; after a killed process `sweep` removes it. The content reaches the disk before the name.
    Other errors of the block, such as a connection's, stay what they are.

    Args:
        path: the final name; its folder is created.
        mode: the permissions, whatever the umask.

    Raises:
        StorageError: if the folder cannot be written or the disk is full.
    """
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            with storing(path):
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
        with storing(path):
            temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in _WRITING:
            raise storage_error(error, path) from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` under `path`, whole or not at all.

    Raises:
        StorageError: if the folder cannot be written or the disk is full.
    """
    with atomic(path, mode) as file:
        file.write(data)


def sweep(folder: Path) -> None:
    """Remove what killed runs left in `folder`. Call it only while holding the folder's lock."""
    for leftover in folder.glob(".*.????????.tmp"):
        if leftover.is_file():
            with storing(leftover):
                leftover.unlink(missing_ok=True)
