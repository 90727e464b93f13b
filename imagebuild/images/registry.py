"""Reading images from a registry: manifests and configs, by digest, verified on the raw bytes.

Own code on requests: `oras` 0.2.43 parses a manifest before anybody can hash it, sets no time
limits and follows redirects anywhere; docs/rejected.md has the details.

Errors by what went wrong: `RegistryError` if the registry gives no answer that one could judge
(unreachable, no access, no such image), `ChecksumError` if the bytes are not the ones asked for,
`ArchiveError` if they are, and make no sense.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from imagebuild.digest import Sha256, parse_sha256, sha256_bytes
from imagebuild.errors import ChecksumError
from imagebuild.fetch import transport
from imagebuild.fetch.transport import Patience, TransientError
from imagebuild.images.oci import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_DOCUMENT,
    Index,
    damaged,
    parse_manifest,
)
from imagebuild.images.ocibase import check_document
from imagebuild.images.registry_http import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagebuild.images.docker_credentials import Credentials

ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_CHUNK = 1 << 20
_OK, _PARTIAL = 200, 206


@dataclass(frozen=True)
class Resolved:
    """What a tag means now.

    Attributes:
        digest: the digest of the index, or of the manifest.
        platforms: the digest of each platform's manifest, by `os/architecture`.
    """

    digest: Sha256
    platforms: dict[str, Sha256]


@dataclass
class Registry:
    """One repository of a registry; a `Source` of manifests and blobs.

    Attributes:
        repository: with its registry, such as `docker.io/vllm/vllm-openai`.
        credentials: for the registry; by default those that Docker's own configuration has.
        patience: how often and how long to try again.
        timeout: seconds to connect, and between two pieces.
    """

    repository: str
    credentials: Credentials | None = None
    patience: Patience = field(default_factory=Patience)
    timeout: tuple[float, float] = (10, 60)
    _connection: Connection | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """The repository."""
        return self.repository

    @property
    def connection(self) -> Connection:
        """The way to the repository."""
        if self._connection is None:
            self._connection = Connection(
                self.repository,
                credentials=self.credentials,
                patience=self.patience,
                timeout=self.timeout,
            )
        return self._connection

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes its connections."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        if self._connection is not None:
            self._connection.close()

    def manifest(self, digest: Sha256) -> bytes:
        """Return a manifest's bytes.

        Raises:
            RegistryError: if the registry does not give one.
            ChecksumError: if it gives another one.
            ArchiveError: if it is absurdly large.
        """
        data = self.tagged(f"sha256:{digest}")
        return check_document(data, digest, f"{self.repository}@sha256:{digest}")

    def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
        """Yield a blob's bytes in pieces of at most 1 MiB.

        Raises:
            RegistryError: if the registry does not give one.
            ChecksumError: as soon as it is too long, or after its end, if it is another one.
        """
        found, length = hashlib.sha256(), 0
        for chunk in self._stream(f"blobs/sha256:{digest}", "*/*"):
            found.update(chunk)
            length += len(chunk)
            if length > size:
                break
            yield chunk
        if (found.hexdigest(), length) != (digest, size):
            raise ChecksumError(
                "a blob is not the one asked for",
                file=f"{self.repository}@sha256:{digest}",
                expected=f"sha256:{digest}, {size} bytes",
                found=f"sha256:{found.hexdigest()}, {length} bytes",
                next_command="the same command again; then python build.py lock",
            )

    def resolve(self, tag: str) -> Resolved:
        """Return what `tag` means now.

        Raises:
            RegistryError: if the registry does not say.
            ArchiveError: if what it says makes no sense.
        """
        data = self.tagged(tag)
        digest = sha256_bytes(data)
        document = parse_manifest(data, f"{self.repository}:{tag}")
        if not isinstance(document, Index):
            return Resolved(digest, {})
        platforms = {
            f"{entry.platform.os}/{entry.platform.architecture}": parse_sha256(entry.digest)
            for entry in document.manifests
            if entry.platform is not None and entry.media_type in MANIFEST_TYPES
        }
        return Resolved(digest, platforms)

    def tagged(self, reference: str) -> bytes:
        """Return the bytes of what a tag means now; nothing says that they are right.

        Raises:
            RegistryError: if the registry does not give any.
            ArchiveError: if they are absurdly many.
        """
        data = b""
        for chunk in self._stream(f"manifests/{reference}", ACCEPT):
            data += chunk
            if len(data) > MAX_DOCUMENT:
                where = f"{self.repository}, {reference}"
                raise damaged("a manifest is too large", where, f"{MAX_DOCUMENT} bytes", "more")
        return data

    def _stream(self, what: str, accept: str) -> Iterator[bytes]:
        """Yield the bytes of a document; a connection that breaks is taken up where it broke."""
        connection = self.connection
        url = connection.url(what)
        position = failures = 0
        while True:
            try:
                for chunk in self._attempt(url, accept, position):
                    position += len(chunk)
                    failures = 0
                    yield chunk
            except TransientError as error:
                failures += 1
                connection.wait(failures, error, url)
            else:
                return

    def _attempt(self, url: str, accept: str, start: int) -> Iterator[bytes]:
        import requests  # noqa: PLC0415  (kept out of start-up)

        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        answer = self.connection.once("GET", url, headers, expect=(_OK, _PARTIAL))
        skip = 0 if answer.status_code == _PARTIAL else start
        try:
            with answer:
                for chunk in answer.iter_content(_CHUNK):
                    if len(chunk) > skip:
                        yield bytes(chunk[skip:])
                    skip = max(0, skip - len(chunk))
        except (requests.RequestException, ValueError) as error:
            raise TransientError(transport.reason(error)) from error
