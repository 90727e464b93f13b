"""OCI image layouts (image spec 1.1, image-layout.md): read as a base, written as a result.

A layout that we write without the base's layers says so in the annotation `LAYOUT` of `index.json`,
outside every digest. The spec allows it: blobs that are missing "SHOULD be fulfilled by an external
blob store", here the registry that has the official image.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from imagebuild.artifacts.layer import Digests, Layer
from imagebuild.digest import Sha256, parse_sha256, sha256_bytes
from imagebuild.errors import ArchiveError, ChecksumError
from imagebuild.files import storing
from imagebuild.images.image import Image, index_of
from imagebuild.images.labels import OCI, OWN
from imagebuild.images.oci import (
    INDEX,
    MANIFEST,
    MAX_DOCUMENT,
    Descriptor,
    Index,
    canonical,
    damaged,
    parse_config,
    parse_json,
    parse_manifest,
)
from imagebuild.images.ocibase import check_document, read_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagebuild.images.ocibase import Source
    from imagebuild.progress import Progress

LAYOUT = f"{OWN}layout"
Kind = Literal["overlay-only", "complete"]
VERSION = {"imageLayoutVersion": "1.0.0"}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class LayoutSource:
    """An OCI layout in a folder, or any folder with `blobs/sha256`, such as our cache."""

    root: Path

    @property
    def label(self) -> str:
        """The folder."""
        return str(self.root)

    def path(self, digest: Sha256) -> Path:
        """Return where the blob is, or would be."""
        return self.root / "blobs" / "sha256" / digest

    def index(self) -> Index:
        """Return `index.json`.

        Raises:
            ArchiveError: if the folder is no OCI layout.
        """
        marker = parse_json(self._small("oci-layout"), f"{self.root}/oci-layout")
        if marker != VERSION:
            raise damaged("not an OCI layout", f"{self.root}/oci-layout", VERSION, marker)
        where = f"{self.root}/index.json"
        index = parse_manifest(self._small("index.json"), where)
        if not isinstance(index, Index):
            raise damaged("index.json is no index", where, INDEX, MANIFEST)
        return index

    def manifest(self, digest: Sha256) -> bytes:
        """Return a manifest's bytes, verified.

        Raises:
            ArchiveError: if there is none, or it is absurdly large.
            ChecksumError: if it has another digest.
        """
        data = self._small(f"blobs/sha256/{digest}")
        return check_document(data, digest, str(self.path(digest)))

    def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
        """Yield a blob's bytes.

        Raises:
            ArchiveError: if there is none.
            ChecksumError: after the last, if they are not the ones asked for.
        """
        path = self.path(digest)
        found, length = hashlib.sha256(), 0
        with self._open(path) as file:
            while chunk := os.read(file, _CHUNK):
                found.update(chunk)
                length += len(chunk)
                yield chunk
        if (found.hexdigest(), length) != (digest, size):
            raise ChecksumError(
                "a blob is not the one that its name says",
                file=path,
                expected=f"sha256:{digest}, {size} bytes",
                found=f"sha256:{found.hexdigest()}, {length} bytes",
                next_command=f"sha256sum {path}",
            )

    def has(self, digest: Sha256) -> bool:
        """Return whether the blob is there; its content is not read."""
        return self.path(digest).is_file()

    def _small(self, name: str) -> bytes:
        path = self.root / name
        with self._open(path) as file:
            size = os.fstat(file).st_size
            if size > MAX_DOCUMENT:
                raise damaged("a document is too large", str(path), MAX_DOCUMENT, size)
            return os.read(file, MAX_DOCUMENT + 1)

    @contextlib.contextmanager
    def _open(self, path: Path) -> Iterator[int]:
        try:
            # No link is followed: a blob is a regular file of the layout itself.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ArchiveError(
                "the layout lacks a file",
                file=path,
                expected="a regular file",
                found=error.strerror or type(error).__name__,
                next_command=f"find {self.root}",
            ) from error
        try:
            yield file
        finally:
            os.close(file)


@dataclass(frozen=True)
class Layout:
    """A written layout.

    Attributes:
        path: the folder.
        digest: the digest that `index.json` leads to: the image's, or the index over several.
        kind: whether the base's layers are in it.
    """

    path: Path
    digest: Sha256
    kind: Kind


def write_layout(
    images: Sequence[Image],
    dest: Path,
    *,
    name: str,
    progress: Progress,
    export: Source | None = None,
) -> Layout:
    """Write an OCI layout that holds `images`; it gets its name when it is whole.

    A folder that is there already is replaced. Several images stand behind one index.

    Args:
        images: at least one, each of another platform.
        dest: the folder.
        name: the tag that readers show (`org.opencontainers.image.ref.name`).
        progress: is told of the bytes written.
        export: where the base's layers come from, to be written too.

    Raises:
        ChecksumError: if `export` gives another blob than asked for.
        StorageError: if the disk is full.
    """
    kind: Kind = "overlay-only" if export is None else "complete"
    blobs = {image.digest: image.manifest for image in images}
    blobs |= {image.config_digest: image.config for image in images}
    top = _descriptor(images[0].manifest, MANIFEST, images[0])
    if len(images) > 1:
        several = index_of(images)
        blobs[sha256_bytes(several)] = several
        top = _descriptor(several, INDEX, None)
    named = Descriptor(
        media_type=top.media_type,
        digest=top.digest,
        size=top.size,
        platform=top.platform,
        annotations={f"{OCI}ref.name": name},
    )
    index = Index(
        schema_version=2, media_type=INDEX, manifests=(named,), annotations={LAYOUT: kind}
    )
    with storing(dest), replacing(dest) as folder:
        for digest, data in blobs.items():
            write_blob(folder, f"blobs/sha256/{digest}", iter((data,)))
        _layers(folder, images, export, progress)
        write_blob(folder, "oci-layout", iter((canonical(VERSION),)))
        write_blob(folder, "index.json", iter((canonical(index),)))
    return Layout(dest, top.sha256, kind)


def read_image(path: Path, base: Sha256) -> Image:
    """Return the one image of a layout that we wrote; `base` is what it is built on.

    Raises:
        ArchiveError, ChecksumError: if the layout is damaged.
    """
    source = LayoutSource(path)
    entry = source.index().manifests[0]
    data = source.manifest(entry.sha256)
    where = f"{path}@{entry.digest}"
    manifest = parse_manifest(data, where)
    if isinstance(manifest, Index) or not manifest.layers:
        raise damaged("not an overlay image", where, MANIFEST, "an index, or no layers")
    raw = read_config(source, manifest, where)
    _, config = parse_config(raw, manifest, where)
    ours = manifest.layers[-1]
    digests = Digests(ours.sha256, parse_sha256(config.rootfs.diff_ids[-1]), ours.size)
    return Image(
        base,
        manifest.layers[:-1],
        Layer(source.path(ours.sha256), digests),
        raw,
        data,
        config.bare(),
    )


def _layers(
    folder: Path, images: Sequence[Image], export: Source | None, progress: Progress
) -> None:
    for image in images:
        ours = image.layer
        with progress.step("pack", ours.path.name, ours.size) as done:
            write_blob(folder, f"blobs/sha256/{ours.digest}", ours.read())
            done(ours.size)
        for layer in image.base_layers if export is not None else ():
            name = f"blobs/sha256/{layer.sha256}"
            if export is None or (folder / name).exists():
                continue
            with progress.step("pack", layer.digest[:19], layer.size) as done:
                write_blob(folder, name, export.blob(layer.sha256, layer.size))
                done(layer.size)


def _descriptor(data: bytes, media_type: str, image: Image | None) -> Descriptor:
    return Descriptor(
        media_type=media_type,
        digest=f"sha256:{sha256_bytes(data)}",
        size=len(data),
        platform=None if image is None else image.platform,
    )


def write_blob(folder: Path, name: str, chunks: Iterator[bytes]) -> None:
    """Write one file of a layout; raises what `chunks` raises."""
    path = folder / name
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(dest: Path) -> Iterator[Path]:
    """Give a new layout's folder that takes `dest`'s name at the end, whatever the umask."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    for leftover in dest.parent.glob(f".{dest.name}.*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    outer = Path(tempfile.mkdtemp(prefix=f".{dest.name}.", suffix=".tmp", dir=dest.parent))
    try:
        new, old = outer / "new", outer / "old"
        for folder in (new, new / "blobs", new / "blobs" / "sha256"):
            folder.mkdir()
            folder.chmod(0o755)
        yield new
        if dest.exists():
            dest.rename(old)
        new.rename(dest)
    finally:
        shutil.rmtree(outer, ignore_errors=True)
