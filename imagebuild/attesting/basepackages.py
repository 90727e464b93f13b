"""The Python packages in an image's layers, from their own metadata."""

from __future__ import annotations

import re
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagebuild.images.oci import Descriptor
    from imagebuild.images.ocibase import Source
    from imagebuild.progress import Progress

_METADATA = re.compile(r"^(?:\./)?(?P<folder>.+\.(?:dist-info|egg-info))/(?:METADATA|PKG-INFO)$")
_FIELD = re.compile(rb"^(Name|Version):[ \t]*(\S+)[ \t]*\r?$", re.MULTILINE)
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_LARGEST = 4 << 20


@dataclass(frozen=True, order=True)
class Package:
    """A Python package by its own name and version."""

    name: str
    version: str

    @property
    def purl(self) -> str:
        """It as a package URL, its name normalised (PEP 503)."""
        name = re.sub(r"[-_.]+", "-", self.name).lower()
        return f"pkg:pypi/{name}@{self.version}"


class _Stream:
    """A layer's tar for `tarfile`, front to back in bounded memory."""

    def __init__(self, chunks: Iterator[bytes], *, packed: bool) -> None:
        self._chunks = chunks
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16) if packed else None
        self._buffer = bytearray()

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer at the end."""
        while len(self._buffer) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._buffer += self._inflater.decompress(chunk) if self._inflater else chunk
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


def packages(
    source: Source, layers: tuple[Descriptor, ...], progress: Progress
) -> tuple[Package, ...]:
    """Return the packages that are left when all layers are laid over each other, sorted.

    Raises:
        TargetError: if a layer is packed in a way that cannot be read here.
        BuildError: if a layer cannot be had, or is not the one asked for.
    """
    found: dict[str, Package] = {}
    for layer in layers:
        if layer.media_type.endswith("zstd"):
            raise TargetError(
                "a layer of the base is packed with zstd",
                file=layer.digest,
                expected="gzip, or none",
                found=layer.media_type,
                next_command="python build.py   (without --base: the SBOM then lists our part)",
            )
        chunks = source.blob(layer.sha256, layer.size)
        with progress.step("verify", layer.digest[:19], layer.size) as done:
            _over(found, _Stream(chunks, packed=layer.media_type.endswith("gzip")))
            for _ in chunks:  # what a tar has after its end belongs to the digest, too
                pass
            done(layer.size)
    return tuple(sorted({package.purl: package for package in sorted(found.values())}.values()))


def _over(found: dict[str, Package], stream: _Stream) -> None:
    """Lay one layer over what is known: its whiteouts first."""
    new: dict[str, Package] = {}
    gone: list[str] = []
    with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
        for entry in archive:
            path = entry.name.removeprefix("./")
            folder, _, name = path.rpartition("/")
            if name == _OPAQUE:
                gone.append(f"{folder}/")
            elif name.startswith(_WHITEOUT):
                gone.append(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
            match = _METADATA.match(path)
            file = archive.extractfile(entry) if match and entry.isreg() else None
            if match and file is not None and entry.size <= _LARGEST:
                fields = dict(reversed(_FIELD.findall(file.read())))
                if fields.keys() >= {b"Name", b"Version"}:
                    name, version = fields[b"Name"].decode(), fields[b"Version"].decode()
                    new[match["folder"]] = Package(name, version)
    for place in list(found):
        if any(place == g or place.startswith(f"{g.rstrip('/')}/") for g in gone):
            del found[place]
    found.update(new)
