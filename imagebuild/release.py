"""`release.json`: every output of a build and every input, by digest.

Canonical: keys sorted by code point, two spaces of indentation, UTF-8, one newline at the end. It
holds nothing that differs between two machines: no clock, no host, no absolute path. What has an
order (patches, outputs) is a list.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from imagebuild import schema
from imagebuild.errors import LockError
from imagebuild.schema import FileName, Hash, ImageDigest, Text
from imagebuild.upstream import PLATFORMS, ArchList, LineName, Platform

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from imagebuild.artifacts.artifact import Artifact
    from imagebuild.artifacts.layer import Layer
    from imagebuild.images.image import Image
    from imagebuild.images.ocilayout import Kind, Layout

SCHEMA = 1
NAME = "release.json"
WHAT = "release.json"
TreePath = Annotated[str, msgspec.Meta(pattern=r"^[^/\x00-\x1f\\][^\x00-\x1f\\]*$")]
Content = Annotated[str, msgspec.Meta(pattern=r"^(overlay-only|complete)$")]
Size = Annotated[int, msgspec.Meta(ge=0)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Base of the document's parts."""


class NamedFile(Part, frozen=True):
    """A file by name and digest.

    Attributes:
        name: a file name, or a path in the tree.
        sha256: the digest of its content.
    """

    name: TreePath
    sha256: Hash


class WheelOutput(Part, frozen=True, tag_field="kind", tag="wheel"):
    """A patched wheel."""

    file: FileName
    sha256: Hash
    size: Size
    platform: Platform


class LayerOutput(Part, frozen=True, tag_field="kind", tag="layer"):
    """The overlay layer; `diff_id` is the digest of the tar inside."""

    file: FileName
    sha256: Hash
    size: Size
    platform: Platform
    diff_id: Hash


class ImageOutput(Part, frozen=True, tag_field="kind", tag="image"):
    """An overlay image in an OCI layout.

    Attributes:
        folder: the layout.
        content: whether the base's layers are in it.
        manifest: the image's digest.
        config: the config's digest, which Docker shows as the image's id.
        base: the digest of the official image's manifest.
    """

    folder: FileName
    content: Content
    platform: Platform
    manifest: ImageDigest
    config: ImageDigest
    base: ImageDigest


class IndexOutput(Part, frozen=True, tag_field="kind", tag="index"):
    """The overlay images of several platforms behind one index, in one OCI layout.

    Attributes:
        folder: the layout.
        content: whether the bases' layers are in it.
        index: the index's digest.
        manifests: the digest of each platform's image.
    """

    folder: FileName
    content: Content
    index: ImageDigest
    manifests: dict[Platform, ImageDigest]


class ArchiveOutput(Part, frozen=True, tag_field="kind", tag="archive"):
    """Overlay images, whole, in one file that `docker load` reads."""

    file: FileName
    sha256: Hash
    size: Size
    manifests: dict[Platform, ImageDigest]


class AttestationOutput(Part, frozen=True, tag_field="kind", tag="attestations"):
    """What is said of a wheel or an image: provenance and SBOM.

    Attributes:
        subject: the digest of the wheel, or of the image's manifest.
        platform: its platform.
        provenance: an in-toto statement with SLSA provenance.
        spdx, cyclonedx: the SBOM in two forms.
    """

    subject: ImageDigest
    platform: Platform
    provenance: NamedFile
    spdx: NamedFile
    cyclonedx: NamedFile


class TreeOutput(Part, frozen=True, tag_field="kind", tag="tree"):
    """The patched source tree; `files` are those that differ from upstream's."""

    folder: FileName
    files: tuple[NamedFile, ...]


Output = (
    WheelOutput
    | LayerOutput
    | ImageOutput
    | IndexOutput
    | ArchiveOutput
    | AttestationOutput
    | TreeOutput
)


class Upstream(Part, frozen=True, kw_only=True):
    """What was patched: the line's pins that took part.

    Attributes:
        version, tag, commit: upstream's; the commit may be abbreviated.
        sdist: where the patched files come from.
        wheels: the official wheel of each platform.
        image: the official image's readable reference.
        bases: the digest of the official image's manifest, for each platform that was built.
        torch, flashinfer, cuda, python, cuda_archs: what the release is built with.
    """

    version: Text
    tag: Text
    commit: Text
    sdist: NamedFile
    wheels: dict[Platform, NamedFile]
    torch: Text
    flashinfer: Text
    cuda: Text
    python: Text
    cuda_archs: dict[Platform, ArchList]
    image: Text | None = None
    bases: dict[Platform, ImageDigest] = msgspec.field(default_factory=dict)


class Tool(Part, frozen=True):
    """What wrote the outputs."""

    name: Text
    version: Text


class Release(Part, frozen=True, kw_only=True):
    """The whole document.

    Attributes:
        schema: the format's number.
        line: the line's name.
        version: the version of what was built, with its local part.
        source_date_epoch: the time that every output carries, in seconds since 1970.
        tool: what wrote the outputs.
        upstream: what was patched.
        locks: the digests of `upstream.lock` and `checksums.lock`.
        patchset: one digest over the series.
        patches: the patch files, in series order.
        overlay: the overlay files, by their path in the tree, sorted.
        produced: every file that differs from upstream's, as it is in the end, sorted.
        outputs: what was made.
    """

    schema: int = SCHEMA
    line: LineName
    version: Text
    source_date_epoch: Size
    tool: Tool
    upstream: Upstream
    locks: dict[str, Hash]
    patchset: Hash
    patches: tuple[NamedFile, ...]
    overlay: tuple[NamedFile, ...]
    produced: tuple[NamedFile, ...]
    outputs: tuple[Output, ...]


def wheel_output(artifact: Artifact, platform: Platform) -> WheelOutput:
    """Return a wheel's entry."""
    return WheelOutput(artifact.path.name, artifact.sha256, artifact.size, platform)


def layer_output(layer: Layer, platform: Platform) -> LayerOutput:
    """Return a layer's entry."""
    return LayerOutput(layer.path.name, layer.digest, layer.size, platform, layer.diff_id)


def image_output(image: Image, folder: str, content: Kind, platform: Platform) -> ImageOutput:
    """Return an image's entry."""
    return ImageOutput(
        folder=folder,
        content=content,
        platform=platform,
        manifest=f"sha256:{image.digest}",
        config=f"sha256:{image.config_digest}",
        base=f"sha256:{image.base}",
    )


def index_output(layout: Layout, images: Sequence[Image]) -> IndexOutput:
    """Return the entry of an index over several platforms' images."""
    manifests = {platform_name(image): f"sha256:{image.digest}" for image in images}
    return IndexOutput(layout.path.name, layout.kind, f"sha256:{layout.digest}", manifests)


def archive_output(artifact: Artifact, images: Sequence[Image]) -> ArchiveOutput:
    """Return the entry of an archive."""
    manifests = {platform_name(image): f"sha256:{image.digest}" for image in images}
    return ArchiveOutput(artifact.path.name, artifact.sha256, artifact.size, manifests)


def platform_name(image: Image) -> Platform:
    """Return an image's platform as locks name it."""
    return next(name for name in PLATFORMS if image.platform.matches(name))


def dump(release: Release) -> bytes:
    """Return the document's bytes; the same value gives the same bytes."""
    plain = msgspec.to_builtins(release)
    text = json.dumps(plain, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def parse(data: bytes, path: Path) -> Release:
    """Return the document that `data` holds; `path` is for messages.

    Raises:
        LockError: on anything but a well-formed document of this schema.
    """
    try:
        document: Any = json.loads(data.decode("utf-8"))
        if not isinstance(document, dict):
            raise TypeError(f"a {type(document).__name__}")  # noqa: TRY301
    except (ValueError, TypeError, RecursionError) as error:
        raise LockError(
            f"{WHAT} is not a JSON object",
            file=path,
            expected="a JSON object in UTF-8",
            found=error,
            next_command="python build.py",
        ) from error
    schema.check_schema(document, SCHEMA, path, WHAT)
    return schema.convert(document, Release, path, WHAT)


def load(path: Path) -> Release:
    """Return the document in the file `path`.

    Raises:
        LockError: on anything but a well-formed document of this schema.
    """
    return parse(schema.read_bytes(path, WHAT), path)
