"""A new line of a new release: prepared without touching the project, then written as a whole."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild import files, schema, upstream
from imagebuild.errors import UsageError
from imagebuild.files import storing
from imagebuild.following import carry, history, matrix, newline, pending, releases
from imagebuild.patching import assemble, checksums, patch_table, series

if TYPE_CHECKING:
    from imagebuild.fetch.git import Git
    from imagebuild.fetch.sdist import SdistTree
    from imagebuild.fetch.sources import Sources
    from imagebuild.following.carry import Carried
    from imagebuild.following.history import History
    from imagebuild.following.matrix import Matrix
    from imagebuild.following.newline import NewLine
    from imagebuild.project import Project
    from imagebuild.upstream import Line, UpstreamLock

PAGE = Path("docs", "patches.md")
Churn = dict[str, tuple[int, int] | None]


@dataclass(frozen=True)
class Bump:
    """What becomes of a line's series on a new release.

    Attributes:
        source: the line that the series comes from.
        old: its pins.
        new: the new line.
        results: what became of each patch.
        metadata: each patch's metadata file for the new line, pending ones included.
        overlay: the new line's overlay files.
        churn: for each file of the series, how many lines upstream put in and took out; None for a
            file that is gone.
        status: every line's series on the new release.
        history: what upstream says of the files.
        missing: the patches that are pending in the old line, and so cannot come along.
    """

    source: str
    old: Line
    new: NewLine
    results: tuple[Carried, ...]
    metadata: dict[str, bytes]
    overlay: dict[str, bytes]
    churn: Churn
    status: Matrix
    history: History
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The new line's name."""
        return self.new.line.tag

    def of(self, decision: str) -> tuple[Carried, ...]:
        """Return the patches for which that was decided."""
        return tuple(result for result in self.results if result.decision == decision)

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of the patches that wait for a person, in order."""
        return tuple(result.old.name for result in self.of("pending"))


@dataclass(frozen=True)
class Wanted:
    """What a bump is asked for.

    Attributes:
        version: the release.
        source: the line to take the series from; None for the nearest.
        clone: a clone of upstream to read its history from; None for GitHub.
    """

    version: str
    source: str | None = None
    clone: str | None = None


def _churn(git: Git, base: SdistTree, tree: SdistTree, paths: tuple[str, ...]) -> Churn:
    found: Churn = {}
    for path in paths:
        counted = git.text("diff", "--numstat", "--no-renames", "base", "upstream", "--", path)
        numbers = counted.split("\t")[:2] if counted else ["0", "0"]
        gone = base.read(path) is not None and tree.read(path) is None
        found[path] = None if gone else (int(numbers[0]), int(numbers[1]))
    return found


def prepare(home: Project, lock: UpstreamLock, wanted: Wanted, sources: Sources) -> Bump:
    """Return what a bump would make; nothing of the project is changed.

    Raises:
        UsageError: if there is no such line.
        SourceError: if the release or the index cannot be had.
        BuildError: if the series is not in order on its own line.
    """
    version = wanted.version.removeprefix("v")
    source, old = lock.line(wanted.source or newline.nearest(lock, version))
    found = series.load(home, source)
    checksums.check_inputs(checksums.load(home.checksums_lock).line(source), found)
    base, tree = sources.sdist(old), sources.release(version, lock)
    new = newline.resolve(version, old, lock, tree, sources)
    with tempfile.TemporaryDirectory() as folder:
        carrier = carry.Carrier.start(Path(folder, "series"), found, base, tree, new.line.tag)
        results = tuple(carrier.run())
        churn = _churn(carrier.git, base, tree, found.targets)
        overlay = carrier.series().overlay
    metadata = {
        result.old.name: newline.metadata(
            schema.read_bytes(home.patches(source) / f"{result.old.name}.toml", "metadata"),
            result,
            old,
        )
        for result in results
        if result.decision != "left out"
    }
    subjects = matrix.subjects(home, lock, ())
    status = matrix.gather(subjects, (version,), lock, sources)
    told = history.read(wanted.clone, old, new.line, found.targets, offline=sources.offline)
    missing = pending.pending_of(home, source)
    return Bump(source, old, new, results, metadata, overlay, churn, status, told, missing)


def write(home: Project, bump: Bump, sources: Sources) -> tuple[str, ...]:
    """Write the new line into the project: series, overlay, locks, the page of patches.

    `upstream.lock` comes last: until then nothing of the line counts, and a run that was killed is
    simply run again.

    Returns:
        The paths that were written, from the project's root.

    Raises:
        BuildError: if the new series contradicts itself; nothing counts then.
    """
    folder, laid = home.patches(bump.name), home.overlay(bump.name)
    _check_ours(home, bump.name)
    with storing(folder):
        for leftover in (folder, laid):
            shutil.rmtree(leftover, ignore_errors=True)
    for result in bump.results:
        if result.new is not None:
            files.write_atomic(folder / f"{result.old.name}.patch", result.new.text.data)
            files.write_atomic(folder / f"{result.old.name}.toml", bump.metadata[result.old.name])
    for path, data in bump.overlay.items():
        files.write_atomic(laid / path, data)
    version = bump.new.line.version
    listed = newline.series_file(bump.source, version, bump.results, bump.missing)
    files.write_atomic(folder / "series", listed)
    relock(home, bump.new.line, sources)
    text = schema.read_bytes(home.upstream_lock, upstream.WHAT).decode().rstrip("\n") + "\n"
    data = (text + newline.as_toml(bump.new.line)).encode()
    upstream.parse(data, home.upstream_lock)
    files.write_atomic(home.upstream_lock, data)
    changed = [f"patches/{bump.name}", upstream.WHAT, checksums.WHAT]
    changed += [f"overlay/{bump.name}"] if bump.overlay else []
    return (*changed, *write_page(home))


def _check_ours(home: Project, name: str) -> None:
    """Refuse to write over a series that no bump has begun."""
    folder = home.patches(name)
    begun = (folder / "series").is_file() and pending.source_of(home, name) is not None
    if folder.exists() and any(folder.iterdir()) and not begun:
        raise UsageError(
            f"there is a series for {name} already, though {upstream.WHAT} has no such line",
            file=folder,
            expected="no such folder, or one that an earlier bump has begun",
            found=", ".join(sorted(file.name for file in folder.iterdir())[:5]),
            next_command=f"git status -- {folder}",
        )


def relock(home: Project, line: Line, sources: Sources) -> None:
    """Derive the checksums of a line anew and write them."""
    pins = checksums.load(home.checksums_lock)
    derived = assemble.derive(line, series.load(home, line.tag), sources.sdist(line))
    lines = {**pins.lines, line.tag: derived}
    files.write_atomic(
        home.checksums_lock, checksums.dump(checksums.Checksums(schema=pins.schema, lines=lines))
    )


def write_page(home: Project) -> tuple[str, ...]:
    """Write the page of patches anew, where the project has one; return what was written."""
    path = home.root / PAGE
    if not path.is_file():
        return ()
    lock = upstream.load(home.upstream_lock)
    loaded = [(line, series.load(home, name)) for name, line in lock.lines.items()]
    files.write_atomic(path, patch_table.render(loaded).encode())
    return (PAGE.as_posix(),)


def choose(lock: UpstreamLock, version: str | None, days: int, sources: Sources) -> Choice:
    """Return the release to make a line of.

    Args:
        lock: the lines that there are.
        version: the release that was asked for; None for the newest that is old enough.
        days: how old it has to be then.
        sources: where the index is.
    """
    if version is not None:
        return Choice(version.removeprefix("v"), ())
    found, skipped = releases.candidate(
        releases.listed(sources), lock, dt.datetime.now(dt.UTC), days
    )
    return Choice(found.version if found else None, skipped)


@dataclass(frozen=True)
class Choice:
    """The release to follow, if any, and those passed over with the reasons."""

    version: str | None
    skipped: tuple[releases.Skipped, ...]


def check_new(lock: UpstreamLock, version: str) -> None:
    """Refuse a release that has a line already.

    Raises:
        UsageError: if it has.
    """
    if f"v{version}" in lock.lines:
        raise UsageError(
            f"there is a line of vLLM {version} already",
            file=upstream.WHAT,
            expected="a release without a line, or one with pending patches",
            found=f'[lines."v{version}"], nothing pending',
            next_command=f"python build.py check v{version}",
        )
