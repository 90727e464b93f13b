"""The build context of the official Dockerfile: the patched tree, as the git checkout it expects.

Its steps mount `.git` and ask it for the version. The sdist has none, so the tree becomes one
commit with upstream's tag, the same id on every machine.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from imagebuild.fetch.git import Git

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.upstream import Line

_PLAIN = ("-c", "core.autocrlf=false", "-c", "core.fileMode=true", "-c", "gc.auto=0")


def add_repository(tree: Path, line: Line, epoch: int) -> str:
    """Make a tree one commit of a new repository, tagged; return the commit.

    Raises:
        GitFailedError: if git is missing or fails.
    """
    shutil.rmtree(tree / ".git", ignore_errors=True)
    git = Git(tree)
    git.run("init", "--quiet", "--initial-branch=main")
    git.run(*_PLAIN, "add", "--all", "--force")
    when = f"{epoch} +0000"
    tree_id = git.text("write-tree")
    message = f"vLLM {line.version} with the patches of {line.local_version}\n"
    head = f"tree {tree_id}\nauthor vllm-sm120 <vllm-sm120@localhost> {when}\n"
    head += f"committer vllm-sm120 <vllm-sm120@localhost> {when}\n\n{message}"
    commit = git.run("hash-object", "-t", "commit", "-w", "--stdin", data=head.encode())
    name = commit.decode().strip()
    git.run("update-ref", "refs/heads/main", name)
    git.run("update-ref", f"refs/tags/{line.tag}", name)
    return name
