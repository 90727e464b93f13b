"""What upstream itself says of a change: commits on the same files, lines of its release notes."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imagebuild.errors import SourceError
from imagebuild.fetch import git
from imagebuild.upstream import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuild.upstream import Line

API = "https://api.github.com"
_TIMEOUT = 20  # seconds
_SHOWN = 30


@dataclass(frozen=True)
class Commit:
    """One of upstream's commits.

    Attributes:
        sha: its id.
        subject: the first line of its message.
    """

    sha: str
    subject: str

    @property
    def pull(self) -> str | None:
        """The number of the pull request that upstream writes at the subject's end."""
        match = re.search(r"\(#([0-9]+)\)$", self.subject)
        return match[1] if match else None


@dataclass(frozen=True)
class History:
    """What was found.

    Attributes:
        commits: for each file, the commits between the two releases, newest first.
        notes: the lines of the release notes that name one of those commits' pull requests.
        unreachable: why something could not be asked; empty if all answered.
    """

    commits: dict[str, tuple[Commit, ...]]
    notes: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()


class _Message(msgspec.Struct):
    message: str


class _Listed(msgspec.Struct):
    sha: str
    commit: _Message


class _Notes(msgspec.Struct):
    body: str | None = None


def of_clone(folder: str, old: Line, new: Line, paths: Sequence[str]) -> History:
    """Return the history from a clone of upstream on this machine."""
    if not Path(folder).is_dir():
        return History({}, (), (f"{folder}: no such folder",))
    found, failed = {}, []
    for path in paths:
        command = ["git", "-C", folder, "-c", "safe.directory=*", "log", "--format=%H %s"]
        done = subprocess.run(
            [*command, f"{old.tag}..{new.tag}", "--", path],
            capture_output=True,
            check=False,
            env=git.environment(),
        )
        if done.returncode:
            words = done.stderr.decode("utf-8", "replace").strip().splitlines()
            failed.append(f"{folder}: {words[0] if words else 'git log failed'}")
            break
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        commits = tuple(Commit(*line.split(" ", 1)) for line in lines)
        if commits:
            found[path] = commits
    return History(found, (), tuple(failed))


class _Api:
    """GitHub's REST API for one repository; read only."""

    def __init__(self, address: str) -> None:
        import requests  # noqa: PLC0415  (kept out of start-up)

        self.session = requests.Session()
        self.session.headers["Accept"] = "application/vnd.github+json"
        self.session.headers["User-Agent"] = "vllm-sm120"
        token = os.environ.get("GITHUB_TOKEN")
        if token:
            self.session.headers["Authorization"] = f"Bearer {token}"
        self.root = f"{address}/repos/{REPOSITORY.removeprefix('https://github.com/')}"

    def get(self, where: str, /, **query: str) -> bytes:
        import requests  # noqa: PLC0415  (kept out of start-up)

        try:
            response = self.session.get(f"{self.root}{where}", params=query, timeout=_TIMEOUT)
        except requests.RequestException as error:
            raise SourceError(
                "GitHub cannot be asked",
                file=f"{self.root}{where}",
                expected="an answer",
                found=type(error).__name__,
                next_command="the same command with --history CLONE",
            ) from error
        if not response.ok:
            raise SourceError(
                "GitHub refuses to answer",
                file=f"{self.root}{where}",
                expected="HTTP 200",
                found=f"HTTP {response.status_code}",
                next_command="set GITHUB_TOKEN, or use --history CLONE",
            )
        return response.content


def of_github(old: Line, new: Line, paths: Sequence[str], address: str = API) -> History:
    """Return the history from GitHub; what does not answer is said, not raised."""
    api = _Api(address)
    found: dict[str, tuple[Commit, ...]] = {}
    try:
        for path in paths:
            data = api.get(
                "/commits",
                path=path,
                sha=new.tag,
                since=old.released.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                per_page=str(_SHOWN),
            )
            listed = msgspec.json.decode(data, type=list[_Listed])
            commits = tuple(Commit(c.sha, c.commit.message.partition("\n")[0]) for c in listed)
            if commits:
                found[path] = commits
        notes = msgspec.json.decode(api.get(f"/releases/tags/{new.tag}"), type=_Notes)
    except SourceError as error:
        return History(found, (), (f"{error.summary}: {error.file} ({error.found})",))
    except msgspec.DecodeError as error:
        return History(found, (), (f"GitHub answers with something else: {error}",))
    pulls = {commit.pull for commits in found.values() for commit in commits if commit.pull}
    lines = (notes.body or "").splitlines()
    telling = tuple(line.strip() for line in lines if pulls & set(re.findall(r"#([0-9]+)", line)))
    return History(found, telling)


def read(
    clone: str | None, old: Line, new: Line, paths: Sequence[str], *, offline: bool
) -> History:
    """Return what upstream says of the files between two releases.

    Args:
        clone: a clone on this machine; None for GitHub.
        old: the line that the series comes from.
        new: the new one.
        paths: the files that the series touches.
        offline: never to touch the network.
    """
    if clone is not None:
        return of_clone(clone, old, new, paths)
    if offline:
        return History({}, (), ("--offline",))
    return of_github(old, new, paths)
