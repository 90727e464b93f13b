"""The source `git`: the pinned commit of a local mirror or of a remote repository, as a tree.

Nothing is ever checked out, so no hook, filter, attribute or line-end conversion touches the bytes.
A commit is accepted only if its files equal the sdist's, whose hash is the pin.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from imagebuild.errors import SourceError
from imagebuild.fetch import equality
from imagebuild.fetch.git import Git, GitFailedError
from imagebuild.fetch.gitobjects import ObjectReader
from imagebuild.fetch.transport import redacted
from imagebuild.files import storing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagebuild.fetch.cache import Cache
    from imagebuild.fetch.equality import Comparison
    from imagebuild.fetch.pack import Entry
    from imagebuild.progress import Progress

_FOLDER = "git"
_PROTOCOLS = "https:http:ssh:file"
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_WHOLE = 40

Kind = Literal["file", "link", "other"]
_KINDS: dict[str, Kind] = {"100644": "file", "100755": "file", "120000": "link"}


@dataclass(frozen=True)
class Item:
    """One path of a commit.

    Attributes:
        kind: what it is; `other` for a submodule.
        oid: the object's id.
    """

    kind: Kind
    oid: str


class GitTree:
    """The files of a commit; a `tree.Tree`. A link to a file of the same commit counts as one.

    Attributes:
        repository: where the commit is.
        commit: its whole id.
    """

    def __init__(self, repository: Git, commit: str) -> None:
        """Use `open` instead."""
        self.repository = repository
        self.commit = commit
        self._objects = ObjectReader(repository)

    @classmethod
    def open(
        cls,
        source: str,
        commit: str,
        cache: Cache,
        progress: Progress,
        *,
        tag: str | None = None,
        offline: bool = False,
    ) -> GitTree:
        """Return the tree of a commit.

        Args:
            source: the path of a repository, bare or not, or the URL of a remote one.
            commit: the commit's id, or its first seven digits or more where one commit of the
                repository begins with them.
            cache: where the commit of a remote repository is kept.
            progress: told of fetching.
            tag: what to fetch from a remote repository when `commit` is not a whole id.
            offline: never to touch the network.

        Raises:
            SourceError: if there is no such repository or commit, or git or the network is missing.
            StorageError: if the cache cannot be written.
        """
        if _COMMIT.fullmatch(commit) is None:
            raise _no_commit(source, commit, "no commit id")
        if "://" not in source:
            repository = _local(Path(source).absolute())
            return cls(repository, _resolve(repository, commit))
        wanted = commit if len(commit) == _WHOLE or tag is None else f"refs/tags/{tag}"
        repository = _scratch(source, cache)
        with cache.lock(repository.folder.name, progress, redacted(source)):
            if not _has(repository, commit):
                if offline:
                    raise _no_commit(redacted(source), commit, "nothing here, the network is off")
                progress.note(f"fetching {wanted} of {redacted(source)}")
                _fetch(repository, source, wanted)
        return cls(repository, _resolve(repository, commit))

    @property
    def label(self) -> str:
        """The commit's first digits and the repository."""
        return f"commit {self.commit[:12]} in {self.repository.folder}"

    @cached_property
    def items(self) -> Mapping[str, Item]:
        """Everything in the commit but folders, by path."""
        listing = self.repository.run("ls-tree", "-r", "-z", "--full-tree", self.commit)
        found = {}
        for line in listing.split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, _, oid = facts.decode().split()
            name = path.decode("utf-8", "surrogateescape")
            found[name] = Item(_KINDS.get(mode, "other"), oid)
        return found

    def read(self, path: str) -> bytes | None:
        """Return the content of the file at `path`, or None.

        Raises:
            SourceError: if the repository is damaged.
        """
        item = self.items.get(path)
        if item is not None and item.kind == "link":
            target = self._objects.read(item.oid).decode("utf-8", "surrogateescape")
            item = self.items.get(posixpath.normpath(posixpath.join(path, "..", target)))
        return self._objects.read(item.oid) if item is not None and item.kind == "file" else None

    def files(self) -> Iterator[str]:
        """Yield the paths of all files, sorted."""
        yield from sorted(
            path
            for path, item in self.items.items()
            if item.kind == "file" or (item.kind == "link" and self.read(path) is not None)
        )


def check_equals(tree: GitTree, manifest: Mapping[str, Entry]) -> Comparison:
    """Accept a commit as the source of an sdist, or refuse it; see `equality.check_equals`.

    Raises:
        ChecksumError: if a file differs, or only one of the two has it and no pattern allows that.
        SourceError: if the repository is damaged.
    """
    return equality.check_equals(tree, manifest, tree.items)


def _local(path: Path) -> Git:
    """Return the repository at `path` itself, never one above it."""
    for repository, folder in ((Git(path), path / ".git"), (Git(path, bare=True), path)):
        if folder.exists():
            try:
                repository.run("rev-parse", "--git-dir")
            except GitFailedError:
                continue
            return repository
    raise SourceError(
        "there is no git repository",
        file=path,
        expected="a git repository, bare or with a work tree",
        found="a folder without one" if path.is_dir() else "no folder",
        next_command=f"git --git-dir {path} rev-parse",
    )


def _scratch(url: str, cache: Cache) -> Git:
    name = hashlib.sha256(redacted(url).encode()).hexdigest()[:16]
    return Git(cache.folder(_FOLDER) / f"{name}.git", bare=True, protocols=_PROTOCOLS)


def _fetch(repository: Git, url: str, wanted: str) -> None:
    """Bring one commit, without history, into the scratch repository; its lock is held."""
    with storing(repository.folder):
        repository.folder.mkdir(exist_ok=True)
        for left_by_a_killed_git in repository.folder.glob("**/*.lock"):
            left_by_a_killed_git.unlink()
    repository.run("init", "--quiet", "--bare", "--template=")
    try:
        repository.run(
            "-c",
            "gc.auto=0",
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--end-of-options",
            url,
            f"+{wanted}:refs/pins/{wanted.removeprefix('refs/tags/')}",
        )
    except GitFailedError as error:
        raise SourceError(
            "the repository does not give the commit",
            file=redacted(url),
            expected=wanted,
            found="no such commit, or no network",
            next_command="python build.py build  (which takes the sdist)",
            detail=(error.detail or "").replace(url, redacted(url)),
        ) from error


def _candidates(repository: Git, prefix: str) -> list[str]:
    """Return the ids of the repository's commits that begin with `prefix`; refs do not count."""
    ids = (
        repository.text("rev-parse", f"--disambiguate={prefix}").split()
        if len(prefix) < _WHOLE
        else [prefix]
    )
    kinds = repository.run(
        "cat-file", "--batch-check", data="".join(f"{i}\n" for i in ids).encode()
    )
    facts = [line.split() for line in kinds.decode().splitlines()]
    return [fact[0] for fact in facts if fact[1] == "commit"]


def _has(repository: Git, commit: str) -> bool:
    return (repository.folder / "HEAD").exists() and bool(_candidates(repository, commit))


def _resolve(repository: Git, commit: str) -> str:
    found = _candidates(repository, commit)
    if len(found) != 1:
        several = f"{len(found)} commits: {', '.join(found[:3])}"
        raise _no_commit(repository.folder, commit, several if found else "no such commit")
    return found[0]


def _no_commit(where: object, commit: str, found: str) -> SourceError:
    return SourceError(
        "the git repository does not have the commit",
        file=where,
        expected=f"one commit {commit}",
        found=found,
        next_command=f"git -C {where} log -1 {commit}",
    )
