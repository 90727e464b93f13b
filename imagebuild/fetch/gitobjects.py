"""Reading many objects of a git repository from one running git."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from imagebuild.errors import SourceError

if TYPE_CHECKING:
    import subprocess

    from imagebuild.fetch.git import Git

_LARGEST = 256 << 20


class ObjectReader:
    """A `git cat-file --batch`, started with the first question and ended with this object."""

    def __init__(self, repository: Git) -> None:
        """Prepare to read from `repository`; nothing runs yet."""
        self._repository = repository
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, oid: str) -> bytes:
        """Return the content of an object.

        Raises:
            SourceError: if git does not give it, or it has more than 256 MiB.
        """
        try:
            if self._process is None:
                self._process = self._repository.start("cat-file", "--batch")
                weakref.finalize(self, _stop, self._process)
            return _ask(self._process, oid)
        except (OSError, ValueError, IndexError) as error:
            raise SourceError(
                "the git repository does not give an object of the commit",
                file=self._repository.folder,
                expected=f"object {oid}, at most {_LARGEST} bytes",
                found="nothing readable",
                next_command=f"git -C {self._repository.folder} fsck",
            ) from error


def _ask(process: subprocess.Popen[bytes], oid: str) -> bytes:
    """Return an object's content: a line with its size, the bytes, a line's end (git-cat-file(1)).

    Raises:
        OSError, ValueError, IndexError: if git does not give it.
    """
    if process.stdin is None or process.stdout is None:
        raise ValueError("no pipes")
    process.stdin.write(f"{oid}\n".encode())
    process.stdin.flush()
    size = int(process.stdout.readline().split()[2])
    if size > _LARGEST:
        raise ValueError(f"{size} bytes")
    data = process.stdout.read(size + 1)
    if len(data) != size + 1:
        raise ValueError("cut short")
    return data[:-1]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
