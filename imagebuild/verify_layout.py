"""An image checked against the locks, layer, file by file; its labels are not believed."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.digest import Sha256
from imagebuild.errors import ArchiveError, BuildError
from imagebuild.layer import Layer
from imagebuild.oci import Index, Manifest, parse_config, parse_manifest
from imagebuild.ocibase import read_config, resolve_platform
from imagebuild.ocilayout import LAYOUT, LayoutSource
from imagebuild.verify import Report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from imagebuild.ocibase import Source
    from imagebuild.progress import Progress
    from imagebuild.upstream import Line, Platform

_MAX_LAYER = 256 << 20


@dataclass(frozen=True)
class Facts:
    """What an image is compared with.

    Attributes:
        line, platform: whose image it should be.
        expected: the digest of every file that the series produces, by its path in the tree.
        labels: what `labels.image_labels` computes; a key that it lacks is not checked.
        epoch: SOURCE_DATE_EPOCH.
        official: the official wheel, checked against its pin; None if it is not at hand.
        vouched: the digests of the sdist's files; None if it is not at hand.
        base: where the official image's manifest is; None if it is not at hand.
        base_digest: the digest of the official image; None if it is not pinned.
    """

    line: Line
    platform: Platform
    expected: Mapping[str, Sha256]
    labels: Mapping[str, str]
    epoch: int
    official: Path | None = None
    vouched: Mapping[str, Sha256] | None = None
    base: Source | None = None
    base_digest: Sha256 | None = None


def verify_layout(path: Path, facts: Facts, *, progress: Progress) -> Report:
    """Return what an OCI layout is, compared with what it must be."""
    report = Report(str(path))
    source = LayoutSource(path)
    try:
        index = source.index()
        _check_blobs(report, source, progress)
        manifest = _check_image(report, source, index, facts)
    except BuildError as error:
        report.bad("layout", error.expected, f"{error.summary}: {error.found}")
        return report
    layers = manifest.layers[:-1]
    missing = sum(not source.has(layer.sha256) for layer in layers)
    kind = (index.annotations or {}).get(LAYOUT)
    if missing and kind == "overlay-only":
        why = f"{missing} of {len(layers)} are not in this layout, as it says"
        report.not_checked("the base's layers", "the official image", why)
    else:
        report.compare(
            "the base's layers are here",
            f"0 of {len(layers)} missing",
            f"{missing} of {len(layers)} missing",
        )
    return report


def _check_blobs(report: Report, source: LayoutSource, progress: Progress) -> None:
    bad: dict[str, tuple[object, object]] = {}
    blobs = sorted((source.root / "blobs" / "sha256").iterdir())
    for path in blobs:
        size = path.lstat().st_size
        with progress.step("verify", path.name[:12], size) as done:
            digest = hashlib.sha256()
            if stat.S_ISREG(path.lstat().st_mode):
                with path.open("rb") as file:
                    while chunk := file.read(1 << 20):
                        digest.update(chunk)
                        done(len(chunk))
            if digest.hexdigest() != path.name:
                bad[path.name] = (path.name, digest.hexdigest())
    report.files("every blob is what its name says", bad, len(blobs))


def _check_image(report: Report, source: Source, index: Index, facts: Facts) -> Manifest:
    """Check the image for the platform, wherever below `index` it stands.

    Raises:
        BuildError: if a document is missing or malformed.
    """
    entry = resolve_platform(_flat(source, index), facts.platform, source.label)
    manifest = parse_manifest(source.manifest(entry.sha256), f"{source.label}@{entry.digest}")
    if isinstance(manifest, Index) or not manifest.layers:
        raise ArchiveError("no image", file=source.label, expected="layers", found="none")
    document, config = parse_config(
        read_config(source, manifest, source.label), manifest, source.label
    )
    report.compare("platform", facts.platform, f"{config.os}/{config.architecture}")
    _check_labels(report, manifest, config, facts.labels)
    ours = manifest.layers[-1]
    if ours.size > _MAX_LAYER:
        report.bad("size of our layer", f"at most {_MAX_LAYER}", ours.size)
        return manifest
    blob = b"".join(source.blob(ours.sha256, ours.size))
    content = _check_layer(report, blob, config, facts)
    if content is not None:
        _check_content(report, content, facts)
    layer = Layer(
        facts_path(ours.digest), ours.sha256, Sha256(config.rootfs.diff_ids[-1][7:]), ours.size
    )
    _check_base(report, manifest, document, layer, facts)
    return manifest
