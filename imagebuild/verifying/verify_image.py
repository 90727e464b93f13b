"""An image, wherever it stands, checked against the locks; its labels are not believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from imagebuild.artifacts.layer import Digests
from imagebuild.digest import parse_sha256, sha256_bytes
from imagebuild.images.image import documents
from imagebuild.images.labels import OWN
from imagebuild.images.oci import (
    INDEX_TYPES,
    MANIFEST,
    MANIFEST_TYPES,
    Config,
    Descriptor,
    Index,
    Manifest,
    TargetPlatform,
    damaged,
    parse_config,
    parse_manifest,
)
from imagebuild.images.ocibase import read_base, read_config
from imagebuild.verifying.verify_layer import MAX_LAYER, check_layer
from imagebuild.verifying.verify_wheel import differences

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagebuild.images.ocibase import Source
    from imagebuild.progress import Progress
    from imagebuild.verifying.verify import Report
    from imagebuild.verifying.verify_layer import Facts

NO_BASE = "the official image's manifest is not at hand, or its digest not pinned"


class Subject(Protocol):
    """A place that holds an image to be checked."""

    @property
    def label(self) -> str:
        """What it is, for messages."""

    @property
    def source(self) -> Source:
        """Its manifests and blobs."""

    def index(self) -> Index:
        """Return an index over its images.

        Raises:
            BuildError: if there is none.
        """

    def check_storage(self, report: Report, progress: Progress) -> None:
        """Check what can be said of the place before its image is read."""

    def check_layers(self, report: Report, manifest: Manifest, progress: Progress) -> None:
        """Check that the base's layers are there, and are what they are called."""


@dataclass(frozen=True)
class Entry:
    """One image of a subject.

    Attributes:
        data: its manifest's bytes.
        manifest: its manifest.
        document: its config's bytes.
        config: its config.
        where: for messages.
        claimed: the platform that the index says, if it says one.
    """

    data: bytes
    manifest: Manifest
    document: bytes
    config: Config
    where: str
    claimed: TargetPlatform | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        """What it says of itself."""
        return (self.config.config.labels if self.config.config is not None else None) or {}


def read_entry(source: Source, descriptor: Descriptor) -> Entry:
    """Return an image of a subject.

    Raises:
        BuildError: if it is missing, malformed or no image.
    """
    where = f"{source.label}@{descriptor.digest}"
    data = source.manifest(descriptor.sha256)
    manifest = parse_manifest(data, where)
    if isinstance(manifest, Index) or not manifest.layers:
        raise damaged("not an image", where, MANIFEST, "an index, or no layers")
    document = read_config(source, manifest, where)
    _, config = parse_config(document, manifest, where)
    return Entry(data, manifest, document, config, where, descriptor.platform)


def flat(source: Source, index: Index) -> Index:
    """Return an index with the entries of the indexes that it names in their place.

    Raises:
        BuildError: if one of them is missing or malformed.
    """
    entries: list[Descriptor] = []
    for entry in index.manifests:
        if entry.media_type not in INDEX_TYPES:
            entries.append(entry)
            continue
        below = parse_manifest(source.manifest(entry.sha256), f"{source.label}@{entry.digest}")
        entries += below.manifests if isinstance(below, Index) else ()
    return msgspec.structs.replace(index, manifests=tuple(entries))


def entries(source: Source, index: Index) -> list[Entry]:
    """Return the images of an index; of a Docker that has pulled one of several, just that one.

    Raises:
        BuildError: if an image is missing or malformed.
    """
    has = getattr(source, "has", None)
    found = [e for e in flat(source, index).manifests if e.media_type in MANIFEST_TYPES]
    return [read_entry(source, e) for e in found if has is None or has(e.sha256)]


def check_image(report: Report, source: Source, entry: Entry, facts: Facts) -> None:
    """Check an image.

    Raises:
        BuildError: if our layer is missing or malformed.
    """
    config, manifest = entry.config, entry.manifest
    report.compare("platform", facts.platform, f"{config.os}/{config.architecture}")
    if entry.claimed is not None:
        report.compare("platform in the index", str(config.bare()), str(entry.claimed))
    check_labels(report, "labels", entry.labels, facts.labels)
    check_labels(report, "annotations", manifest.annotations or {}, facts.labels)
    ours, diff_id = manifest.layers[-1], config.rootfs.diff_ids[-1]
    if not 0 <= ours.size <= MAX_LAYER:
        report.bad("size of our layer", f"at most {MAX_LAYER}", ours.size)
        return
    check_layer(report, b"".join(source.blob(ours.sha256, ours.size)), diff_id, facts)
    _check_base(report, entry.data, Digests(ours.sha256, parse_sha256(diff_id), ours.size), facts)


def check_labels(
    report: Report, kind: str, found: Mapping[str, str], labels: Mapping[str, str]
) -> None:
    """Compare labels or annotations with the facts; keys of ours that are not facts are wrong."""
    bad = differences(labels, found)
    own = {key for key in found if key.startswith(OWN)} - labels.keys()
    bad |= {key: ("no such key", found[key]) for key in own}
    report.files(f"{kind} are the facts", bad, len(labels))


def _check_base(report: Report, manifest: bytes, layer: Digests, facts: Facts) -> None:
    """Compare the whole image with the one that comes of the official image and this layer."""
    wanted = wanted_documents(report, layer, facts)
    if wanted is not None:
        name = "the image is the official one with this layer"
        report.compare(
            name, f"sha256:{sha256_bytes(wanted[1])}", f"sha256:{sha256_bytes(manifest)}"
        )


def wanted_documents(report: Report, layer: Digests, facts: Facts) -> tuple[bytes, bytes] | None:
    """Return config and manifest of the official image with a layer; None where it is not at hand.

    Raises:
        BuildError: if the official image is malformed.
    """
    if facts.base is None or facts.base_digest is None:
        report.not_checked("the base is the official image", "its manifest and config", NO_BASE)
        return None
    base = read_base(facts.base, facts.base_digest, facts.platform)
    return documents(base, layer, facts.labels, created_by=facts.created_by, epoch=facts.epoch)
