"""An image out of a registry into an OCI layout, every blob compared with its digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild.files import storing
from imagebuild.images.labels import OCI
from imagebuild.images.oci import (
    INDEX,
    MANIFEST,
    MANIFEST_TYPES,
    Descriptor,
    Index,
    canonical,
    index_over,
    is_foreign,
    parse_manifest,
)
from imagebuild.images.ocilayout import VERSION, replacing, write_blob
from imagebuild.verifying.verify_image import read_entry

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.digest import Sha256
    from imagebuild.images.ocibase import Source
    from imagebuild.progress import Progress


def pull(source: Source, digest: Sha256, dest: Path, *, name: str, progress: Progress) -> None:
    """Write an image, or an index and all its images, as a whole layout.

    Args:
        source: the repository.
        digest: what to fetch.
        dest: the folder; it gets its name when it is whole, and replaces what is there.
        name: the tag that readers show.
        progress: is told of the bytes.

    Raises:
        BuildError: if a blob cannot be had, or is not the one asked for.
        StorageError: if the disk is full.
    """
    data = source.manifest(digest)
    found = parse_manifest(data, f"{source.label}@sha256:{digest}")
    several = isinstance(found, Index)
    top = Descriptor(
        media_type=INDEX if several else MANIFEST,
        digest=f"sha256:{digest}",
        size=len(data),
        annotations={f"{OCI}ref.name": name},
    )
    images = (
        [entry for entry in found.manifests if entry.media_type in MANIFEST_TYPES]
        if isinstance(found, Index)
        else [top]
    )
    with storing(dest), replacing(dest) as folder:
        write_blob(folder, f"blobs/sha256/{digest}", iter((data,)))
        for image in images:
            _image(source, image, folder, progress)
        write_blob(folder, "oci-layout", iter((canonical(VERSION),)))
        write_blob(folder, "index.json", iter((index_over([top], {}),)))


def _image(source: Source, image: Descriptor, folder: Path, progress: Progress) -> None:
    entry = read_entry(source, image)
    small = {image.sha256: entry.data, entry.manifest.config.sha256: entry.document}
    for digest, data in small.items():
        write_blob(folder, f"blobs/sha256/{digest}", iter((data,)))
    for layer in entry.manifest.layers:
        name = f"blobs/sha256/{layer.sha256}"
        if is_foreign(layer) or (folder / name).exists():
            continue
        with progress.step("download", layer.digest[:19], layer.size) as done:
            write_blob(folder, name, source.blob(layer.sha256, layer.size))
            done(layer.size)
