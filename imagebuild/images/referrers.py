"""What refers to an image: attestations and signatures, as OCI referrers.

OCI distribution spec 1.1, "Listing Referrers" and "Referrers Tag Schema"; image spec 1.1,
"Guidelines for Artifact Usage". A registry that knows referrers notes them itself; for the others
an index under the tag `sha256-DIGEST` is kept up by whoever pushes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from imagebuild.digest import sha256_bytes
from imagebuild.errors import RegistryError
from imagebuild.images.oci import (
    INDEX,
    MANIFEST,
    MAX_DOCUMENT,
    Descriptor,
    Document,
    Index,
    canonical,
    damaged,
    parse_as,
    parse_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagebuild.digest import Sha256
    from imagebuild.images.publish import Publisher
    from imagebuild.images.registry import Registry

EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_ATTEMPTS = 5
_OK, _NOT_FOUND = 200, 404


class Artifact(Document, frozen=True, kw_only=True):
    """A manifest that carries something about an image."""

    schema_version: int
    media_type: str | None = None
    artifact_type: str | None = None
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None = None
    annotations: dict[str, str] | None = None

    @property
    def kind(self) -> str:
        """What it carries."""
        return self.artifact_type or self.config.media_type


@dataclass(frozen=True)
class Attachment:
    """Something to be attached.

    Attributes:
        kind: its media type.
        data: its content.
        annotations: say more of it in listings.
    """

    kind: str
    data: bytes
    annotations: dict[str, str]


def subject_of(manifest: bytes, media_type: str) -> Descriptor:
    """Return the descriptor by which an attachment names what it is about."""
    return Descriptor(
        media_type=media_type, digest=f"sha256:{sha256_bytes(manifest)}", size=len(manifest)
    )


def artifact(subject: Descriptor, attachment: Attachment) -> bytes:
    """Return an attachment's manifest; the same attachment gives the same bytes."""
    return canonical(
        Artifact(
            schema_version=2,
            media_type=MANIFEST,
            artifact_type=attachment.kind,
            config=_blob(_EMPTY_TYPE, EMPTY),
            layers=(_blob(attachment.kind, attachment.data),),
            subject=subject,
            annotations=attachment.annotations,
        )
    )


def attach(publisher: Publisher, subject: Descriptor, attachment: Attachment) -> Sha256:
    """Push an attachment to an image that is there already; return its digest.

    Raises:
        RegistryError: if the registry does not take it.
    """
    for data in (EMPTY, attachment.data):
        publisher.writer.blob(sha256_bytes(data), len(data), partial(_once, data), _ignore)
    manifest = artifact(subject, attachment)
    if not publisher.document(manifest, MANIFEST):
        entry = Descriptor(
            media_type=MANIFEST,
            artifact_type=attachment.kind,
            digest=f"sha256:{sha256_bytes(manifest)}",
            size=len(manifest),
            annotations=attachment.annotations,
        )
        _list(publisher, subject, entry)
    return sha256_bytes(manifest)


def _list(publisher: Publisher, subject: Descriptor, entry: Descriptor) -> None:
    """Add an entry to the index under the subject's tag; somebody else may do the same."""
    tag = fallback_tag(subject.sha256)
    for _ in range(_ATTEMPTS):
        known = _tagged(publisher.reader(), tag)
        if any(other.digest == entry.digest for other in known):
            return
        index = Index(schema_version=2, media_type=INDEX, manifests=(*known, entry))
        publisher.writer.manifest(canonical(index), INDEX, tag)
    raise RegistryError(
        "the list of what refers to the image does not keep its entries",
        file=f"{publisher.target.repository}:{tag}",
        expected=entry.digest,
        found=f"not there after {_ATTEMPTS} attempts",
        next_command="the same command again; who else pushes there?",
    )


def listed(source: Registry, digest: Sha256) -> tuple[Descriptor, ...]:
    """Return what refers to an image, as the registry lists it.

    Raises:
        RegistryError: if the registry does not answer.
        ArchiveError: if the list is malformed.
    """
    connection = source.connection
    url = connection.url(f"referrers/sha256:{digest}")
    with connection.ask("GET", url, {"Accept": INDEX}, expect=(_OK, _NOT_FOUND)) as answer:
        if answer.status_code == _OK:
            data = next(answer.iter_content(MAX_DOCUMENT), b"")
            found = parse_manifest(data, url)
            return found.manifests if isinstance(found, Index) else ()
    return _tagged(source, fallback_tag(digest))


def read(source: Registry, entry: Descriptor, subject: Sha256) -> tuple[Artifact, bytes]:
    """Return an attachment's manifest and its content.

    Raises:
        ArchiveError: if it is malformed, or about another image.
        BuildError: if it cannot be had, or is not the one asked for.
    """
    where = f"{source.label}@{entry.digest}"
    found = parse_as(source.manifest(entry.sha256), Artifact, where)
    about = None if found.subject is None else found.subject.digest
    if about != f"sha256:{subject}":
        raise damaged("an attachment is about another image", where, f"sha256:{subject}", about)
    if len(found.layers) != 1 or not 0 <= found.layers[0].size <= MAX_DOCUMENT:
        raise damaged("an attachment has an absurd form", where, "one small blob", found.layers)
    blob = found.layers[0]
    return found, b"".join(source.blob(blob.sha256, blob.size))


def fallback_tag(digest: Sha256) -> str:
    """Return the tag under which a registry without referrers lists them."""
    return f"sha256-{digest}"


def _tagged(source: Registry, tag: str) -> tuple[Descriptor, ...]:
    url = source.connection.url(f"manifests/{tag}")
    with source.connection.ask("HEAD", url, {"Accept": INDEX}, expect=(_OK, _NOT_FOUND)) as answer:
        if answer.status_code == _NOT_FOUND:
            return ()
    found = parse_manifest(source.tagged(tag), f"{source.label}:{tag}")
    return found.manifests if isinstance(found, Index) else ()


def _blob(media_type: str, data: bytes) -> Descriptor:
    return Descriptor(media_type=media_type, digest=f"sha256:{sha256_bytes(data)}", size=len(data))


def _once(data: bytes) -> Iterator[bytes]:
    yield data


def _ignore(count: int) -> None:
    del count
