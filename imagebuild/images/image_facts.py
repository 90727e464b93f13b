"""What an image must be: facts for its verification, from the locks and what is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild import builder, outputs, upstream
from imagebuild.digest import Sha256, parse_sha256, sha256_file
from imagebuild.errors import RegistryError, SourceError, UsageError
from imagebuild.images.labels import OCI, ImageFacts, image_labels
from imagebuild.images.ocibase import read_base
from imagebuild.patching import checksums, series
from imagebuild.project import SOURCE
from imagebuild.verifying.verify_layer import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from imagebuild.fetch.sources import Sources
    from imagebuild.images.oci import TargetPlatform
    from imagebuild.images.ocibase import Source
    from imagebuild.project import Project
    from imagebuild.upstream import Line, Platform, UpstreamLock
    from imagebuild.verifying.verify import Report


def line_of(
    lock: UpstreamLock, wanted: str | None, version: str, subject: object
) -> tuple[str, Line]:
    """Return the line to compare with: the named one, else the one whose version this is.

    Raises:
        UsageError: if there is none.
    """
    if wanted is not None:
        return lock.line(wanted)
    for name, line in lock.lines.items():
        if line.local_version == version:
            return name, line
    raise UsageError(
        "the artifact's version is no line's",
        file=subject,
        expected=", ".join(line.local_version for line in lock.lines.values()),
        found=version or "no version",
        next_command=f"python build.py verify {subject} --line LINE",
    )


def platform_of(found: TargetPlatform, subject: object) -> Platform:
    """Return a platform as locks name it.

    Raises:
        UsageError: if no line has it.
    """
    for platform in upstream.PLATFORMS:
        if found.matches(platform):
            return platform
    raise UsageError(
        "the image is for a platform that no line has",
        file=subject,
        expected=" or ".join(upstream.PLATFORMS),
        found=found,
        next_command=f"skopeo inspect --raw {subject}",
    )


def at_hand(get: Callable[[], Path]) -> Path | None:
    """Return a file, or None where it cannot be had: then what needs it is not checked."""
    try:
        return get()
    except (SourceError, UsageError):
        return None


def facts_for(
    project: Project,
    sources: Sources,
    *,
    line_name: str | None,
    base: Path | None,
    says: Mapping[str, str],
    platform: Platform,
    subject: object,
) -> Facts:
    """Return what an image is compared with.

    Args:
        project: the locks and the series.
        sources: what is at hand from outside.
        line_name: the line; by default the one whose version the image says that it has.
        base: an OCI layout with the official image, instead of its registry.
        says: the image's labels: they choose the line and the commit to compare with, no more.
        platform: the image's platform.
        subject: the image, for messages.

    Raises:
        UsageError: if there is no such line.
        UnpinnedError: if the line pins no image: then nothing can be said of one on top of it.
    """
    lock = upstream.load(project.upstream_lock)
    name, line = line_of(lock, line_name, says.get(f"{OCI}version", ""), subject)
    pins = checksums.load(project.checksums_lock).line(name)
    official, digest = _base(line, platform, sources.image(line, base))
    labels = ImageFacts(
        line=line,
        patchset=Sha256(pins.patchset),
        patches=tuple(patch.name for patch in series.load(project, name).patches),
        lock=sha256_file(project.checksums_lock),
        base_ref="" if line.image is None else line.image.ref,
        base_digest=f"sha256:{digest}",
        source=SOURCE,
        revision=says.get(f"{OCI}revision"),
        epoch=builder.source_date_epoch(line),
    )
    known = image_labels(labels)
    if official is None and (line.image is None or platform not in line.image.platforms):
        known.pop(f"{OCI}base.digest")  # the platform's manifest stands in the index, not at hand
    vouched = at_hand(lambda: sources.file(line.sdist))
    manifest = {} if vouched is None else sources.sdist(line).manifest()
    return Facts(
        line=line,
        platform=platform,
        expected={file: Sha256(digest) for file, digest in pins.produced.items()},
        labels=known,
        epoch=labels.epoch,
        created_by=outputs.CREATED_BY,
        official=at_hand(lambda: sources.wheel(line, platform)),
        vouched={file: parse_sha256(entry.sha256) for file, entry in manifest.items()} or None,
        base=official,
        base_digest=digest,
    )


def _base(line: Line, platform: Platform, source: Source) -> tuple[Source | None, Sha256]:
    """Return the official image's source, if it answers, and the digest of its manifest."""
    digest = parse_sha256(line.image_digest(platform))
    try:
        return source, read_base(source, digest, platform).digest
    except (RegistryError, SourceError):
        return None, digest


def check_revision(report: Report, says: str | None, here: str | None) -> None:
    """Compare the commit that an image names with this checkout's: another one proves nothing."""
    if says == here:
        report.ok("the commit of this project", says or "none")
    else:
        needs = f"a clean checkout of {says}" if says else "nothing: the image names no commit"
        report.not_checked("the commit of this project", needs, f"this is {here or 'no commit'}")
