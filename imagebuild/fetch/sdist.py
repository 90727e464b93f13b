"""An sdist as a tree that gives any file at once, without unpacking it each time.

The first use reads the archive in one pass, checks its hash and everything that `archive` checks,
and leaves a pack in the cache; later uses open that. A pack that is half-written or damaged is made
again from the archive.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.digest import Sha256, parse_sha256
from imagebuild.errors import ChecksumError, StorageError
from imagebuild.fetch.archive import SourceArchive
from imagebuild.fetch.pack import FORMAT, DamagedPackError, Entry, Pack, PackWriter
from imagebuild.files import atomic, storing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagebuild.fetch.cache import Cache
    from imagebuild.progress import Progress

_FOLDER = "sdists"


class SdistTree:
    """The files of an sdist under its one top folder; a `tree.Tree`.

    Attributes:
        archive: the `.tar.gz`.
        sha256: its digest.
    """

    def __init__(
        self, archive: Path, sha256: Sha256, cache: Cache, progress: Progress, pack: Pack
    ) -> None:
        """Use `open` instead."""
        self.archive = archive
        self.sha256 = sha256
        self._cache = cache
        self._progress = progress
        self._pack = pack

    @classmethod
    def open(
        cls, path: Path, sha256: str, cache: Cache, progress: Progress, *, name: str | None = None
    ) -> SdistTree:
        """Return the tree of the sdist at `path`.

        Args:
            path: the `.tar.gz`; read only when the cache has no pack of it.
            sha256: its pinned digest; checked when it is read.
            cache: where the pack is kept.
            progress: told of reading the archive.
            name: the sdist's file name for people, where `path` is a blob named by its digest.

        Raises:
            ChecksumError: if the archive has another digest.
            ArchiveError: if the archive is damaged or holds what no sdist holds.
            SourceError: if the archive cannot be read.
            StorageError: if the cache cannot be written.
        """
        digest = parse_sha256(sha256)
        pack = _pack(path, digest, cache, progress, None, name or path.name)
        return cls(path, digest, cache, progress, pack)

    @property
    def label(self) -> str:
        """The sdist's file name."""
        return f"{self._pack.name}.tar.gz"

    def read(self, path: str) -> bytes | None:
        """Return the content of the file at `path`, checked against the manifest, or None.

        Raises:
            ChecksumError, ArchiveError, SourceError, StorageError: as for `open`, if the cache's
                pack turns out to be damaged and cannot be made again.
        """
        entry = self._pack.entries.get(path)
        if entry is None:
            return None
        try:
            return self._pack.read(entry)
        except DamagedPackError:
            self._pack = _pack(
                self.archive, self.sha256, self._cache, self._progress, self._pack, self.label
            )
            return self._pack.read(self._pack.entries[path])

    def files(self) -> Iterator[str]:
        """Yield the paths of all files, sorted."""
        yield from self._pack.entries

    def manifest(self) -> Mapping[str, Entry]:
        """Return digest, size and executable bit of every file, by path, sorted."""
        return self._pack.entries

    def extract(self, dest: Path, progress: Progress) -> None:
        """Unpack the sdist's files into the new folder `dest`, all of them or nothing.

        Files get mode 644 or 755, folders 755, whatever the umask.

        Raises:
            StorageError: if `dest` exists or cannot be written.
        """
        key = hashlib.sha256(os.fsencode(dest.absolute())).hexdigest()
        with self._cache.lock(f"extract-{key}", progress, str(dest)), storing(dest):
            if dest.exists() or dest.is_symlink():
                raise StorageError(
                    "there is something already where the tree should go",
                    file=dest,
                    expected="nothing",
                    found="a folder" if dest.is_dir() else "a file",
                    next_command=f"rm -r {dest}",
                )
            dest.parent.mkdir(parents=True, exist_ok=True)
            for leftover in dest.parent.glob(f".{dest.name}.*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)
            made = Path(tempfile.mkdtemp(prefix=f".{dest.name}.", suffix=".tmp", dir=dest.parent))
            try:
                self._write(made, progress)
                made.chmod(0o755)
                made.rename(dest)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise

    def _write(self, root: Path, progress: Progress) -> None:
        total = sum(entry.size for entry in self.manifest().values())
        folders = {""}
        with progress.step("unpack", self.label, total) as advance:
            for path, entry in self.manifest().items():
                _make_folders(root, path.rpartition("/")[0], folders)
                data = self.read(path) or b""
                with (root / path).open("xb") as file:
                    os.fchmod(file.fileno(), 0o755 if entry.executable else 0o644)
                    file.write(data)
                advance(entry.size)


def _make_folders(root: Path, folder: str, made: set[str]) -> None:
    if folder not in made:
        _make_folders(root, folder.rpartition("/")[0], made)
        (root / folder).mkdir()
        (root / folder).chmod(0o755)
        made.add(folder)


def _pack(
    archive: Path,
    sha256: Sha256,
    cache: Cache,
    progress: Progress,
    damaged: Pack | None,
    name: str,
) -> Pack:
    """Return the archive's pack; `damaged` is one that must not be used again."""
    path = cache.root / _FOLDER / f"{sha256}.v{FORMAT}.pack"
    if damaged is None:
        try:
            return Pack.open(path)
        except DamagedPackError:
            pass
    with cache.lock(f"sdist-{sha256}", progress, name), storing(path):
        if damaged is not None:
            path.unlink(missing_ok=True)
        for leftover in path.parent.glob(f".{path.name}.*.tmp"):
            leftover.unlink(missing_ok=True)
        try:
            return Pack.open(path)
        except DamagedPackError:
            _build(archive, sha256, path, progress, name)
    return Pack.open(path)


def _build(archive: Path, sha256: Sha256, path: Path, progress: Progress, name: str) -> None:
    with (
        SourceArchive(archive) as source,
        atomic(path) as file,
        progress.step("unpack", name, archive.stat().st_size) as advance,
    ):
        writer = PackWriter(file)
        seen = 0
        for member, pieces in source.members():
            writer.add(member.path, pieces, executable=member.executable)
            advance(source.consumed - seen)
            seen = source.consumed
        advance(source.consumed - seen)
        if source.sha256 != sha256:
            raise ChecksumError(
                "the sdist is not the one that is pinned",
                file=archive,
                expected=f"sha256:{sha256}",
                found=f"sha256:{source.sha256}",
                next_command=f"rm {archive}  (then build again, which fetches it anew)",
            )
        writer.finish(source.top)
