"""An image in an OCI layout checked against the locks; its labels are not believed."""

from __future__ import annotations

import hashlib
import stat
from typing import TYPE_CHECKING

import msgspec

from imagebuild.digest import parse_sha256, sha256_bytes
from imagebuild.errors import BuildError
from imagebuild.image import documents
from imagebuild.labels import OWN
from imagebuild.layer import Digests
from imagebuild.oci import (
    INDEX_TYPES,
    MANIFEST,
    Config,
    Descriptor,
    Index,
    Manifest,
    damaged,
    parse_config,
    parse_manifest,
)
from imagebuild.ocibase import read_base, read_config, resolve_platform
from imagebuild.ocilayout import LAYOUT, LayoutSource
from imagebuild.verify import Report
from imagebuild.verify_layer import MAX_LAYER, check_layer
from imagebuild.verify_wheel import differences

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from imagebuild.ocibase import Source
    from imagebuild.progress import Progress
    from imagebuild.verify_layer import Facts

_CHUNK = 1 << 20


def verify_layout(path: Path, facts: Facts, *, progress: Progress) -> Report:
    """Return what an OCI layout is, compared with what it must be.

    A layout without the base's layers is right if it says that it is one; the report says so too.
    """
    report = Report(str(path))
    source = LayoutSource(path)
    try:
        index = source.index()
        _check_blobs(report, source, progress)
        manifest = check_image(report, source, index, facts)
    except BuildError as error:
        report.bad("layout", error.expected, f"{error.summary}: {error.found}")
        return report
    layers = manifest.layers[:-1]
    missing = sum(not source.has(layer.sha256) for layer in layers)
    if missing and (index.annotations or {}).get(LAYOUT) == "overlay-only":
        why = f"{missing} of {len(layers)} are not in this layout, as it says"
        report.not_checked("the base's layers", "the official image", why)
    else:
        report.compare("layers of the base that are missing", 0, missing)
    return report


def check_image(report: Report, source: Source, index: Index, facts: Facts) -> Manifest:
    """Check the image for the platform, wherever below `index` it stands, and return its manifest.

    Raises:
        BuildError: if a document or our layer is missing or malformed.
    """
    entry = resolve_platform(_flat(source, index), facts.platform, source.label)
    where = f"{source.label}@{entry.digest}"
    data = source.manifest(entry.sha256)
    manifest = parse_manifest(data, where)
    if isinstance(manifest, Index) or not manifest.layers:
        raise damaged("not an image", where, MANIFEST, "an index, or no layers")
    _, config = parse_config(read_config(source, manifest, where), manifest, where)
    report.compare("platform", facts.platform, f"{config.os}/{config.architecture}")
    _check_labels(report, manifest, config, facts.labels)
    ours, diff_id = manifest.layers[-1], config.rootfs.diff_ids[-1]
    if ours.size > MAX_LAYER:
        report.bad("size of our layer", f"at most {MAX_LAYER}", ours.size)
        return manifest
    check_layer(report, b"".join(source.blob(ours.sha256, ours.size)), diff_id, facts)
    _check_base(report, data, Digests(ours.sha256, parse_sha256(diff_id), ours.size), facts)
    return manifest


def _flat(source: Source, index: Index) -> Index:
    """Return an index with the entries of the indexes that it names in their place."""
    entries: list[Descriptor] = []
    for entry in index.manifests:
        if entry.media_type not in INDEX_TYPES:
            entries.append(entry)
            continue
        below = parse_manifest(source.manifest(entry.sha256), f"{source.label}@{entry.digest}")
        entries += below.manifests if isinstance(below, Index) else ()
    return msgspec.structs.replace(index, manifests=tuple(entries))


def _check_blobs(report: Report, source: LayoutSource, progress: Progress) -> None:
    bad: dict[str, tuple[object, object]] = {}
    folder = source.root / "blobs" / "sha256"
    blobs = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in blobs:
        found = path.lstat()
        digest = hashlib.sha256()
        if stat.S_ISREG(found.st_mode):
            with (
                progress.step("verify", path.name[:12], found.st_size) as done,
                path.open("rb") as file,
            ):
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    done(len(chunk))
        if digest.hexdigest() != path.name:
            bad[path.name] = (path.name, digest.hexdigest())
    report.files("every blob is what its name says", bad, len(blobs))


def _check_labels(
    report: Report, manifest: Manifest, config: Config, labels: Mapping[str, str]
) -> None:
    settings = config.config.labels if config.config is not None else None
    for kind, found in (("labels", settings or {}), ("annotations", manifest.annotations or {})):
        bad = differences(labels, found)
        own = {key for key in found if key.startswith(OWN)} - labels.keys()
        bad |= {key: ("no such key", found[key]) for key in own}
        report.files(f"{kind} are the facts", bad, len(labels))


def _check_base(report: Report, manifest: bytes, layer: Digests, facts: Facts) -> None:
    """Compare the whole image with the one that comes of the official image and this layer."""
    if facts.base is None or facts.base_digest is None:
        why = "the official image's manifest is not at hand, or its digest not pinned"
        report.not_checked("the base is the official image", "its manifest and config", why)
        return
    base = read_base(facts.base, facts.base_digest, facts.platform)
    _, wanted = documents(base, layer, facts.labels, created_by=facts.created_by, epoch=facts.epoch)
    name = "the image is the official one with this layer"
    report.compare(name, f"sha256:{sha256_bytes(wanted)}", f"sha256:{sha256_bytes(manifest)}")
