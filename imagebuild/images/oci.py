"""The documents of OCI images, read strictly and written canonically.

The formats: OCI image spec 1.1 and Docker's image manifest version 2, schema 2. Docker's documents
are read, and what we write is always OCI: the two name the same blobs by other media types, only
OCI manifests carry annotations, and every client since Docker 20.10 takes them.

Canonical JSON here: keys sorted by code point, no white space, UTF-8 unescaped, no trailing line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from imagebuild.digest import parse_sha256
from imagebuild.errors import ArchiveError
from imagebuild.schema import ImageDigest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagebuild.digest import Sha256
    from imagebuild.upstream import Platform

T = TypeVar("T")

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = f"{LAYER}+gzip"
_FOREIGN = "application/vnd.oci.image.layer.nondistributable.v1.tar"
_DOCKER = "application/vnd.docker."
DOCKER_INDEX = f"{_DOCKER}distribution.manifest.list.v2+json"
DOCKER_MANIFEST = f"{_DOCKER}distribution.manifest.v2+json"
INDEX_TYPES = (INDEX, DOCKER_INDEX)
MANIFEST_TYPES = (MANIFEST, DOCKER_MANIFEST)
MAX_DOCUMENT = 4 << 20  # the distribution spec's advice for manifests

CONFIG_TYPES = (CONFIG, f"{_DOCKER}container.image.v1+json")
_LAYER_TYPES = {
    **{kind: kind for kind in (LAYER, LAYER_GZIP, f"{LAYER}+zstd")},
    **{kind: kind for kind in (_FOREIGN, f"{_FOREIGN}+gzip", f"{_FOREIGN}+zstd")},
    f"{_DOCKER}image.rootfs.diff.tar": LAYER,
    f"{_DOCKER}image.rootfs.diff.tar.gzip": LAYER_GZIP,
    f"{_DOCKER}image.rootfs.diff.tar.zstd": f"{LAYER}+zstd",
    f"{_DOCKER}image.rootfs.foreign.diff.tar.gzip": f"{_FOREIGN}+gzip",
}


class Document(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the spec's documents; fields that this tool does not need are ignored."""


class TargetPlatform(Document, frozen=True, kw_only=True):
    """The platform of a manifest in an index, or of a config."""

    os: str
    architecture: str
    variant: str | None = None

    def __str__(self) -> str:
        """Return it as `linux/arm64/v8`."""
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    def matches(self, platform: Platform) -> bool:
        """Return whether it is `platform`; arm64 is v8 whether it says so or not."""
        variants = (None, "", "v8") if self.architecture == "arm64" else (None, "")
        return f"{self.os}/{self.architecture}" == platform and self.variant in variants


class Descriptor(Document, frozen=True, kw_only=True):
    """A blob by media type, digest and size."""

    media_type: str
    digest: ImageDigest
    size: int
    platform: TargetPlatform | None = None
    annotations: dict[str, str] | None = None
    urls: tuple[str, ...] | None = None
    artifact_type: str | None = None

    @property
    def sha256(self) -> Sha256:
        """The digest without its prefix."""
        return parse_sha256(self.digest)


class Manifest(Document, frozen=True, kw_only=True):
    """An image manifest."""

    schema_version: int
    media_type: str | None = None
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: dict[str, str] | None = None


class Index(Document, frozen=True, kw_only=True):
    """An image index, or Docker's manifest list."""

    schema_version: int
    media_type: str | None = None
    manifests: tuple[Descriptor, ...]
    annotations: dict[str, str] | None = None


class RootFs(msgspec.Struct, frozen=True):
    """The layers of a config, as digests of their tars."""

    type: str
    diff_ids: tuple[ImageDigest, ...]


class History(msgspec.Struct, frozen=True):
    """One step of a config's history."""

    empty_layer: bool = False


class Settings(msgspec.Struct, frozen=True):
    """The part of a config's run settings that is checked here."""

    labels: dict[str, str] | None = msgspec.field(default=None, name="Labels")


class Config(TargetPlatform, frozen=True, rename=None, kw_only=True):
    """The parts of an image config that are checked here."""

    rootfs: RootFs
    history: tuple[History, ...] | None = None
    config: Settings | None = None

    def bare(self) -> TargetPlatform:
        """Return its platform alone."""
        return TargetPlatform(os=self.os, architecture=self.architecture, variant=self.variant)


def canonical(document: object) -> bytes:
    """Return a document as canonical JSON."""
    plain = msgspec.to_builtins(document)
    text = json.dumps(
        plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object in which no key stands twice.

    Raises:
        ArchiveError: if `data` is anything else; `where` names it.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands twice")
        return found

    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise damaged("a document of an image is not JSON", where, "JSON", error) from error
    if not isinstance(document, dict):
        raise damaged("a document of an image is no object", where, "{…}", type(document).__name__)
    return document


def parse_manifest(data: bytes, where: str) -> Manifest | Index:
    """Return a manifest or an index, by its media type or, where it states none, by its form.

    Raises:
        ArchiveError: if it is neither, or has an unknown media type.
    """
    document = parse_json(data, where)
    kind = document.get("mediaType", INDEX if "manifests" in document else MANIFEST)
    if kind in INDEX_TYPES:
        return _convert(document, Index, where)
    if kind not in MANIFEST_TYPES:
        known = ", ".join(MANIFEST_TYPES + INDEX_TYPES)
        raise damaged("a manifest has an unknown media type", where, known, kind)
    manifest = _convert(document, Manifest, where)
    for layer in manifest.layers:
        if layer.media_type not in _LAYER_TYPES:
            raise damaged(
                "a layer has an unknown media type",
                where,
                ", ".join(sorted(_LAYER_TYPES)),
                layer.media_type,
            )
    return manifest


def parse_as(data: bytes, kind: type[T], where: str) -> T:
    """Return a document of a known kind.

    Raises:
        ArchiveError: if it is none.
    """
    return _convert(parse_json(data, where), kind, where)


def parse_config(data: bytes, manifest: Manifest, where: str) -> tuple[dict[str, Any], Config]:
    """Return an image config, whole and its checked part.

    Raises:
        ArchiveError: if it does not fit its manifest's layers, or is no config.
    """
    document = parse_json(data, where)
    config = _convert(document, Config, where)
    layers, diffs = len(manifest.layers), len(config.rootfs.diff_ids)
    if config.rootfs.type != "layers" or layers != diffs:
        raise damaged("the config does not fit the manifest", where, f"{layers} layers", diffs)
    if config.history:
        steps = sum(not step.empty_layer for step in config.history)
        if steps != layers:
            raise damaged("the history does not fit the manifest", where, layers, steps)
    return document, config


def oci_layers(manifest: Manifest) -> tuple[Descriptor, ...]:
    """Return the layers under OCI's media types."""
    return tuple(
        msgspec.structs.replace(layer, media_type=_LAYER_TYPES[layer.media_type], platform=None)
        for layer in manifest.layers
    )


def is_foreign(layer: Descriptor) -> bool:
    """Return whether a layer is to be fetched from its own addresses, never pushed."""
    return bool(layer.urls) and _LAYER_TYPES[layer.media_type].startswith(_FOREIGN)


def index_over(entries: Sequence[Descriptor], annotations: Mapping[str, str]) -> bytes:
    """Return the index over the images of several platforms, canonical."""
    return canonical(
        Index(
            schema_version=2,
            media_type=INDEX,
            manifests=tuple(entries),
            annotations=dict(annotations) or None,
        )
    )


def damaged(summary: str, where: str, expected: object, found: object) -> ArchiveError:
    """Return the error for an image that contradicts itself."""
    return ArchiveError(
        summary,
        file=where,
        expected=expected,
        found=str(found)[:500],
        next_command="python build.py lock",
    )


def _convert(document: dict[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise damaged("a document of an image is malformed", where, kind.__name__, error) from error
