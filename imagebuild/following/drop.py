"""Retiring a patch: what goes with it, why it may go, and a series that stands without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild import files, schema
from imagebuild.errors import UsageError
from imagebuild.files import storing
from imagebuild.following import bump, releases
from imagebuild.patching import apply, assemble, dropwhen, series
from imagebuild.patching.apply import Outcome
from imagebuild.patching.series import Series

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.fetch.sources import Sources
    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.series import Patch
    from imagebuild.project import Project
    from imagebuild.upstream import UpstreamLock


@dataclass(frozen=True)
class Drop:
    """A patch that may go.

    Attributes:
        patch: its name.
        line: its line.
        reason: why, in one line; the series file keeps it.
        removed: the files that go.
        rest: the series without it.
    """

    patch: str
    line: str
    reason: str
    removed: tuple[Path, ...]
    rest: Series


def _find(loaded: Series, name: str, file: Path) -> Patch:
    patch = loaded.patch(name)
    if patch is None:
        raise UsageError(
            f"no patch {name} in line {loaded.line}",
            file=file,
            expected=f"one of {', '.join(p.name for p in loaded.patches) or 'no patches'}",
            found=name,
            next_command=f"python build.py show {loaded.line}",
        )
    return patch


def _has_fix(patch: Patch, line: str, own: Tree, tree: Tree) -> tuple[bool, str]:
    """Return whether a release has what the patch does, and how that is known."""
    report = apply.plan(Series(line, (patch,), {}), tree, base=own).reports[0]
    has = report.outcome in (Outcome.UPSTREAMED, Outcome.ALREADY_APPLIED)
    untouched = all(file.state is apply.FileState.PENDING for file in report.files)
    if report.outcome is Outcome.UPSTREAMED and untouched:
        return False, f"{report.reason}: the drop-when is wrong"
    told = report.reason if has else f"{report.outcome.value}: {report.reason}"
    if not has and not dropwhen.upstreamed(patch.meta.drop_when, tree):
        told += "; its drop-when does not hold"
    return has, told


def _newer(sources: Sources, lock: UpstreamLock, line: str) -> list[str]:
    """Return the releases at hand that came after a line's own, newest first."""
    own = releases.parse(lock.lines[line].version)
    there = [r for r in releases.at_hand(sources, lock) if r.parsed > own]
    return [release.version for release in reversed(there)]


def _reason(
    patch: Patch, line: str, lock: UpstreamLock, sources: Sources, release: str | None
) -> str:
    asked = [release] if release is not None else _newer(sources, lock, line)
    own, told = sources.sdist(lock.lines[line]), []
    for version in asked:
        has, how = _has_fix(patch, line, own, sources.release(version, lock))
        bare = version.removeprefix("v")
        if has:
            return f"upstream in {bare}: {how}"
        told.append(f"{bare}: {how}")
    raise UsageError(
        f"no release at hand has what {patch.name} does",
        file=f"patches/{line}/{patch.name}.toml",
        expected="a release in which its drop-when holds, or a reason of your own",
        found="; ".join(told) or "no newer release at hand",
        next_command=f"python build.py drop {patch.name} --line {line} --release X   "
        "(or --because TEXT)",
    )


def _belongings(home: Project, lock: UpstreamLock, line: str, patch: Patch) -> tuple[Path, ...]:
    """Return the files that nobody needs without the patch."""
    folder = home.patches(line)
    found = [folder / f"{patch.name}.patch", folder / f"{patch.name}.toml"]
    found += [home.overlay(line) / path for path in patch.meta.overlay]
    needed = {
        node.partition("::")[0]
        for name in lock.lines
        for other in series.load(home, name).patches
        if (name, other.name) != (line, patch.name)
        for node in other.meta.tests
    }
    tests = dict.fromkeys(node.partition("::")[0] for node in patch.meta.tests)
    found += [home.root / test for test in tests if test not in needed]
    return tuple(path for path in found if path.is_file())


def prepare(
    home: Project,
    lock: UpstreamLock,
    wanted: tuple[str, str],
    sources: Sources,
    *,
    release: str | None = None,
    because: str | None = None,
) -> Drop:
    """Return what retiring a patch takes; nothing is changed.

    Args:
        home: the project.
        lock: its lines.
        wanted: the line and the patch.
        sources: where releases come from.
        release: the release that has the fix; None to look at those at hand.
        because: a reason that needs no release.

    Raises:
        UsageError: if there is no such patch, or no release has what it does.
        BuildError: if the rest of the series does not stand without it.
    """
    line, name = wanted
    loaded = series.load(home, line)
    patch = _find(loaded, name, home.patches(line) / "series")
    reason = because or _reason(patch, line, lock, sources, release)
    kept = tuple(other for other in loaded.patches if other is not patch)
    overlay = {p: data for p, data in loaded.overlay.items() if p not in patch.meta.overlay}
    rest = Series(line, kept, overlay)
    assemble.derive(lock.lines[line], rest, sources.sdist(lock.lines[line]))
    removed = _belongings(home, lock, line, patch)
    return Drop(name, line, " ".join(reason.split()), removed, rest)


def write(home: Project, lock: UpstreamLock, drop: Drop, sources: Sources) -> None:
    """Retire the patch: series, files, checksums, the page of patches.

    Raises:
        StorageError: if the project cannot be written.
    """
    path = home.patches(drop.line) / "series"
    listed = schema.read_bytes(path, "the series").decode().splitlines()
    kept = [entry for entry in listed if entry.partition("#")[0].strip() != drop.patch]
    heads = [entry for entry in kept if entry.startswith("#")]
    names = [entry for entry in kept if not entry.startswith("#")]
    noted = [*heads, f"# dropped: {drop.patch}: {drop.reason}", *names]
    files.write_atomic(path, "".join(f"{entry}\n" for entry in noted).encode())
    for file in drop.removed:
        with storing(file):
            file.unlink(missing_ok=True)
    bump.relock(home, lock.lines[drop.line], sources)
    bump.write_page(home)
