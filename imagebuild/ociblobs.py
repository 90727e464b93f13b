"""A registry's manifests and configs, kept in the user's cache by digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.digest import sha256_bytes
from imagebuild.files import storing
from imagebuild.oci import MAX_DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagebuild.cache import Cache
    from imagebuild.digest import Sha256
    from imagebuild.ocibase import Source
    from imagebuild.progress import Progress


@dataclass(frozen=True)
class CachedSource:
    """A source that asks for each small document only once.

    Manifests and blobs of up to `MAX_DOCUMENT` bytes are kept; layers pass through.

    Attributes:
        source: where to ask.
        cache: where to keep.
        progress: is told of what the cache has to say.
    """

    source: Source
    cache: Cache
    progress: Progress

    @property
    def label(self) -> str:
        """The source's."""
        return self.source.label

    def manifest(self, digest: Sha256) -> bytes:
        """Return a manifest's bytes.

        Raises:
            BuildError: as the source; StorageError if the cache cannot be written.
        """
        return self._kept(digest, lambda: self.source.manifest(digest))

    def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
        """Yield a blob's bytes.

        Raises:
            BuildError: as the source; StorageError if the cache cannot be written.
        """
        if size > MAX_DOCUMENT:
            yield from self.source.blob(digest, size)
        else:
            yield self._kept(digest, lambda: b"".join(self.source.blob(digest, size)))

    def _kept(self, digest: Sha256, ask: Callable[[], bytes]) -> bytes:
        what = f"{self.label}@sha256:{digest[:12]}"
        if (known := self.cache.known(digest)) is not None:
            return known.read_bytes()
        with self.cache.locked(digest, self.progress, what) as slot:
            kept = slot.verified(self.progress, what)
            if kept is not None:
                return kept.read_bytes()
            data = ask()
            with storing(slot.part):
                slot.part.write_bytes(data)
            slot.publish(sha256_bytes(data))
            return data
