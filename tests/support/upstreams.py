"""Tiny upstreams as git repositories: the release that a patch was written for, and what followed.

Each is one thing that an upstream does to the code under a patch, as a commit or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.fetch.git import Git
from imagebuild.fetch.tree import DirTree, MemoryTree
from tests.support import patching, tiny
from tests.support.tinytree import SDIST_ONLY, TREE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagebuild.patching.series import Series

    Act = Callable[["Upstream"], None]

FIX = tiny.BOUNDS
DROP_WHEN: list[dict[str, str]] = [
    {"file": tiny.KERNELS, "contains": "column = max(count - 1, 0)"},
    {"file": tiny.KERNELS, "lacks": "column = count - 1\n"},
    {"file": tiny.WORKER, "contains": "offset = max(accepted - 1, 0)"},
    {"file": tiny.WORKER, "lacks": "offset = accepted - 1\n"},
]


@dataclass
class Upstream:
    """The repository, its work tree at the newest commit."""

    folder: Path
    git: Git

    @classmethod
    def at_release(cls, folder: Path) -> Upstream:
        git = Git(folder)
        tiny.write_tree(folder, TREE | SDIST_ONLY)
        git.run("init", "--quiet", "--initial-branch=main", str(folder))
        git.run("config", "user.name", "Upstream")
        git.run("config", "user.email", "upstream@example.org")
        git.run("config", "core.autocrlf", "false")
        made = cls(folder, git)
        made.commit("release")
        git.run("tag", "v1.2.3")
        return made

    def commit(self, message: str) -> None:
        self.git.run("add", "--all", "--force")
        self.git.run("commit", "--quiet", "--message", message)

    def read(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def replace(self, path: str, old: str, new: str) -> None:
        content = self.read(path)
        assert old.encode() in content
        self.write(path, content.replace(old.encode(), new.encode()))

    def merge(self, *paths: str) -> None:
        """Take the fix over, word for word, in the given files."""
        for edit in FIX.edits:
            if edit.path in paths:
                self.replace(edit.path, edit.old, edit.new)

    @property
    def tree(self) -> DirTree:
        """The newest commit, without what is in no commit."""
        self.git.run("clean", "-dfxq")
        assert not self.git.text("status", "--porcelain")
        return DirTree(self.folder)


def release() -> MemoryTree:
    """Return the release that the patch was written for."""
    return MemoryTree(TREE | SDIST_ONLY, tiny.SDIST_NAME)


def fix() -> Series:
    """Return the series of the one patch, with a drop-when that knows the fix."""
    return patching.series(FIX, drop_when=DROP_WHEN)


def _context_moved(upstream: Upstream) -> None:
    upstream.replace(tiny.KERNELS, "def read_state", "# Blocks are shared.\ndef read_state")


def _renamed(upstream: Upstream) -> None:
    upstream.git.run("mv", tiny.KERNELS, "vllm/model_executor/state_kernels.py")


def _split(upstream: Upstream) -> None:
    head, _, tail = upstream.read(tiny.KERNELS).partition(b"def write_state")
    upstream.write(tiny.KERNELS, head)
    upstream.write("vllm/model_executor/write_kernels.py", b"def write_state" + tail)


def _merged(upstream: Upstream) -> None:
    upstream.merge(tiny.KERNELS, tiny.WORKER)


def _merged_differently(upstream: Upstream) -> None:
    upstream.replace(tiny.KERNELS, "column = count - 1\n", "column = (count or 1) - 1\n")
    upstream.replace(tiny.WORKER, "offset = accepted - 1\n", "offset = (accepted or 1) - 1\n")


def _merged_with_more(upstream: Upstream) -> None:
    upstream.merge(tiny.KERNELS, tiny.WORKER)
    upstream.replace(
        tiny.KERNELS, "column = max(count - 1, 0)\n", "column = max(count - 1, 0)\n    check(row)\n"
    )
    upstream.replace(tiny.WORKER, "(accepted - 1, 0)\n", "(accepted - 1, 0)\n        check(row)\n")


def _reverted(upstream: Upstream) -> None:
    upstream.merge(tiny.KERNELS, tiny.WORKER)
    upstream.commit("fix")
    upstream.git.run("revert", "--no-edit", "--no-commit", "HEAD")


def _white_space(upstream: Upstream) -> None:
    for path in (tiny.KERNELS, tiny.WORKER):
        upstream.write(path, upstream.read(path).replace(b"    ", b"  "))


def _carriage_returns(upstream: Upstream) -> None:
    for path in (tiny.KERNELS, tiny.WORKER):
        upstream.write(path, upstream.read(path).replace(b"\n", b"\r\n"))


def _half_merged(upstream: Upstream) -> None:
    upstream.merge(tiny.KERNELS)


def _body_changed(upstream: Upstream) -> None:
    upstream.replace(tiny.WORKER, "        offset = accepted - 1\n", "        self.check(row)\n")
    upstream.replace(tiny.WORKER, "[row][offset]", "[row][self.offset(accepted)]")


def _generated(upstream: Upstream) -> None:
    template = upstream.read(tiny.KERNELS).replace(b"count - 1", b"{{ count }} - 1")
    upstream.write("tools/kernels.py.jinja", template)
    upstream.git.run("rm", "--quiet", tiny.KERNELS)


def _licensed(upstream: Upstream) -> None:
    for path in (tiny.KERNELS, tiny.WORKER):
        header = b"# SPDX-FileCopyrightText: Contributors to the project\n"
        upstream.write(path, header + upstream.read(path))


FAULTS: dict[str, tuple[Act, str, str]] = {
    "context moved by one line": (_context_moved, "applies", "carried"),
    "renamed file": (_renamed, "target gone", "pending"),
    "split file": (_split, "drifted", "pending"),
    "fix merged word for word": (_merged, "upstreamed", "left out"),
    "fix merged differently": (_merged_differently, "drifted", "pending"),
    "fix merged with more": (_merged_with_more, "upstreamed", "left out"),
    "reverted fix": (_reverted, "applies", "carried"),
    "white space only": (_white_space, "drifted", "pending"),
    "carriage returns": (_carriage_returns, "drifted", "pending"),
    "half of the patch merged": (_half_merged, "partial", "merged"),
    "symbol kept, body changed": (_body_changed, "drifted", "pending"),
    "file now generated": (_generated, "target gone", "pending"),
    "license header added": (_licensed, "applies", "carried"),
}
"""What upstream does: the act, the outcome that the patch meets then, what a bump decides."""


def after(name: str, folder: Path) -> Upstream:
    """Return the upstream after one of the faults."""
    upstream = Upstream.at_release(folder)
    FAULTS[name][0](upstream)
    upstream.commit(name)
    return upstream
