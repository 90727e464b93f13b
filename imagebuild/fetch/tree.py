"""Source trees: something that gives a file's bytes by its path."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping  # noqa: TC003
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from imagebuild.errors import SourceError


class Tree(Protocol):
    """A vLLM source tree that can be read.

    Attributes:
        label: what the tree is, for messages, such as the sdist's file name.
    """

    @property
    def label(self) -> str:
        """What the tree is, for messages."""

    def read(self, path: str) -> bytes | None:
        """Return the content of the file at `path` (`/`-separated, relative), or None."""

    def files(self) -> Iterator[str]:
        """Yield the paths of all regular files, sorted."""


@dataclass(frozen=True)
class DirTree:
    """A tree in a folder; never written to. Links are not followed out of the folder."""

    root: Path

    @property
    def label(self) -> str:
        """The folder."""
        return str(self.root)

    def read(self, path: str) -> bytes | None:
        """Return the content of a regular file inside the folder, or None.

        Raises:
            SourceError: if there is such a file and it cannot be read.
        """
        target = self.root / path
        try:
            inside = target.resolve(strict=True).is_relative_to(self.root.resolve())
            return target.read_bytes() if inside and target.is_file() else None
        except (FileNotFoundError, NotADirectoryError, RuntimeError):  # RuntimeError: a link's loop
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
                return None
            raise SourceError(
                "a source file cannot be read",
                file=target,
                expected="a readable file",
                found=error.strerror or type(error).__name__,
                next_command=f"ls -l {target}",
            ) from error

    def files(self) -> Iterator[str]:
        """Yield the paths of all regular files but git's, sorted."""
        found = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name != ".git"]
            base = Path(folder)
            found += [
                (base / name).relative_to(self.root).as_posix()
                for name in names
                if (base / name).is_file() and not (base / name).is_symlink()
            ]
        yield from sorted(found)


@dataclass(frozen=True)
class MemoryTree:
    """A tree in memory.

    Attributes:
        contents: the files by path.
        label: what the tree is, for messages.
    """

    contents: Mapping[str, bytes]
    label: str = field(default="memory")

    def read(self, path: str) -> bytes | None:
        """Return the content of the file at `path`, or None."""
        return self.contents.get(path)

    def files(self) -> Iterator[str]:
        """Yield the paths of all files, sorted."""
        yield from sorted(self.contents)


@dataclass(frozen=True)
class WithoutTree:
    """A tree without some of its files.

    Attributes:
        tree: the tree.
        hidden: the paths that it seems not to have.
    """

    tree: Tree
    hidden: frozenset[str]

    @property
    def label(self) -> str:
        """The tree's own label."""
        return self.tree.label

    def read(self, path: str) -> bytes | None:
        """Return the content of the file at `path`, or None."""
        return None if path in self.hidden else self.tree.read(path)

    def files(self) -> Iterator[str]:
        """Yield the paths of the other files, sorted."""
        yield from (path for path in self.tree.files() if path not in self.hidden)
