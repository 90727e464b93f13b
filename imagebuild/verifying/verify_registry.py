"""An image in a registry as a subject of verification, and its way onto this disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import BuildError
from imagebuild.images.oci import INDEX, MANIFEST, Descriptor, Index, is_foreign, parse_manifest
from imagebuild.verifying.verify_image import read_entry

if TYPE_CHECKING:
    from imagebuild.images.oci import Manifest
    from imagebuild.images.reference import Reference
    from imagebuild.images.registry import Registry
    from imagebuild.progress import Progress
    from imagebuild.verifying.verify import Report


@dataclass(frozen=True)
class RegistrySubject:
    """An image in a registry, by digest.

    Attributes:
        source: the repository.
        digest: of the index, or of the image's manifest.
        layers: whether the base's layers are read, too.
    """

    source: Registry
    digest: Sha256
    layers: bool = True

    @property
    def label(self) -> str:
        """The reference by digest."""
        return f"{self.source.repository}@sha256:{self.digest}"

    def index(self) -> Index:
        """Return the index; one over the image alone, where the digest is an image's.

        Raises:
            BuildError: if the registry does not give it, or it is malformed.
        """
        data = self.source.manifest(self.digest)
        found = parse_manifest(data, self.label)
        if isinstance(found, Index):
            return found
        entry = Descriptor(media_type=MANIFEST, digest=f"sha256:{self.digest}", size=len(data))
        platform = read_entry(self.source, entry).config.bare()
        own = Descriptor(
            media_type=MANIFEST, digest=entry.digest, size=entry.size, platform=platform
        )
        return Index(schema_version=2, media_type=INDEX, manifests=(own,))

    def check_storage(self, report: Report, progress: Progress) -> None:
        """Check nothing: a registry has no more than what one asks it for."""
        del report, progress

    def check_layers(self, report: Report, manifest: Manifest, progress: Progress) -> None:
        """Read every layer of the base and compare size and digest."""
        own = [layer for layer in manifest.layers[:-1] if not is_foreign(layer)]
        if not self.layers:
            total = sum(layer.size for layer in own)
            why = f"{len(own)} layers, {total} bytes, are not read here"
            report.not_checked("the base's layers", "reading them, as `pull` does", why)
            return
        bad: dict[str, tuple[object, object]] = {}
        for layer in own:
            try:
                with progress.step("verify", layer.digest[:19], layer.size) as done:
                    for chunk in self.source.blob(layer.sha256, layer.size):
                        done(len(chunk))
            except BuildError as error:
                bad[layer.digest] = (layer.digest, f"{error.summary}: {error.found}")
        report.files("the base's layers are what they are called", bad, len(own))


def resolve(source: Registry, reference: Reference) -> Sha256:
    """Return the digest of a reference: its own, else what its tag means now.

    Raises:
        RegistryError: if the registry does not say.
    """
    if reference.digest is not None:
        return reference.digest
    return sha256_bytes(source.tagged(reference.tag or "latest"))
