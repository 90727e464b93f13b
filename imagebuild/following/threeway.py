"""Three-way merge of one file, by git, without a repository."""

from __future__ import annotations

import ast
import subprocess
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from imagebuild.fetch.git import GitFailedError, environment

_CONFLICTS = range(1, 128)  # git-merge-file(1): the number of conflicts, cut at 127


@dataclass(frozen=True)
class Side:
    """One of the three contents, with the name that conflict markers give it."""

    label: str
    data: bytes


@dataclass(frozen=True)
class Merged:
    """What came of a merge.

    Attributes:
        data: the content, with conflict markers where there are conflicts.
        conflicts: how many there are.
    """

    data: bytes
    conflicts: int


def merge(base: Side, ours: Side, theirs: Side) -> Merged:
    """Return `ours` with the change from `base` to `theirs` made in it.

    Args:
        base: the file that both sides started from.
        ours: the file as it is now.
        theirs: `base` with the patch.

    Raises:
        GitFailedError: if git is missing, or refuses the files, such as binary ones.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, side in (("ours", ours), ("base", base), ("theirs", theirs)):
            paths.append(Path(folder, name))
            paths[-1].write_bytes(side.data)
        labels = [x for side in (ours, base, theirs) for x in ("-L", side.label)]
        command = ["git", "merge-file", "--stdout", "--diff3", *labels, *map(str, paths)]
        try:
            done = subprocess.run(
                command, capture_output=True, check=False, env=environment(), cwd=folder
            )
        except FileNotFoundError as error:
            raise GitFailedError(
                "git is not installed",
                file="git",
                expected="git on PATH",
                found="no such command",
                next_command="apt-get install git",
            ) from error
    if done.returncode not in (0, *_CONFLICTS):
        raise GitFailedError(
            "git merge-file failed",
            file=theirs.label,
            expected="a merge, or conflicts",
            found=f"exit status {done.returncode}",
            next_command="git --version",
            detail=done.stderr.decode("utf-8", "replace"),
        )
    return Merged(done.stdout, done.returncode)


def is_broken(path: str, before: bytes, after: bytes) -> bool:
    """Return whether a merge made Python source unreadable that was readable before."""
    return path.endswith(".py") and _parses(before) and not _parses(after)


def _parses(source: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
