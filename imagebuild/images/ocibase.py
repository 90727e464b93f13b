"""The image to build on, read from wherever it is and checked against the digest asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import ChecksumError, LockError, TargetError
from imagebuild.images.oci import (
    CONFIG_TYPES,
    INDEX,
    MANIFEST,
    MANIFEST_TYPES,
    MAX_DOCUMENT,
    Config,
    Descriptor,
    Index,
    Manifest,
    damaged,
    parse_config,
    parse_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagebuild.upstream import Platform


class Source(Protocol):
    """Something that has manifests and blobs, and gives no others than asked for."""

    @property
    def label(self) -> str:
        """What it is, for messages."""

    def manifest(self, digest: Sha256) -> bytes:
        """Return a manifest's bytes, verified.

        Raises:
            BuildError: if there is none, or it has another digest.
        """

    def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
        """Yield a blob's bytes; raises after the last if they are not the ones asked for.

        Raises:
            BuildError: if there is none, or it has another digest or size.
        """


@dataclass(frozen=True)
class Base:
    """An image to build on.

    Attributes:
        digest: the digest of its manifest.
        manifest: its manifest.
        document: its config, whole.
        config: the checked part of its config.
    """

    digest: Sha256
    manifest: Manifest
    document: dict[str, Any]
    config: Config


def resolve_platform(index: Index, platform: Platform, where: str) -> Descriptor:
    """Return the one manifest of an index that is for `platform`.

    Raises:
        TargetError: if there is none, or several.
    """
    found = [
        entry
        for entry in index.manifests
        if entry.media_type in MANIFEST_TYPES
        and entry.platform is not None
        and entry.platform.matches(platform)
    ]
    if len(found) != 1:
        has = ", ".join(str(e.platform) for e in index.manifests if e.platform is not None)
        raise TargetError(
            f"the official image has no manifest for {platform}"
            if not found
            else f"the official image has several manifests for {platform}",
            file=where,
            expected=f"one manifest for {platform}",
            found=has or "no platforms",
            next_command="python build.py lock",
        )
    return found[0]


def read_base(source: Source, digest: Sha256, platform: Platform) -> Base:
    """Return the image with that digest; for an index, the image for `platform`.

    Raises:
        TargetError: if an index has no such platform.
        LockError: if the digest is another platform's image.
        ArchiveError: if a document is malformed or does not fit the others.
        ChecksumError: if a document has another digest or size than asked for.
    """
    where = f"{source.label}@sha256:{digest}"
    manifest = parse_manifest(source.manifest(digest), where)
    if isinstance(manifest, Index):
        digest = resolve_platform(manifest, platform, where).sha256
        where = f"{source.label}@sha256:{digest}"
        manifest = parse_manifest(source.manifest(digest), where)
        if isinstance(manifest, Index):
            raise damaged("an index stands inside an index", where, MANIFEST, INDEX)
    if manifest.config.media_type not in CONFIG_TYPES:
        known = " or ".join(CONFIG_TYPES)
        raise damaged("not a container image", where, known, manifest.config.media_type)
    data = read_config(source, manifest, where)
    document, config = parse_config(data, manifest, f"{where}, config")
    if not config.matches(platform):
        raise LockError(
            "the pinned image is another platform's",
            file=where,
            expected=platform,
            found=config,
            next_command="python build.py lock",
        )
    return Base(digest, manifest, document, config)


def read_config(source: Source, manifest: Manifest, where: str) -> bytes:
    """Return a manifest's config.

    Raises:
        ArchiveError: if it is absurdly large.
        ChecksumError: if it has another digest or size.
    """
    size = manifest.config.size
    if not 0 < size <= MAX_DOCUMENT:
        raise damaged("the config has an absurd size", where, f"at most {MAX_DOCUMENT}", size)
    data = b"".join(source.blob(manifest.config.sha256, size))
    if len(data) != size:
        raise damaged("the config has another size than its manifest says", where, size, len(data))
    return check_document(data, manifest.config.sha256, f"{where}, config")


def check_document(data: bytes, digest: Sha256, where: str) -> bytes:
    """Return `data` if it has that digest.

    Raises:
        ChecksumError: if not.
    """
    if (found := sha256_bytes(data)) != digest:
        raise ChecksumError(
            "a document of an image is not the one asked for",
            file=where,
            expected=f"sha256:{digest}",
            found=f"sha256:{found}, {len(data)} bytes",
            next_command="the same command again; then python build.py lock",
        )
    return data
