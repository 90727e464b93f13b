"""Upstream's releases, as the package index lists them: which exist, which are worth following."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.errors import SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.version import Version

    from imagebuild.fetch.package_index import IndexFile
    from imagebuild.fetch.sources import Sources
    from imagebuild.upstream import UpstreamLock

PROJECT = "vllm"
_RECENT = 3600
"""Seconds; a release that is that new is not followed yet anyway."""
_VERSION = r"[0-9]+(?:\.[0-9a-z]+)*"
_RANGE = re.compile(rf"v?(?P<low>{_VERSION})?(?P<dots>\.\.)?v?(?P<high>{_VERSION})?")


@dataclass(frozen=True)
class Release:
    """One release of upstream.

    Attributes:
        version: its version, as in the sdist's name.
        uploaded: when its sdist was uploaded (UTC); None where the index does not say.
        yanked: whether it was withdrawn.
    """

    version: str
    uploaded: dt.datetime | None = None
    yanked: bool = False

    @property
    def parsed(self) -> Version:
        """The version, ordered (PEP 440)."""
        return parse(self.version)


@dataclass(frozen=True)
class Skipped:
    """A release that is not followed, and why."""

    version: str
    reason: str


def parse(version: str) -> Version:
    """Return a version that can be compared.

    Raises:
        UsageError: if it is none.
    """
    from packaging.version import InvalidVersion, Version  # noqa: PLC0415  (kept out of start-up)

    try:
        return Version(version)
    except InvalidVersion as error:
        raise UsageError(
            f"{version!r} is no version",
            file="the command line",
            expected="a version such as 0.33.0",
            found=version,
            next_command="python build.py status --help",
        ) from error


def of_files(files: Iterable[IndexFile]) -> tuple[Release, ...]:
    """Return the releases that have an sdist among an index's files, oldest first."""
    found = {}
    for file in files:
        match = re.fullmatch(rf"{PROJECT}-(?P<version>[0-9][0-9A-Za-z.]*)\.tar\.gz", file.name)
        if match is not None:
            version = match["version"]
            found[version] = Release(version, file.uploaded, file.yanked)
    return tuple(sorted(found.values(), key=lambda release: release.parsed))


def listed(sources: Sources, *, recent: bool = False) -> tuple[Release, ...]:
    """Return every release with an sdist in the package index, oldest first.

    Args:
        sources: where the index is.
        recent: whether what the index said within the last hour is good enough.

    Raises:
        SourceError: if an index does not answer, or the network is off.
    """
    import msgspec  # noqa: PLC0415  (kept out of start-up)

    from imagebuild import files  # noqa: PLC0415  (the same)
    from imagebuild.fetch import package_index  # noqa: PLC0415  (the same)

    kept = sources.cache.folder("releases") / "listing.json"
    if sources.offline:
        raise SourceError(
            "the package index cannot be asked for releases",
            file=kept,
            expected="the network",
            found="--offline",
            next_command="the same command without --offline",
        )
    if recent and kept.is_file() and time.time() - kept.stat().st_mtime < _RECENT:
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(kept.read_bytes(), type=tuple[Release, ...])
    with package_index.configured() as index:
        found = of_files(index.every_file(PROJECT).values())
    files.write_atomic(kept, msgspec.json.encode(found))
    return found


def at_hand(sources: Sources, lock: UpstreamLock) -> tuple[Release, ...]:
    """Return the releases that need no network: those of the lines, and those used before."""
    names = [f"{PROJECT}-{line.version}.tar.gz" for line in lock.lines.values()]
    names += [path.name for path in sources.cache.folder("releases").glob(f"{PROJECT}-*.tar.gz")]
    found = {name.removeprefix(f"{PROJECT}-").removesuffix(".tar.gz") for name in names}
    return tuple(sorted(map(Release, found), key=lambda release: release.parsed))


def is_stable(release: Release) -> bool:
    """Return whether it is neither a pre-release nor withdrawn."""
    return not (release.parsed.is_prerelease or release.yanked)


def between(releases: Iterable[Release], wanted: str) -> tuple[str, ...]:
    """Return the stable versions in a range, oldest first.

    Args:
        releases: what there is.
        wanted: `A..B`, both ends included; `A..` and `..B` are open; `A` alone is one release.

    Raises:
        UsageError: if `wanted` is no range, or nothing lies in it.
    """
    match = _RANGE.fullmatch(wanted)
    if (
        match is None
        or not (match["low"] or match["high"])
        or (match["high"] and not match["dots"])
    ):
        raise UsageError(
            f"{wanted!r} is no range of releases",
            file="the command line",
            expected="A..B, A.. or one version, such as 0.27.1..0.33.0",
            found=wanted,
            next_command="python build.py status --releases 0.27.1..0.33.0",
        )
    low = match["low"] and parse(match["low"])
    high = match["high"] and parse(match["high"])
    if not match["dots"]:
        high = low
    found = tuple(
        release.version
        for release in releases
        if is_stable(release)
        and (not low or release.parsed >= low)
        and (not high or release.parsed <= high)
    )
    if not found:
        raise UsageError(
            f"no stable release in {wanted}",
            file="the package index",
            expected="a range with a release in it",
            found="none",
            next_command="python build.py status --releases 0.27.1..",
        )
    return found


def _why_not(release: Release, now: dt.datetime, days: int) -> str | None:
    if release.parsed.is_prerelease:
        return "a pre-release"
    if release.yanked:
        return "yanked"
    if release.uploaded is None:
        return "the index does not say when it was uploaded"
    age = now - release.uploaded
    if age < dt.timedelta(days=days):
        return f"{age.days} days old, followed from {days} on"
    return None


def candidate(
    releases: Iterable[Release], lock: UpstreamLock, now: dt.datetime, days: int
) -> tuple[Release | None, tuple[Skipped, ...]]:
    """Return the release that a new line should be made of, if any, and those passed over.

    Args:
        releases: what the index lists.
        lock: the lines that there are; only what is newer than all of them counts.
        now: the present, with its time zone.
        days: how old a release has to be, since early ones get withdrawn.
    """
    newest = max(parse(line.version) for line in lock.lines.values())
    skipped, chosen = [], None
    newer = sorted((r for r in releases if r.parsed > newest), key=lambda r: r.parsed)
    for release in reversed(newer):
        reason = _why_not(release, now, days)
        if reason is None and chosen is None:
            chosen = release
        elif reason is None and chosen is not None:
            skipped.append(Skipped(release.version, f"{chosen.version} is newer"))
        elif reason is not None:
            skipped.append(Skipped(release.version, reason))
    return chosen, tuple(reversed(skipped))
