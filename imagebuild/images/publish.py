"""Pushing an image: blobs first, manifests by digest, the tag when all of it is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from imagebuild.digest import sha256_bytes
from imagebuild.errors import RegistryError
from imagebuild.fetch.transport import Patience
from imagebuild.images.oci import INDEX, MANIFEST, is_foreign
from imagebuild.images.registry import ACCEPT, Registry
from imagebuild.images.registry_http import Connection
from imagebuild.images.registry_push import Traffic, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from imagebuild.digest import Sha256
    from imagebuild.images.image import Image
    from imagebuild.images.oci import Descriptor
    from imagebuild.images.ocibase import Source
    from imagebuild.images.reference import Reference
    from imagebuild.progress import Progress


@dataclass(frozen=True)
class Pushed:
    """What was pushed.

    Attributes:
        reference: where it is: the tag, and the digest of what stands there.
        platforms: the digest of each platform's image.
        traffic: what it has cost.
        replaced: what the tag meant before, if that was something else.
        attached: the digests of provenance and SBOMs, by platform and kind.
        signed: whether a signature was made for each of them.
    """

    reference: Reference
    platforms: dict[str, Sha256]
    traffic: Traffic
    replaced: Sha256 | None = None
    attached: dict[str, Sha256] = field(default_factory=dict)
    signed: bool = False


@dataclass
class Publisher:
    """Pushes to one repository.

    Attributes:
        target: the repository and the tag.
        base: where the base's layers come from.
        base_repository: the official image's repository, with its registry.
        progress: is told of the bytes that are there.
        patience: how often and how long to try again.
    """

    target: Reference
    base: Source
    base_repository: str
    progress: Progress
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        """Open the way to the registry; nothing is asked yet."""
        host, _, name = self.base_repository.partition("/")
        same = host == self.target.repository.partition("/")[0]
        self._mount = self.base_repository if same else None
        self.connection = Connection(
            self.target.repository,
            actions="pull,push",
            borrows=(name,) if same and self.base_repository != self.target.repository else (),
            patience=self.patience,
        )
        self.writer = Writer(self.connection)

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes its connections."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.connection.close()

    def push(self, images: Sequence[Image], index: bytes | None) -> Pushed:
        """Push images, and the index over them, under the target's tag.

        Args:
            images: one for each platform.
            index: the index over them; None if there is one image only.

        Raises:
            RegistryError: if the registry does not take it all, or the tag means something else in
                the end.
            BuildError: if a blob cannot be had, or is not the one asked for.
        """
        for image in images:
            self._blobs(image)
        for image in images:
            self.document(image.manifest, MANIFEST)
        top = images[0].manifest if index is None else index
        kind = MANIFEST if index is None else INDEX
        if index is not None:
            self.document(index, INDEX)
        replaced = self._tag(top, kind)
        digest = sha256_bytes(top)
        target = type(self.target)(self.target.repository, self.target.tag, digest)
        platforms = {str(image.platform): image.digest for image in images}
        return Pushed(target, platforms, self.writer.traffic, replaced)

    def document(self, data: bytes, media_type: str) -> bool:
        """Push a manifest by its digest and read it back; as `Writer.manifest`."""
        known = self.writer.manifest(data, media_type)
        self.reader().manifest(sha256_bytes(data))
        return known

    def reader(self) -> Registry:
        """Return the same repository for reading, over the same connection."""
        return Registry(self.target.repository, _connection=self.connection)

    def _blobs(self, image: Image) -> None:
        self._blob(image.config_digest, len(image.config), lambda: iter((image.config,)), "config")
        ours = image.layer
        self._blob(ours.digest, ours.size, ours.read, ours.path.name)
        for layer in image.base_layers:
            if not is_foreign(layer):
                self._blob(layer.sha256, layer.size, self._opener(layer), layer.digest[:19], True)

    def _opener(self, layer: Descriptor) -> Callable[[], Iterator[bytes]]:
        return lambda: self.base.blob(layer.sha256, layer.size)

    def _blob(
        self,
        digest: Sha256,
        size: int,
        read: Callable[[], Iterator[bytes]],
        what: str,
        borrowed: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        with self.progress.step("push", what, size) as done:
            self.writer.blob(digest, size, read, done, self._mount if borrowed else None)

    def _tag(self, data: bytes, media_type: str) -> Sha256 | None:
        if self.target.tag is None:
            return None
        before = self._meaning()
        self.writer.manifest(data, media_type, self.target.tag)
        wanted, found = sha256_bytes(data), self._meaning()
        if found != wanted:
            raise RegistryError(
                "the tag means something else right after the push",
                file=str(self.target),
                expected=f"sha256:{wanted}",
                found=f"sha256:{found}" if found else "no such tag",
                next_command="the same command again; who else pushes there?",
            )
        return before if before != wanted else None

    def _meaning(self) -> Sha256 | None:
        """Return the digest that the tag leads to now; None if there is none."""
        url = self.connection.url(f"manifests/{self.target.tag}")
        with self.connection.ask("HEAD", url, {"Accept": ACCEPT}, expect=(200, 404)) as answer:
            if answer.status_code != 200:  # noqa: PLR2004  (HTTP)
                return None
        return sha256_bytes(self.reader().tagged(self.target.tag or ""))
