"""Running git so that no configuration, hook or surrounding repository changes the result."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

_PLAIN = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "false",
    "LC_ALL": "C",
    "TZ": "UTC",
}


def environment() -> dict[str, str]:
    """Return the process's environment without any of git's variables, and with plain settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | _PLAIN


class GitFailedError(SourceError):
    """git ended with an error; its own words are the detail."""


@dataclass(frozen=True)
class Git:
    """One repository.

    Attributes:
        folder: the work tree or the bare repository; git is told so, and does not look above it.
        bare: whether it has no work tree.
    """

    folder: Path
    bare: bool = False

    def run(self, *arguments: str, data: bytes | None = None, check: bool = True) -> bytes:
        """Return what git prints.

        Args:
            arguments: the command and its arguments.
            data: the command's standard input.
            check: whether a non-zero exit status is an error.

        Raises:
            GitFailedError: if git is missing, or fails while `check` is set.
        """
        where = ["--git-dir", str(self.folder if self.bare else self.folder / ".git")]
        if not self.bare:
            where += ["--work-tree", str(self.folder)]
        command = ["git", *where, "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null"]
        try:
            done = subprocess.run(
                [*command, *arguments],
                input=data or b"",
                capture_output=True,
                check=False,
                env=environment(),
                cwd=self.folder if self.folder.is_dir() else None,
            )
        except FileNotFoundError as error:
            raise GitFailedError(
                "git is not installed",
                file="git",
                expected="git on PATH",
                found="no such command",
                next_command="apt-get install git",
            ) from error
        if check and done.returncode != 0:
            raise GitFailedError(
                f"git {arguments[0]} failed",
                file=self.folder,
                expected="exit status 0",
                found=f"exit status {done.returncode}",
                next_command=f"git -C {self.folder} status",
                detail=done.stderr.decode("utf-8", "replace"),
            )
        return done.stdout

    def text(self, *arguments: str, check: bool = True) -> str:
        """Return what git prints as text without the last line's end."""
        return self.run(*arguments, check=check).decode("utf-8", "replace").rstrip("\n")
