"""One build: from a line and its sources to artifacts in a folder, and what became of each."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec

from imagebuild import files, release, state
from imagebuild.errors import (
    BuildError,
    BusyError,
    RegistryError,
    SourceError,
    UnpinnedError,
    UsageError,
)
from imagebuild.outputs import WRITERS, describe
from imagebuild.patching import assemble, checksums, series
from imagebuild.project import BUILDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imagebuild.fetch.sdist import SdistTree
    from imagebuild.fetch.sources import Sources
    from imagebuild.patching.checksums import LineChecksums
    from imagebuild.patching.produced import Patchset
    from imagebuild.patching.series import Series
    from imagebuild.progress import Progress
    from imagebuild.project import Project
    from imagebuild.release import Output
    from imagebuild.upstream import Line, Platform

    Made = tuple[Output, list[Path]]

Target = Literal["tree", "wheel", "layer", "image"]
Export = Literal["layout", "archive"]
DEFAULT_TARGETS: tuple[Target, ...] = ("wheel", "layer", "image")
EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"
_OLDEST, _NEWEST = 315532800, 4354819198  # what zip's DOS time can hold: 1980 to 2107


@dataclass(frozen=True)
class Request:
    """What a build is asked for.

    Attributes:
        line: the line's name.
        targets: what to make; empty for the default ones, of which one may be left out.
        platforms: for which platforms.
        source: `sdist`, `git`, `git:REPO` or a folder.
        dist: the folder of artifacts.
        base: an OCI layout with the official image, instead of the registry.
        export: in which form an image with the base's layers is written; None for none.
        builder_id: who builds, as a URI, for the provenance.
        wait: whether to wait for another build in the same folder.
    """

    line: str
    targets: tuple[Target, ...]
    platforms: tuple[Platform, ...]
    source: str
    dist: Path
    base: Path | None = None
    export: Export | None = None
    builder_id: str = BUILDER
    wait: bool = True

    @property
    def export_whole(self) -> bool:
        """Whether a platform's own layout gets the base's layers."""
        return self.export == "layout" and len(self.platforms) == 1


@dataclass(frozen=True)
class Row:
    """What became of one target.

    Attributes:
        target: the target; `index` and `archive` come of several images, or of a whole one.
        seconds: how long it took.
        output: the artifact, as `release.json` has it; None if it was not made.
        unchanged: whether it was there already.
        left_out: why it could not be made, where nobody asked for it by name.
        platform: for which platform; None if for all.
    """

    target: Target | Literal["index", "archive", "attestations"]
    seconds: float
    output: Output | None = None
    unchanged: bool = False
    left_out: BuildError | None = None
    platform: Platform | None = None


def source_date_epoch(line: Line) -> int:
    """Return the time that artifacts carry, in seconds since 1970.

    Raises:
        UsageError: if the environment's SOURCE_DATE_EPOCH is no time that a zip can hold.
    """
    text = os.environ.get(EPOCH_VARIABLE)
    if text is None:
        return line.source_date_epoch
    if text.isascii() and text.isdigit() and _OLDEST <= int(text) <= _NEWEST:
        return int(text)
    raise UsageError(
        f"{EPOCH_VARIABLE} cannot be used",
        file="environment",
        expected=f"a whole number from {_OLDEST} to {_NEWEST}",
        found=text,
        next_command=f"unset {EPOCH_VARIABLE}",
    )


@contextlib.contextmanager
def holding(dist: Path, progress: Progress, *, wait: bool) -> Iterator[None]:
    """Hold an output folder: two builds in one folder run one after the other.

    Raises:
        BusyError: if another build holds it and `wait` is not set.
        StorageError: if the folder cannot be written.
    """
    import filelock  # noqa: PLC0415  (kept out of start-up)

    path = dist / ".lock"
    with files.storing(path):
        dist.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            if not wait:
                raise BusyError(
                    "another build works in this folder",
                    file=dist,
                    expected="nobody else",
                    found="its lock is held",
                    next_command="the same command without --no-wait, or with another --dist",
                ) from None
            progress.note(f"{dist}: waiting for another build in this folder")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@dataclass
class Build:
    """A build while it runs; what a target needs is made when it is first asked for.

    Attributes:
        project: the project.
        request: what is asked for.
        line: the line.
        series: its patches.
        pins: its digests.
        sources: everything from outside.
        progress: what is told of the work.
        epoch: the time that artifacts carry.
    """

    project: Project
    request: Request
    line: Line
    series: Series
    pins: LineChecksums
    sources: Sources
    progress: Progress
    epoch: int

    @cached_property
    def upstream(self) -> SdistTree:
        """The line's own release."""
        return self.sources.sdist(self.line)

    @cached_property
    def patchset(self) -> Patchset:
        """What the series produces, every file compared with the lock."""
        tree = self.sources.tree(self.request.source, self.line, self.pins.produced)
        with self.progress.step("apply", f"{len(self.series.patches)} patches to {tree.label}"):
            return assemble.build_patchset(self.line, self.series, self.pins, tree, self.upstream)

    def official_wheel(self, platform: Platform) -> Path:
        """Return the official wheel for a platform."""
        return self.sources.wheel(self.line, platform)

    def key(self, target: Target, platform: Platform) -> str:
        """Return the digest of everything that a target is made from."""
        return state.key(
            state.tool_digest(),
            msgspec.to_builtins(self.line),
            msgspec.to_builtins(self.pins),
            target,
            platform,
            self.request.source,
            self.epoch,
            WRITERS[target].inputs(self, platform),
        )


def make(
    build: Build, name: str, key: str, known: state.State, write: Callable[[], Made]
) -> tuple[Output, bool, float]:
    """Return an artifact, whether it was there already, and the seconds that it took."""
    start = time.perf_counter()
    dist = build.request.dist
    output = known.current(dist, name, key)
    if output is not None:
        return output, True, time.perf_counter() - start
    output, paths = write()
    known.remember(dist, name, key, paths, output)
    state.save(dist, known)
    return output, False, time.perf_counter() - start


def _make(build: Build, target: Target, platform: Platform, known: state.State) -> Row:
    output, unchanged, seconds = make(
        build,
        f"{build.request.line} {platform} {target}",
        build.key(target, platform),
        known,
        lambda: WRITERS[target].write(build, platform),
    )
    return Row(target, seconds, output, unchanged, platform=platform)


def _try(build: Build, target: Target, platform: Platform, known: state.State) -> Row:
    """Make a target that nobody asked for by name: what is not at hand is no failure."""
    try:
        return _make(build, target, platform, known)
    except (UnpinnedError, RegistryError, SourceError) as error:
        if target != "image":
            raise
        return Row(target, 0.0, left_out=error, platform=platform)


def open_build(
    project: Project, request: Request, line: Line, sources: Sources, progress: Progress
) -> Build:
    """Return a build whose inputs in the project are all checked against `checksums.lock`.

    Raises:
        ChecksumError: if a patch or an overlay file is not the one in the lock, or the lock was
            derived for another version or sdist.
    """
    found = series.load(project, request.line)
    pins = checksums.load(project.checksums_lock).line(request.line)
    checksums.check_inputs(pins, found)
    checksums.check_line(pins, line)
    epoch = source_date_epoch(line)
    return Build(project, request, line, found, pins, sources, progress, epoch)


def run(build: Build) -> list[Row]:
    """Make what is asked for, and `release.json` over it.

    Returns:
        A row for each target and platform, in order; at last those over several of them.

    Raises:
        BuildError: if a target that was named cannot be made, or the inputs are not right.
    """
    from imagebuild.attesting import attest  # noqa: PLC0415  (they build on this module)
    from imagebuild.images import shipment  # noqa: PLC0415  (they build on this module)

    request = build.request
    with holding(request.dist, build.progress, wait=request.wait):
        files.sweep(request.dist)
        known = state.load(request.dist)
        attempt = _make if request.targets else _try
        targets = request.targets or DEFAULT_TARGETS
        rows = [
            attempt(build, target, platform, known)
            for platform in request.platforms
            for target in targets
            if target != "tree" or platform == request.platforms[0]
        ]
        rows += shipment.finish(build, known, rows)
        rows += attest.write(build, known, rows)
        document = describe(build, [row.output for row in rows if row.output is not None])
        files.write_atomic(request.dist / release.NAME, release.dump(document))
    return rows
