"""An image in one tar file, from a disk or out of a running Docker, as a subject of verification.

Read once, front to back, in bounded memory: every member is hashed, and small ones are kept in a
folder. Two forms: the OCI layout in a tar (`oci-archive:`; `docker image save` with containerd's
image store), and Docker's older one (`docker-archive:`), which has lost the manifest: there the
config's digest, which is Docker's image id, and each layer's diffID are compared.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from imagebuild.artifacts.layer import Digests
from imagebuild.digest import Sha256, parse_sha256, sha256_bytes
from imagebuild.errors import ChecksumError
from imagebuild.images.oci import Config, Index, damaged, parse_as, parse_manifest
from imagebuild.verifying.verify_image import check_labels, wanted_documents
from imagebuild.verifying.verify_layer import MAX_LAYER, check_layer, check_tar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagebuild.images.oci import Manifest
    from imagebuild.progress import Progress
    from imagebuild.verifying.verify import Report
    from imagebuild.verifying.verify_layer import Facts

_CHUNK = 1 << 20
_MEMBERS = 100_000
_BLOBS = "blobs/sha256/"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Member:
    """One file of an archive.

    Attributes:
        sha256: the digest of its content.
        size: its size in bytes.
        kept: where its content is; None if it was too large to keep.
    """

    sha256: Sha256
    size: int
    kept: Path | None


@dataclass(frozen=True)
class ImageArchive:
    """What was in an archive; a `Source` of its manifests and small blobs.

    Attributes:
        label: the file, for messages.
        members: by name.
    """

    label: str
    members: dict[str, Member] = field(repr=False)

    @classmethod
    def read(cls, file: IO[bytes], label: str, folder: Path, progress: Progress) -> ImageArchive:
        """Return an archive; what is small is kept in `folder`.

        Raises:
            ArchiveError: if it is no tar, or names a file twice.
        """
        members: dict[str, Member] = {}
        try:
            with (
                progress.step("verify", label) as done,
                tarfile.open(fileobj=file, mode="r|*") as archive,
            ):
                for entry in archive:
                    content = archive.extractfile(entry) if entry.isreg() else None
                    if content is None:
                        continue
                    if entry.name in members or len(members) >= _MEMBERS:
                        raise damaged("an archive names a file twice", label, "once", entry.name)
                    kept = folder / str(len(members)) if entry.size <= MAX_LAYER else None
                    members[entry.name] = _take(content, kept)
                    done(entry.size)
        except (tarfile.TarError, EOFError) as error:
            raise damaged("not an image archive", label, "a tar file", error) from error
        return cls(label, members)

    def content(self, name: str) -> bytes:
        """Return a small member.

        Raises:
            ArchiveError: if there is none, or it is too large.
        """
        member = self.members.get(name)
        if member is None or member.kept is None:
            found = "no such file" if member is None else f"{member.size} bytes"
            raise damaged("an image archive lacks a file", f"{self.label}: {name}", "it", found)
        return member.kept.read_bytes()

    def manifest(self, digest: Sha256) -> bytes:
        """Return a manifest's bytes, verified.

        Raises:
            ArchiveError: if there is none.
            ChecksumError: if it has another digest.
        """
        return b"".join(self.blob(digest, None))

    def blob(self, digest: Sha256, size: int | None) -> Iterator[bytes]:
        """Yield a blob's bytes, verified.

        Raises:
            ArchiveError: if there is none.
            ChecksumError: if it has another digest or size.
        """
        data = self.content(f"{_BLOBS}{digest}")
        if sha256_bytes(data) != digest or size not in (None, len(data)):
            raise ChecksumError(
                "a blob is not the one that its name says",
                file=f"{self.label}: {_BLOBS}{digest}",
                expected=f"sha256:{digest}, {size} bytes",
                found=f"sha256:{sha256_bytes(data)}, {len(data)} bytes",
                next_command=f"tar -tvf {self.label}",
            )
        yield data

    def has(self, digest: Sha256) -> bool:
        """Return whether a blob is there."""
        return f"{_BLOBS}{digest}" in self.members

    @property
    def is_layout(self) -> bool:
        """Whether it is an OCI layout, with manifests."""
        return "index.json" in self.members


@dataclass(frozen=True)
class ArchiveSubject:
    """An OCI layout in an archive.

    Attributes:
        source: the archive.
    """

    source: ImageArchive

    @property
    def label(self) -> str:
        """The file."""
        return self.source.label

    def index(self) -> Index:
        """Return `index.json`, without the images that the archive does not hold.

        Raises:
            ArchiveError: if it is none.
        """
        where = f"{self.label}: index.json"
        found = parse_manifest(self.source.content("index.json"), where)
        if not isinstance(found, Index):
            raise damaged("index.json is no index", where, "an index", "a manifest")
        return found

    def check_storage(self, report: Report, progress: Progress) -> None:
        """Check that every blob is what its name says; they were hashed when they were read."""
        del progress
        blobs = {n.removeprefix(_BLOBS): m for n, m in self.source.members.items() if _BLOBS in n}
        bad: dict[str, tuple[object, object]] = {
            name: (name, member.sha256) for name, member in blobs.items() if name != member.sha256
        }
        report.files("every blob is what its name says", bad, len(blobs))

    def check_layers(self, report: Report, manifest: Manifest, progress: Progress) -> None:
        """Check that the base's layers are there, in the right size."""
        del progress
        bad: dict[str, tuple[object, object]] = {}
        for layer in manifest.layers[:-1]:
            member = self.source.members.get(f"{_BLOBS}{layer.sha256}")
            if member is None or (member.sha256, member.size) != (layer.sha256, layer.size):
                bad[layer.digest] = (f"{layer.size} bytes", member and f"{member.size} bytes")
        report.files("the base's layers are there", bad, len(manifest.layers) - 1)


def check_docker_archive(report: Report, source: ImageArchive, facts: Facts) -> None:
    """Check the one image of an archive in Docker's older form.

    Raises:
        BuildError: if a file is missing or malformed.
    """
    config, layers = docker_documents(source)
    document = source.content(config)
    parsed = parse_as(document, Config, f"{source.label}: {config}")
    report.compare("platform", facts.platform, f"{parsed.os}/{parsed.architecture}")
    labels = (parsed.config.labels if parsed.config is not None else None) or {}
    check_labels(report, "labels", labels, facts.labels)
    diff_ids = parsed.rootfs.diff_ids
    if len(layers) != len(diff_ids) or not layers:
        report.bad("layers fit the config", len(diff_ids), len(layers))
        return
    _check_packed(report, source, layers[:-1], diff_ids[:-1])
    tar = source.content(layers[-1])
    if tar.startswith(_GZIP):
        check_layer(report, tar, diff_ids[-1], facts)
    else:
        check_tar(report, tar, diff_ids[-1], facts)
    digests = Digests(Sha256("0" * 64), parse_sha256(diff_ids[-1]), 0)
    wanted = wanted_documents(report, digests, facts)
    if wanted is not None:
        name = "the image's id is that of the official one with this layer"
        found = f"sha256:{sha256_bytes(document)}"
        report.compare(name, f"sha256:{sha256_bytes(wanted[0])}", found)


def _check_packed(
    report: Report, source: ImageArchive, layers: list[str], diff_ids: tuple[str, ...]
) -> None:
    bad: dict[str, tuple[object, object]] = {}
    for name, diff_id in zip(layers, diff_ids, strict=True):
        member = source.members.get(name)
        found = None if member is None else f"sha256:{member.sha256}"
        if found != diff_id and f"{_BLOBS}{member and member.sha256}" != name:
            bad[name] = (diff_id, found or "no such file")
    report.files("the base's layers are there", bad, len(layers))


def docker_documents(source: ImageArchive) -> tuple[str, list[str]]:
    """Return the names of config and layers that `manifest.json` gives.

    Raises:
        ArchiveError: if it is not Docker's.
    """
    where = f"{source.label}: manifest.json"
    try:
        found: Any = json.loads(source.content("manifest.json"))
        (entry,) = found
        return str(entry["Config"]), [str(layer) for layer in entry["Layers"]]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("not Docker's manifest.json", where, "one image", error) from error


def _take(content: IO[bytes], kept: Path | None) -> Member:
    digest, size = hashlib.sha256(), 0
    chunks = iter(lambda: content.read(_CHUNK), b"")
    if kept is None:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
        return Member(Sha256(digest.hexdigest()), size, None)
    with kept.open("wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    return Member(Sha256(digest.hexdigest()), size, kept)
