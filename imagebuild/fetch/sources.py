"""Where a line's content comes from, opened: sdists, wheels, other trees, upstream's repository."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild import files
from imagebuild.digest import parse_sha256
from imagebuild.errors import SourceError, UnpinnedError
from imagebuild.fetch.cache import Cache
from imagebuild.fetch.tree import DirTree, WithoutTree
from imagebuild.upstream import REPOSITORY, FilePin

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagebuild.fetch.equality import Comparison
    from imagebuild.fetch.package_index import IndexFile
    from imagebuild.fetch.sdist import SdistTree
    from imagebuild.fetch.tree import Tree
    from imagebuild.images.ocibase import Source
    from imagebuild.images.registry import Resolved
    from imagebuild.progress import Progress
    from imagebuild.upstream import ImagePin, Line, Platform, UpstreamLock


@dataclass
class Sources:
    """Everything a run reads from outside the project.

    Attributes:
        cache: the user's cache.
        progress: what is told of downloads.
        offline: never to touch the network.
    """

    cache: Cache
    progress: Progress
    offline: bool
    _open: dict[str, SdistTree] = field(default_factory=dict)

    @classmethod
    def for_run(cls, progress: Progress, *, offline: bool) -> Sources:
        """Return the sources of one run, with the user's cache."""
        return cls(Cache.default(), progress, offline)

    def file(self, pin: FilePin) -> Path:
        """Return a pinned file of the index, from the cache or the network.

        Raises:
            SourceError: if it cannot be had.
            ChecksumError: if what arrives is not what is pinned.
        """
        from imagebuild.fetch import download  # noqa: PLC0415  (kept out of start-up)

        return download.fetch(pin, self.cache, self.progress, offline=self.offline)

    def _sdist(self, pin: FilePin) -> SdistTree:
        from imagebuild.fetch.sdist import SdistTree  # noqa: PLC0415  (kept out of start-up)

        if pin.sha256 not in self._open:
            self._open[pin.sha256] = SdistTree.open(
                self.file(pin),
                parse_sha256(pin.sha256),
                self.cache,
                self.progress,
                name=pin.name,
            )
        return self._open[pin.sha256]

    def sdist(self, line: Line) -> SdistTree:
        """Return a line's release.

        Raises:
            SourceError: if it cannot be had.
            ChecksumError: if what arrives is not what is pinned.
            ArchiveError: if it is damaged or unsafe.
        """
        return self._sdist(line.sdist)

    def wheel(self, line: Line, platform: Platform) -> Path:
        """Return a line's official wheel.

        Raises:
            UnpinnedError: if the line pins none for `platform`.
            SourceError: if it cannot be had.
            ChecksumError: if what arrives is not what is pinned.
        """
        return self.file(line.wheel(platform))

    def release_files(self, version: str) -> tuple[IndexFile, ...]:
        """Return what the package index has of one vLLM release.

        Raises:
            SourceError: if the index does not answer or knows no such release.
        """
        from imagebuild.fetch import package_index  # noqa: PLC0415  (kept out of start-up)

        if self.offline:
            raise SourceError(
                "the package index cannot be asked",
                file=f"vllm {version}",
                expected="the network",
                found="--offline",
                next_command="the same command without --offline",
            )
        with package_index.configured() as index:
            return index.release_files("vllm", version)

    def release(self, version: str, lock: UpstreamLock) -> SdistTree:
        """Return any vLLM release: a line's by its pin, another one's by the index's word.

        Raises:
            SourceError: if there is no such release or no sdist of it.
        """
        bare = version.removeprefix("v")
        if f"v{bare}" in lock.lines:
            return self.sdist(lock.lines[f"v{bare}"])
        name = f"vllm-{bare}.tar.gz"
        known = self.cache.folder("releases") / name
        if known.is_file():
            return self._sdist(FilePin(name=name, sha256=known.read_text()))
        listed = [file for file in self.release_files(bare) if file.name == name and file.sha256]
        if not listed or listed[0].sha256 is None:
            raise SourceError(
                f"no sdist of vLLM {bare}",
                file=name,
                expected="an sdist with a SHA-256 in the package index",
                found="none",
                next_command="python build.py check --release X   (another X)",
            )
        pin = FilePin(name=name, sha256=listed[0].sha256)
        tree = self._sdist(pin)
        files.write_atomic(known, pin.sha256.encode())
        return tree

    def remote_tag(self, repository: str, tag: str) -> str:
        """Return the commit that a tag of a git repository points to now.

        Raises:
            SourceError: if the repository does not answer or has no such tag.
        """
        from imagebuild.fetch import git  # noqa: PLC0415  (kept out of start-up)

        return git.remote_tag(repository, tag)

    def resolve_image(self, pin: ImagePin) -> Resolved:
        """Return what an image's tag means now.

        Raises:
            RegistryError: if the registry does not say.
            ArchiveError: if what it says makes no sense.
        """
        from imagebuild.images.registry import Registry  # noqa: PLC0415  (kept out of start-up)

        with Registry(pin.repository) as registry:
            return registry.resolve(pin.ref.rsplit(":", 1)[1])

    def image(self, line: Line, layout: Path | None) -> Source:
        """Return where a line's official image is read from: an OCI layout, or its registry.

        Raises:
            UnpinnedError: if the line names no image.
        """
        if line.image is None:
            raise UnpinnedError(
                f"the line {line.tag} names no official image",
                file="upstream.lock",
                expected=f'[lines."{line.tag}".image]',
                found="no such table",
                next_command=f"python build.py show {line.tag}",
            )
        if layout is not None:
            from imagebuild.images.ocilayout import LayoutSource  # noqa: PLC0415  (kept out of start-up)

            return LayoutSource(layout)
        from imagebuild.images.basecache import RememberingSource  # noqa: PLC0415  (the same)
        from imagebuild.images.registry import Registry  # noqa: PLC0415  (the same)

        return RememberingSource(Registry(line.image.repository), self.cache, self.offline)

    def tree(self, spec: str, line: Line, produced: Collection[str]) -> Tree:
        """Return the tree that a `--source` names; its files are the sdist's.

        Args:
            spec: `sdist`, `git`, `git:REPO` or a folder.
            line: the line.
            produced: paths that a folder may have patched already; the plan decides on them.

        Raises:
            SourceError: if it cannot be had.
            ChecksumError: if its files are not the sdist's.
        """
        own = self.sdist(line)
        if spec == "sdist":
            return own
        from imagebuild.fetch import equality  # noqa: PLC0415  (kept out of start-up)

        if spec == "git" or spec.startswith("git:"):
            from imagebuild.fetch import gitsource  # noqa: PLC0415  (kept out of start-up)

            repository = spec.removeprefix("git").removeprefix(":") or REPOSITORY
            tree = gitsource.GitTree.open(
                repository,
                line.best_commit,
                self.cache,
                self.progress,
                tag=line.tag,
                offline=self.offline,
            )
            same = gitsource.check_equals(tree, own.manifest())
            self._note(tree, same)
            return tree
        folder = DirTree(Path(spec).absolute())
        if not folder.root.is_dir():
            raise SourceError(
                "no such source",
                file=folder.root,
                expected="sdist, git, git:REPO or a folder",
                found="no such folder",
                next_command="python build.py build --help",
            )
        rest = {path: e for path, e in own.manifest().items() if path not in produced}
        self._note(folder, equality.check_equals(WithoutTree(folder, frozenset(produced)), rest))
        return folder

    def _note(self, tree: Tree, same: Comparison) -> None:
        only = [
            f"only in {where}: {', '.join(paths)}"
            for where, paths in (("the sdist", same.sdist_only), ("the source", same.tree_only))
            if paths
        ]
        text = "; ".join([f"{same.equal} files are the sdist's", *only])
        self.progress.note(f"{tree.label}: {text}")
