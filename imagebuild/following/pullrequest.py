"""One pull request a release: opened once, updated in place, left alone once people work on it."""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imagebuild.errors import RegistryError, SourceError, UsageError
from imagebuild.fetch import git
from imagebuild.following.history import API

if TYPE_CHECKING:
    from imagebuild.project import Project

BOT = ("github-actions[bot]", "41898282+github-actions[bot]@users.noreply.github.com")
_TIMEOUT = 30  # seconds


@dataclass(frozen=True)
class Target:
    """Where the pull request goes.

    Attributes:
        repository: `OWNER/NAME`.
        token: what may push and open pull requests.
        remote: the address that is pushed to.
        api: the address of the API.
        base: the branch that it is to be merged into.
    """

    repository: str
    token: str
    remote: str
    api: str = API
    base: str = "main"

    @classmethod
    def of_environment(cls, base: str | None = None) -> Target:
        """Return what the environment of a workflow names.

        Args:
            base: the branch to merge into; by default the one that the workflow runs on.

        Raises:
            UsageError: naming the variable that is missing.
        """
        for name in ("GITHUB_TOKEN", "GITHUB_REPOSITORY"):
            if not os.environ.get(name):
                raise UsageError(
                    "a pull request needs to know where it goes",
                    file=f"the environment variable {name}",
                    expected="GITHUB_TOKEN and GITHUB_REPOSITORY, as a workflow sets them",
                    found="not set",
                    next_command="python build.py bump --dry-run",
                )
        repository = os.environ["GITHUB_REPOSITORY"]
        server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
        api = os.environ.get("GITHUB_API_URL", API)
        into = base or os.environ.get("GITHUB_REF_NAME", "main")
        return cls(repository, os.environ["GITHUB_TOKEN"], f"{server}/{repository}.git", api, into)


class _Pull(msgspec.Struct):
    number: int
    state: str
    title: str
    html_url: str = ""
    body: str | None = None


@dataclass
class _Repository:
    """The checkout, and its remote; the user's branch and index are never touched."""

    root: Path
    target: Target
    index: str

    def run(self, *arguments: str, check: bool = True) -> str:
        name, email = BOT
        login = base64.b64encode(f"x-access-token:{self.target.token}".encode()).decode()
        more = {
            "GIT_INDEX_FILE": self.index,
            "GIT_AUTHOR_NAME": name,
            "GIT_AUTHOR_EMAIL": email,
            "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": email,
        }
        if self.target.remote.startswith("https:"):  # not among the arguments, which others can see
            more |= {
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": f"http.{self.target.remote}.extraheader",
                "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {login}",
            }
        done = subprocess.run(
            ["git", "-C", str(self.root), *arguments],
            capture_output=True,
            check=False,
            env=git.environment() | more,
        )
        if check and done.returncode:
            raise git.GitFailedError(
                f"git {arguments[0]} failed",
                file=self.root,
                expected="exit status 0",
                found=f"exit status {done.returncode}",
                next_command=f"git -C {self.root} status",
                detail=done.stderr.decode("utf-8", "replace"),
            )
        return done.stdout.decode("utf-8", "replace").strip()


class _Api:
    """GitHub's REST API for the target's pull requests."""

    def __init__(self, target: Target) -> None:
        import requests  # noqa: PLC0415  (kept out of start-up)

        self.target = target
        self.session = requests.Session()
        self.session.headers["Accept"] = "application/vnd.github+json"
        self.session.headers["Authorization"] = f"Bearer {target.token}"

    def ask(self, method: str, path: str, **body: str) -> bytes:
        import requests  # noqa: PLC0415  (kept out of start-up)

        url = f"{self.target.api}/repos/{self.target.repository}/{path}"
        try:
            response = self.session.request(method, url, json=body or None, timeout=_TIMEOUT)
        except requests.RequestException as error:
            raise SourceError(
                "GitHub cannot be asked",
                file=url,
                expected="an answer",
                found=type(error).__name__,
                next_command="the same command again",
            ) from error
        if not response.ok:
            raise RegistryError(
                f"GitHub refuses to {method} a pull request",
                file=url,
                expected="HTTP 2xx",
                found=f"HTTP {response.status_code}",
                next_command="give the workflow `pull-requests: write` and `contents: write`",
                detail=response.text[:500],
            )
        return response.content

    def of_branch(self, branch: str) -> list[_Pull]:
        owner = self.target.repository.partition("/")[0]
        data = self.ask("GET", f"pulls?state=all&head={owner}:{branch}&base={self.target.base}")
        return msgspec.json.decode(data, type=list[_Pull])


def _commit(repository: _Repository, paths: tuple[str, ...], title: str) -> str:
    """Return a commit on HEAD with the paths as they are in the work tree."""
    repository.run("read-tree", "HEAD")
    repository.run("add", "--all", "--force", "--", *paths)
    tree = repository.run("write-tree")
    return repository.run("commit-tree", tree, "-p", "HEAD", "-m", title)


def _push(repository: _Repository, branch: str, commit: str) -> str:
    """Push the commit unless the branch has its content, or somebody else's work.

    Returns:
        `pushed`, `unchanged`, or why the branch was left alone.
    """
    remote, ref = repository.target.remote, f"refs/heads/{branch}"
    there = repository.run("ls-remote", remote, ref).partition("\t")[0]
    if there:
        repository.run("fetch", "--quiet", "--no-tags", remote, ref)
        emails = repository.run("log", "--format=%ae", f"HEAD..{there}").split()
        others = sorted({email for email in emails if email != BOT[1]})
        if others:
            return f"left alone: {', '.join(others)} works on {branch}"
        trees = repository.run("rev-parse", f"{there}^{{tree}}", f"{commit}^{{tree}}").split()
        if trees[0] == trees[1]:
            return "unchanged"
    lease = f"--force-with-lease={ref}:{there}"
    repository.run("push", "--quiet", lease, remote, f"{commit}:{ref}")
    return "pushed"


@dataclass(frozen=True)
class Change:
    """What a pull request is about.

    Attributes:
        name: the line or the version; names the branch, behind `kind`.
        paths: what belongs to it, from the project's root.
        title: its title, and the commit's message.
        body: its text.
        kind: the branch's first part.
    """

    name: str
    paths: tuple[str, ...]
    title: str
    body: str
    kind: str = "bump"


def publish(home: Project, target: Target, change: Change) -> str:
    """Push a line's files to its branch, and open its pull request or update it.

    Args:
        home: the checkout; only read.
        target: where to.
        change: what it is about.

    Returns:
        What was done, for people.

    Raises:
        SourceError: if git or GitHub fails.
        RegistryError: if GitHub refuses.
    """
    branch, title, body = f"{change.kind}/{change.name}", change.title, change.body
    api = _Api(target)
    pulls = api.of_branch(branch)
    opened = next((pull for pull in pulls if pull.state == "open"), None)
    if pulls and opened is None:
        return f"left alone: pull request #{pulls[0].number} for {branch} was closed"
    with tempfile.TemporaryDirectory() as folder:
        repository = _Repository(home.root, target, str(Path(folder, "index")))
        pushed = _push(repository, branch, _commit(repository, change.paths, title))
    if pushed.startswith("left alone"):
        return pushed
    if opened is None:
        data = api.ask("POST", "pulls", title=title, body=body, head=branch, base=target.base)
        made = msgspec.json.decode(data, type=_Pull)
        return f"opened pull request #{made.number} {made.html_url}".rstrip()
    if (opened.title, (opened.body or "").strip()) == (title, body.strip()):
        return f"pull request #{opened.number}: {pushed}"
    api.ask("PATCH", f"pulls/{opened.number}", title=title, body=body)
    return f"updated pull request #{opened.number}: {pushed}"
