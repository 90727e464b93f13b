"""An image source with a memory: small documents that were read once need no registry again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import RegistryError
from imagebuild.files import write_atomic
from imagebuild.images.oci import MAX_DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagebuild.fetch.cache import Cache
    from imagebuild.images.ocibase import Source


@dataclass(frozen=True)
class RememberingSource:
    """A source whose small documents are kept in the user's cache, by digest.

    Attributes:
        source: where what is not kept comes from.
        cache: the user's cache.
        offline: never to ask the source.
    """

    source: Source
    cache: Cache
    offline: bool

    @property
    def label(self) -> str:
        """The source's own label."""
        return self.source.label

    def manifest(self, digest: Sha256) -> bytes:
        """Return a manifest's bytes, verified.

        Raises:
            BuildError: as the source, if the cache has none.
        """
        kept = self._kept(digest)
        if kept is not None:
            return kept
        self._require_network(digest)
        return self._keep(digest, self.source.manifest(digest))

    def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
        """Yield a blob's bytes, verified; only blobs of at most 4 MiB are kept.

        Raises:
            BuildError: as the source, if the cache has none.
        """
        kept = self._kept(digest)
        if kept is not None and len(kept) == size:
            yield kept
            return
        self._require_network(digest)
        if size > MAX_DOCUMENT:
            yield from self.source.blob(digest, size)
            return
        yield self._keep(digest, b"".join(self.source.blob(digest, size)))

    def _kept(self, digest: Sha256) -> bytes | None:
        try:
            data = (self.cache.root / "images" / digest).read_bytes()
        except OSError:
            return None
        return data if sha256_bytes(data) == digest else None

    def _keep(self, digest: Sha256, data: bytes) -> bytes:
        write_atomic(self.cache.root / "images" / digest, data)
        return data

    def _require_network(self, digest: Sha256) -> None:
        if self.offline:
            raise RegistryError(
                "the base image is not in the cache",
                file=f"{self.label}@sha256:{digest}",
                expected="its manifest and config, from an earlier run",
                found="--offline, and nothing kept",
                next_command="the same command without --offline, or with --base LAYOUT",
            )
