"""An image as one tar file: an OCI layout with Docker's own `manifest.json` beside it.

The form is that of `docker image save` since Docker 25: `docker load` of any version, skopeo and
podman (`oci-archive:`, `docker-archive:`) read it. Several platforms have no `manifest.json`: there
is no way to say platforms in it.
"""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

from imagebuild import files
from imagebuild.artifacts.artifact import Artifact
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import ChecksumError
from imagebuild.images.image import index_of
from imagebuild.images.labels import OCI
from imagebuild.images.oci import INDEX, MANIFEST, Descriptor, canonical, index_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from imagebuild.images.image import Image
    from imagebuild.images.ocibase import Source
    from imagebuild.progress import Progress

REPOSITORY = "vllm-sm120"
_FOLDERS = ("blobs/", "blobs/sha256/")


def write_archive(
    images: Sequence[Image],
    dest: Path,
    base: Source,
    *,
    name: str,
    epoch: int,
    progress: Progress,
) -> Artifact:
    """Write images as one file, the bases' layers included; the same bytes on every machine.

    Args:
        images: at least one, each of another platform.
        dest: the file.
        base: where the bases' layers come from.
        name: the tag that `docker load` gives it.
        epoch: the time of all entries.
        progress: is told of the bytes written.

    Raises:
        ChecksumError: if `base` gives another blob than asked for.
        StorageError: if the disk is full.
    """
    digest = hashlib.sha256()
    size = 0
    with files.atomic(dest) as file, files.storing(dest):

        def write(data: bytes) -> None:
            nonlocal size
            file.write(data)
            digest.update(data)
            size += len(data)

        for folder in _FOLDERS:
            write(_head(folder, 0, epoch))
        for blob, length, read in _blobs(images, base):
            with progress.step("pack", blob[:19], length) as done:
                write(_head(f"blobs/sha256/{blob}", length, epoch))
                _copy(read, length, write)
                done(length)
        for path, document in _documents(images, name):
            write(_head(path, len(document), epoch))
            _copy(iter((document,)), len(document), write)
        write(bytes(2 * tarfile.BLOCKSIZE))
    return Artifact(dest, Sha256(digest.hexdigest()), size)


def _blobs(images: Sequence[Image], base: Source) -> Iterator[tuple[Sha256, int, Iterator[bytes]]]:
    seen: set[Sha256] = set()
    for image in images:
        small = [(image.config_digest, image.config), (image.digest, image.manifest)]
        entries = [(digest, len(data), iter((data,))) for digest, data in small]
        entries.append((image.layer.digest, image.layer.size, image.layer.read()))
        entries += [(b.sha256, b.size, base.blob(b.sha256, b.size)) for b in image.base_layers]
        for entry in entries:
            if entry[0] not in seen:
                seen.add(entry[0])
                yield entry
    if len(images) > 1:
        index = index_of(images)
        yield sha256_bytes(index), len(index), iter((index,))


def _documents(images: Sequence[Image], name: str) -> Iterator[tuple[str, bytes]]:
    several = len(images) > 1
    data = index_of(images) if several else images[0].manifest
    named = Descriptor(
        media_type=INDEX if several else MANIFEST,
        digest=f"sha256:{sha256_bytes(data)}",
        size=len(data),
        platform=None if several else images[0].platform,
        annotations={
            f"{OCI}ref.name": name,
            "io.containerd.image.name": f"docker.io/library/{REPOSITORY}:{name}",
        },
    )
    yield "index.json", index_over([named], {})
    if not several:
        image = images[0]
        layers = [*(layer.sha256 for layer in image.base_layers), image.layer.digest]
        entry = {
            "Config": f"blobs/sha256/{image.config_digest}",
            "RepoTags": [f"{REPOSITORY}:{name}"],
            "Layers": [f"blobs/sha256/{digest}" for digest in layers],
        }
        yield "manifest.json", canonical([entry])
    yield "oci-layout", canonical({"imageLayoutVersion": "1.0.0"})


def _head(path: str, size: int, epoch: int) -> bytes:
    info = tarfile.TarInfo(path)
    info.mtime = epoch
    if path.endswith("/"):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    else:
        info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _copy(chunks: Iterator[bytes], size: int, write: Callable[[bytes], object]) -> None:
    """Write a member's bytes, filled up to a whole block."""
    length = 0
    for chunk in chunks:
        length += len(chunk)
        write(chunk)
    if length != size:
        raise ChecksumError(
            "a blob has another size than its manifest says",
            file="the base image",
            expected=f"{size} bytes",
            found=f"{length} bytes",
            next_command="the same command again",
        )
    write(bytes(-size % tarfile.BLOCKSIZE))
