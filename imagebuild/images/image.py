"""The overlay image: the official image with one more layer."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.images.labels import rfc3339
from imagebuild.images.oci import (
    CONFIG,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    Manifest,
    TargetPlatform,
    canonical,
    index_over,
    oci_layers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagebuild.artifacts.layer import Digests, Layer
    from imagebuild.images.ocibase import Base

# What Docker and BuildKit note in a config about the build that wrote it; not true of ours.
_BUILD_NOTES = ("container", "container_config", "docker_version", "moby.buildkit.cache.v0")


@dataclass(frozen=True)
class Image:
    """An image that is ready to be written.

    Attributes:
        base: the digest of the image that it is built on.
        base_layers: that image's layers, as this one's manifest names them.
        layer: our layer.
        config: its config's bytes.
        manifest: its manifest's bytes.
        platform: its platform.
    """

    base: Sha256
    base_layers: tuple[Descriptor, ...]
    layer: Layer
    config: bytes
    manifest: bytes
    platform: TargetPlatform

    @property
    def digest(self) -> Sha256:
        """The image's digest: its manifest's."""
        return sha256_bytes(self.manifest)

    @property
    def config_digest(self) -> Sha256:
        """Docker's image id: its config's digest."""
        return sha256_bytes(self.config)


def overlay_image(
    base: Base, layer: Layer, labels: Mapping[str, str], *, created_by: str, epoch: int
) -> Image:
    """Return `base` with `layer` on top.

    Args:
        base: the official image.
        layer: our layer.
        labels: become labels of the config, beside the base's own, and the manifest's annotations.
        created_by: the text of our step in the history.
        epoch: SOURCE_DATE_EPOCH, the image's and the step's time.
    """
    config, manifest = documents(base, layer.digests, labels, created_by=created_by, epoch=epoch)
    layers = oci_layers(base.manifest)
    return Image(base.digest, layers, layer, config, manifest, base.config.bare())


def index_of(images: Sequence[Image]) -> bytes:
    """Return the index over images of several platforms, in the platforms' order.

    Its annotations are those that all of them have.
    """
    return index_of_manifests([(image.manifest, image.platform) for image in images])


def index_of_manifests(found: Sequence[tuple[bytes, TargetPlatform]]) -> bytes:
    """Return the index over manifests; as `index_of`."""
    ordered = sorted(found, key=lambda entry: str(entry[1]))
    entries = [
        Descriptor(
            media_type=MANIFEST,
            digest=f"sha256:{sha256_bytes(data)}",
            size=len(data),
            platform=platform,
        )
        for data, platform in ordered
    ]
    return index_over(entries, shared_annotations([data for data, _ in ordered]))


def shared_annotations(manifests: Sequence[bytes]) -> dict[str, str]:
    """Return the annotations that all of these manifests have in common."""
    found = [json.loads(data).get("annotations") or {} for data in manifests]
    first: dict[str, str] = found[0]
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in found)}


def documents(
    base: Base, layer: Digests, labels: Mapping[str, str], *, created_by: str, epoch: int
) -> tuple[bytes, bytes]:
    """Return config and manifest of `base` with a layer on top; as `overlay_image`."""
    config = canonical(_config(base, layer, labels, created_by, rfc3339(epoch)))
    ours = Descriptor(media_type=LAYER_GZIP, digest=f"sha256:{layer.blob}", size=layer.size)
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=Descriptor(
            media_type=CONFIG, digest=f"sha256:{sha256_bytes(config)}", size=len(config)
        ),
        layers=(*oci_layers(base.manifest), ours),
        annotations=dict(labels),
    )
    return config, canonical(manifest)


def _config(
    base: Base, layer: Digests, labels: Mapping[str, str], created_by: str, created: str
) -> dict[str, Any]:
    document = copy.deepcopy(base.document)
    for note in _BUILD_NOTES:
        document.pop(note, None)
    document["created"] = created
    document["rootfs"]["diff_ids"] = [*base.config.rootfs.diff_ids, f"sha256:{layer.tar}"]
    if base.config.history:
        step = {"created": created, "created_by": created_by, "comment": "vllm-sm120"}
        document["history"] = [*document["history"], step]
    settings = document.get("config") or {}
    settings["Labels"] = (settings.get("Labels") or {}) | dict(labels)
    document["config"] = settings
    return document
