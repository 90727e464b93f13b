"""Running git so that no configuration, hook or surrounding repository changes the result."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE = 30  # seconds
_PLAIN = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
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
        protocols: what git may fetch over, separated by colons; nothing unless told, since a
            repository's own configuration can name commands to run for a fetch.
    """

    folder: Path
    bare: bool = False
    protocols: str = "none"

    def run(self, *arguments: str, data: bytes | None = None, check: bool = True) -> bytes:
        """Return what git prints.

        Args:
            arguments: the command and its arguments.
            data: the command's standard input.
            check: whether a non-zero exit status is an error.

        Raises:
            GitFailedError: if git is missing, or fails while `check` is set.
        """
        try:
            done = subprocess.run(
                self._command(*arguments),
                input=data or b"",
                capture_output=True,
                check=False,
                env=self._environment(),
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

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Return git, running, with pipes to its standard input and from its standard output.

        Raises:
            OSError: if it cannot be started.
        """
        return subprocess.Popen(
            self._command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment(),
            cwd=self.folder,
        )

    def _command(self, *arguments: str) -> list[str]:
        where = ["--git-dir", str(self.folder if self.bare else self.folder / ".git")]
        if not self.bare:
            where += ["--work-tree", str(self.folder)]
        plain = ["-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null"]
        return ["git", *where, *plain, *arguments]

    def _environment(self) -> dict[str, str]:
        return environment() | {"GIT_ALLOW_PROTOCOL": self.protocols}

    def text(self, *arguments: str, check: bool = True) -> str:
        """Return what git prints as text without the last line's end."""
        return self.run(*arguments, check=check).decode("utf-8", "replace").rstrip("\n")


def remote_tag(repository: str, tag: str) -> str:
    """Return the commit that a tag points to now, at a repository's address.

    Raises:
        SourceError: if the repository does not answer or has no such tag.
    """
    wanted = (f"refs/tags/{tag}^{{}}", f"refs/tags/{tag}")
    next_command = f"git ls-remote {repository} {wanted[1]}"
    try:
        done = subprocess.run(
            ["git", "ls-remote", repository, *wanted],
            capture_output=True,
            check=False,
            env=environment(),
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise SourceError(
            "upstream's repository cannot be asked",
            file=repository,
            expected="an answer from git",
            found="git is not installed" if isinstance(error, FileNotFoundError) else "no answer",
            next_command=next_command,
        ) from error
    found = {
        name: commit
        for commit, _, name in (
            line.partition("\t") for line in done.stdout.decode("utf-8", "replace").splitlines()
        )
    }
    for name in wanted:
        if name in found:
            return found[name]
    words = done.stderr.decode("utf-8", "replace").strip().splitlines()
    raise SourceError(
        f"upstream's repository does not say what tag {tag} is",
        file=repository,
        expected=f"refs/tags/{tag}",
        found=words[-1] if words else "no such tag",
        next_command=next_command,
    )
