"""Gathering the status: which lines meet which releases, and the rows that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.digest import Sha256
from imagebuild.following import pending, releases, skew, status
from imagebuild.following.status import Column, Row
from imagebuild.patching import checksums, series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagebuild.errors import BuildError
    from imagebuild.fetch.sdist import SdistTree
    from imagebuild.fetch.sources import Sources
    from imagebuild.patching.checksums import LineChecksums
    from imagebuild.patching.series import Series
    from imagebuild.project import Project
    from imagebuild.upstream import Line, UpstreamLock


@dataclass(frozen=True)
class Subject:
    """A line with what its patches are.

    Attributes:
        name: the line's name.
        line: its pins.
        series: its patches.
        pins: its digests.
        waiting: the patches that its series file says are pending.
    """

    name: str
    line: Line
    series: Series
    pins: LineChecksums
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """All rows.

    Attributes:
        releases: the columns, oldest first.
        rows: one a line.
        problems: what is wrong with the series themselves.
    """

    releases: tuple[str, ...]
    rows: tuple[Row, ...]
    problems: tuple[BuildError, ...]


def subjects(project: Project, lock: UpstreamLock, names: Iterable[str]) -> tuple[Subject, ...]:
    """Return lines with their series, each compared with `checksums.lock`.

    Raises:
        BuildError: if a file of a series is not what the lock says.
    """
    pins = checksums.load(project.checksums_lock)
    found = []
    for wanted in names or lock.lines:
        name, line = lock.line(wanted)
        loaded = series.load(project, name)
        checksums.check_inputs(pins.line(name), loaded)
        waiting = pending.pending_of(project, name)
        found.append(Subject(name, line, loaded, pins.line(name), waiting))
    return tuple(found)


def columns(
    chosen: Iterable[Subject], lock: UpstreamLock, sources: Sources, wanted: str | None
) -> tuple[str, ...]:
    """Return the releases to look at, oldest first: those wanted, and each line's own.

    Without a wish: the lines' own releases and every stable one that is newer than all lines.

    Raises:
        UsageError: if `wanted` is no range, or nothing lies in it.
        SourceError: if the index does not answer.
    """
    there = releases.at_hand(sources, lock) if sources.offline else None
    there = there or releases.listed(sources, recent=True)
    own = {subject.line.version for subject in chosen}
    if wanted is not None:
        found = own | set(releases.between(there, wanted))
    else:
        newest = max(releases.parse(line.version) for line in lock.lines.values())
        found = own | {r.version for r in there if releases.is_stable(r) and r.parsed > newest}
    return tuple(sorted(found, key=releases.parse))


@dataclass
class _Trees:
    """The releases, opened when something has to be computed on them."""

    lock: UpstreamLock
    sources: Sources

    def open(self, release: str) -> SdistTree:
        return self.sources.release(release, self.lock)

    def digest(self, release: str) -> Sha256:
        """Return the sdist's digest without opening it, where it is known."""
        line = self.lock.lines.get(f"v{release}")
        if line is not None:
            return Sha256(line.sdist.sha256)
        record = self.sources.cache.folder("releases") / f"{releases.PROJECT}-{release}.tar.gz"
        return Sha256(record.read_text()) if record.is_file() else self.open(release).sha256


def _column(subject: Subject, release: str, trees: _Trees, *, refresh: bool) -> Column:
    name = status.key(subject.line, subject.series, subject.pins, trees.digest(release))

    def make() -> Column:
        own = trees.open(subject.line.version)
        tree = own if release == subject.line.version else trees.open(release)
        newer = releases.parse(release) > releases.parse(subject.line.version)
        return status.compute(subject.line, subject.series, subject.pins, own, tree, newer=newer)

    return status.column(trees.sources.cache, name, make, refresh=refresh)


def _expired(subject: Subject) -> dict[str, dict[str, tuple[str, ...]]]:
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for patch in subject.series.patches:
        gone = skew.expired(patch, subject.line)
        if gone:
            found[patch.name] = {name: tuple(map(str, why)) for name, why in gone.items()}
    return found


def gather(
    chosen: tuple[Subject, ...],
    wanted: tuple[str, ...],
    lock: UpstreamLock,
    sources: Sources,
    *,
    refresh: bool = False,
) -> Matrix:
    """Return what every patch of the chosen lines meets in every wanted release.

    Args:
        chosen: the lines.
        wanted: the releases.
        lock: all lines.
        sources: where releases come from.
        refresh: whether to compute what the cache has already.

    Raises:
        SourceError: if a release cannot be had.
    """
    trees = _Trees(lock, sources)
    made: dict[str, dict[str, Column]] = {subject.name: {} for subject in chosen}
    # Release by release, so that a cold run holds few releases' data at once.
    for release in wanted:
        for subject in chosen:
            made[subject.name][release] = _column(subject, release, trees, refresh=refresh)
    rows = tuple(Row(s.name, made[s.name], _expired(s), s.waiting) for s in chosen)
    labels = {s.name: s.line.sdist.name for s in chosen}
    problems = status.problems(rows, {s.name: s.series for s in chosen}, labels)
    return Matrix(wanted, rows, tuple(problems))
