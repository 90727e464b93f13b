"""`build.py verify`: an artifact compared with the locks, file by file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from imagebuild import checksums, series, upstream
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.digest import Sha256, parse_sha256, sha256_file
from imagebuild.errors import RegistryError, SourceError, UsageError, VerifyError
from imagebuild.project import SOURCE
from imagebuild.sources import Sources
from imagebuild.verify import Report, Verdict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from imagebuild.ocibase import Source
    from imagebuild.ocilayout import LayoutSource
    from imagebuild.project import Project
    from imagebuild.upstream import Line, Platform, UpstreamLock

_MARKS = {Verdict.OK: "ok", Verdict.BAD: "BAD", Verdict.NOT_CHECKED: "not checked"}


def _line(lock: UpstreamLock, wanted: str | None, version: str, path: Path) -> tuple[str, Line]:
    """Return the line to compare with: the named one, else the one whose version this is."""
    if wanted is not None:
        return lock.line(wanted)
    for name, line in lock.lines.items():
        if line.local_version == version:
            return name, line
    raise UsageError(
        "the artifact's version is no line's",
        file=path,
        expected=", ".join(line.local_version for line in lock.lines.values()),
        found=version or "no version",
        next_command=f"python build.py verify {path} --line LINE",
    )


def _at_hand(get: Callable[[], Path]) -> Path | None:
    """Return a file, or None where it cannot be had: then what needs it is not checked."""
    try:
        return get()
    except (SourceError, UsageError):
        return None


def _wheel_identity(path: Path) -> tuple[str, Platform]:
    """Return what a wheel says of itself, only to choose what it is compared with."""
    from imagebuild.zipfmt import open_zip  # noqa: PLC0415  (kept out of start-up)

    found: dict[str, bytes] = {}
    with open_zip(path) as archive:
        for name, member in archive.members.items():
            folder, _, file = name.partition("/")
            if folder.endswith(".dist-info") and file in ("METADATA", "WHEEL"):
                found[file] = archive.read(member)
    version = re.search(rb"^Version: (\S+)", found.get("METADATA", b""), re.MULTILINE)
    arm = re.search(rb"^Tag: \S+aarch64\s*$", found.get("WHEEL", b""), re.MULTILINE)
    return version[1].decode() if version else "", "linux/arm64" if arm else "linux/amd64"


def _wheel(arguments: argparse.Namespace, project: Project, sources: Sources) -> Report:
    from imagebuild import verify_wheel  # noqa: PLC0415  (kept out of start-up)

    path: Path = arguments.path
    version, platform = _wheel_identity(path)
    lock = upstream.load(project.upstream_lock)
    name, line = _line(lock, arguments.line, version, path)
    pins = checksums.load(project.checksums_lock).line(name)
    official = _at_hand(lambda: sources.wheel(line, platform))
    expected = {file: Sha256(digest) for file, digest in pins.produced.items()}
    return verify_wheel.verify_wheel(
        path, line, platform, expected, official, progress=sources.progress
    )


def _layout_identity(source: LayoutSource) -> tuple[dict[str, str], Platform]:
    """Return an image's labels and platform, only to choose what it is compared with."""
    from imagebuild.oci import Index, parse_config, parse_manifest  # noqa: PLC0415  (the same)
    from imagebuild.ocibase import read_config  # noqa: PLC0415

    digest = source.index().manifests[0].sha256
    manifest = parse_manifest(source.manifest(digest), source.label)
    if isinstance(manifest, Index):
        manifest = parse_manifest(source.manifest(manifest.manifests[0].sha256), source.label)
    if isinstance(manifest, Index):
        raise UsageError(
            "an index stands inside an index",
            file=source.label,
            expected="an image, or an index of images",
            found="an index of indexes",
            next_command="python build.py verify LAYOUT   (of one image)",
        )
    config = parse_config(read_config(source, manifest, source.label), manifest, source.label)[1]
    labels = (config.config.labels if config.config else None) or {}
    for platform in upstream.PLATFORMS:
        if config.matches(platform):
            return labels, platform
    raise UsageError(
        "the image is for a platform that no line has",
        file=source.label,
        expected=" or ".join(upstream.PLATFORMS),
        found=config,
        next_command=f"skopeo inspect oci:{source.label}",
    )


def _base(line: Line, platform: Platform, source: Source) -> tuple[Source | None, Sha256]:
    """Return the official image's source, if it answers, and the digest of its manifest.

    Raises:
        UnpinnedError: if the line pins no image: then nothing can be said of one on top of it.
    """
    from imagebuild.ocibase import read_base  # noqa: PLC0415  (kept out of start-up)

    digest = parse_sha256(line.image_digest(platform))
    try:
        return source, read_base(source, digest, platform).digest
    except (RegistryError, SourceError):
        return None, digest


def _layout(arguments: argparse.Namespace, project: Project, sources: Sources) -> Report:
    from imagebuild import builder, outputs, verify_layout  # noqa: PLC0415  (kept out of start-up)
    from imagebuild.labels import OCI, ImageFacts, image_labels  # noqa: PLC0415
    from imagebuild.ocilayout import LayoutSource  # noqa: PLC0415
    from imagebuild.verify_layer import Facts  # noqa: PLC0415

    path: Path = arguments.path
    says, platform = _layout_identity(LayoutSource(path))
    lock = upstream.load(project.upstream_lock)
    name, line = _line(lock, arguments.line, says.get(f"{OCI}version", ""), path)
    pins = checksums.load(project.checksums_lock).line(name)
    patches = tuple(patch.name for patch in series.load(project, name).patches)
    base, digest = _base(line, platform, sources.image(line, arguments.base))
    facts = ImageFacts(
        line=line,
        patchset=Sha256(pins.patchset),
        patches=patches,
        lock=sha256_file(project.checksums_lock),
        base_ref="" if line.image is None else line.image.ref,
        base_digest=f"sha256:{digest}",
        source=SOURCE,
        revision=says.get(f"{OCI}revision"),
        epoch=builder.source_date_epoch(line),
    )
    labels = image_labels(facts)
    if base is None and (line.image is None or platform not in line.image.platforms):
        labels.pop(f"{OCI}base.digest")  # the platform's manifest stands in the index, not at hand
    vouched = _at_hand(lambda: sources.file(line.sdist))
    manifest = {} if vouched is None else sources.sdist(line).manifest()
    report = verify_layout.verify_layout(
        path,
        Facts(
            line=line,
            platform=platform,
            expected={file: Sha256(digest) for file, digest in pins.produced.items()},
            labels=labels,
            epoch=facts.epoch,
            created_by=outputs.CREATED_BY,
            official=_at_hand(lambda: sources.wheel(line, platform)),
            vouched={file: parse_sha256(entry.sha256) for file, entry in manifest.items()} or None,
            base=base,
            base_digest=digest,
        ),
        progress=sources.progress,
    )
    _check_revision(report, facts.revision, project.revision())
    return report


def _check_revision(report: Report, says: str | None, here: str | None) -> None:
    """Compare the commit that an image names with this checkout's: another one proves nothing."""
    if says == here:
        report.ok("the commit of this project", says or "none")
    else:
        needs = f"a clean checkout of {says}" if says else "nothing: the image names no commit"
        report.not_checked("the commit of this project", needs, f"this is {here or 'no commit'}")


def _text(report: Report) -> str:
    lines = [report.subject]
    for check in report.checks:
        lines.append(f"  {_MARKS[check.verdict]:<12} {check.name}: {check.found}")
        if check.verdict is Verdict.BAD:
            lines.append(f"  {'':<12}   expected: {check.expected}")
        elif check.verdict is Verdict.NOT_CHECKED:
            lines.append(f"  {'':<12}   needs: {check.expected}")
    return "\n".join(lines)


def _facts(report: Report) -> dict[str, Any]:
    return {
        "subject": report.subject,
        "ok": not report.failures,
        "checks": [
            {
                "name": check.name,
                "verdict": check.verdict.value,
                "expected": check.expected,
                "found": check.found,
            }
            for check in report.checks
        ],
    }


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Check the artifact and print what was found.

    Returns:
        0 if nothing is wrong, though what was not checked is listed as such; with `--json`,
        `VerifyError`'s exit code if anything is.

    Raises:
        VerifyError: if anything is wrong, without `--json`.
    """
    sources = Sources.for_run(reporter(), offline=arguments.offline)
    path: Path = arguments.path
    if path.is_dir():
        report = _layout(arguments, project, sources)
    elif path.is_file():
        report = _wheel(arguments, project, sources)
    else:
        raise SourceError(
            "nothing to verify",
            file=path,
            expected="a .whl file, or the folder of an OCI layout",
            found="no such file or folder",
            next_command="python build.py",
        )
    emit(arguments, _text(report), _facts(report))
    if arguments.json:
        return VerifyError.exit_code if report.failures else 0
    report.require()
    return 0
