"""Provenance and SBOM beside every wheel and image, and their way to a registry."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING

from imagebuild import builder, files, state
from imagebuild.artifacts.shipping import shipped
from imagebuild.attesting import provenance
from imagebuild.attesting.sbom import CYCLONEDX, SPDX, Contents, cyclonedx, spdx
from imagebuild.digest import Sha256, parse_sha256, sha256_file
from imagebuild.outputs import image_folder, tag_of
from imagebuild.release import AttestationOutput, ImageOutput, NamedFile, WheelOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuild.artifacts.layer import Digests
    from imagebuild.attesting.basepackages import Package
    from imagebuild.builder import Build, Made, Row
    from imagebuild.images.image import Image
    from imagebuild.images.oci import Descriptor
    from imagebuild.images.publish import Publisher
    from imagebuild.images.referrers import Attachment
    from imagebuild.state import State
    from imagebuild.upstream import Line, Platform

_REPLACED = "pkg:pypi/vllm"  # the base's own, which our layer takes away
_PREDICATE = "in-toto.io/predicate-type"
_SPDX_PREDICATE = "https://spdx.dev/Document"
_CYCLONEDX_PREDICATE = "https://cyclonedx.org/bom"
DOCUMENTS = {
    "provenance": (provenance.MEDIA_TYPE, provenance.PREDICATE),
    "spdx": (SPDX, _SPDX_PREDICATE),
    "cyclonedx": (CYCLONEDX, _CYCLONEDX_PREDICATE),
}
"""Media type and predicate type of each document, by the word in its file's name."""


def write(build: Build, known: State, rows: Sequence[Row]) -> list[Row]:
    """Write the documents about each wheel and each image of a build."""
    found = []
    for row in rows:
        output = row.output
        if not isinstance(output, WheelOutput | ImageOutput):
            continue
        key = state.key(
            state.tool_digest(),
            digest_of(output),
            build.key(row.target, output.platform),  # type: ignore[arg-type]  # wheel or image
            build.project.revision(),
            build.request.builder_id,
        )
        name = f"{build.request.line} {output.platform} {row.target} attestations"
        made = builder.make(build, name, key, known, partial(_write, build, output))
        found.append(
            builder.Row("attestations", made[2], made[0], made[1], platform=output.platform)
        )
    return found


def digest_of(output: WheelOutput | ImageOutput) -> Sha256:
    """Return the digest that an artifact goes by."""
    return parse_sha256(output.manifest if isinstance(output, ImageOutput) else output.sha256)


def _write(build: Build, output: WheelOutput | ImageOutput) -> Made:
    if isinstance(output, ImageOutput):
        stem, contents, beside = output.folder, *_image(build, output)
    else:
        stem, contents, beside = output.file, _wheel(build, output), ()
    inputs = inputs_of(build, output.platform, getattr(output, "base", None))
    subject = NamedFile(subject_name(build, output), digest_of(output))
    documents = {
        "provenance": provenance.statement(inputs, subject, beside, build.request.builder_id),
        "spdx": spdx(contents),
        "cyclonedx": cyclonedx(contents),
    }
    paths = []
    for word, data in documents.items():
        path = build.request.dist / f"{stem}.{word}.json"
        files.write_atomic(path, data)
        paths.append(path)
    named = {
        word: NamedFile(path.name, sha256_file(path))
        for word, path in zip(documents, paths, strict=True)
    }
    made = AttestationOutput(f"sha256:{digest_of(output)}", output.platform, **named)
    return made, paths


def subject_name(build: Build, output: WheelOutput | ImageOutput) -> str:
    """Return an artifact's name in statements: the file's, or the image's without a registry."""
    if isinstance(output, WheelOutput):
        return output.file
    return image_name(build.line)


def inputs_of(build: Build, platform: Platform, base: str | None) -> provenance.Inputs:
    """Return what an artifact of a build is made from."""
    return provenance.Inputs.of(
        build.project,
        build.series,
        build.pins,
        build.line,
        platform,
        epoch=build.epoch,
        revision=build.project.revision(),
        base=base,
    )


def _wheel(build: Build, output: WheelOutput) -> Contents:
    return Contents(
        name=output.file,
        digest=digest_of(output),
        version=build.line.local_version,
        files={file.path: file.data for file in shipped(build.patchset)},
        epoch=build.epoch,
        base=f"pkg:pypi/vllm@{build.line.version}",
    )


def _image(build: Build, output: ImageOutput) -> tuple[Contents, tuple[NamedFile, ...]]:
    from imagebuild.images.ocilayout import read_image  # noqa: PLC0415  (kept out of start-up)

    image = read_image(image_folder(build, output.platform), parse_sha256(output.base))
    repository = "" if build.line.image is None else build.line.image.repository
    contents = image_contents(
        image_name(build.line),
        image.digest,
        build.line.local_version,
        b"".join(image.layer.read()),
        build.epoch,
        base_url(repository, output.base),
        _packages(build, image),
    )
    return contents, byproducts(image.layer.digests, image.config_digest)


def byproducts(layer: Digests, config: Sha256) -> tuple[NamedFile, ...]:
    """Return what an image's provenance lists beside the image."""
    return (
        NamedFile("layer", layer.blob),
        NamedFile("layer, unpacked", layer.tar),
        NamedFile("config", config),
    )


def image_name(line: Line) -> str:
    """Return an image's name in statements: no registry's, since it is the same in all of them."""
    return f"vllm-sm120-{tag_of(line)}"


def image_contents(
    name: str,
    digest: Sha256,
    version: str,
    layer: bytes,
    epoch: int,
    base: str,
    packages: tuple[Package, ...] | None,
) -> Contents:
    """Return what an image's SBOM is about; `layer` is our layer's gzip stream."""
    from imagebuild.artifacts.layer import WHITEOUT  # noqa: PLC0415  (kept out of start-up)
    from imagebuild.verifying.verify_layer import layer_files  # noqa: PLC0415  (the same)

    tar = zlib.decompress(layer, zlib.MAX_WBITS | 16)
    found = {
        path: file.data
        for path, file in layer_files(tar).items()
        if not path.rpartition("/")[2].startswith(WHITEOUT)
    }
    return Contents(name, digest, version, found, epoch, base, packages)


def base_url(repository: str, digest: str) -> str:
    """Return an image as a package URL (purl-spec, type `oci`)."""
    version = digest.replace(":", "%3A")
    return f"pkg:oci/{repository.rpartition('/')[2]}@{version}?repository_url={repository}"


def _packages(build: Build, image: Image) -> tuple[Package, ...] | None:
    """Return the base's packages if its layers are on this disk; none are fetched for it."""
    from imagebuild.attesting.basepackages import packages  # noqa: PLC0415  (kept out of start-up)
    from imagebuild.images.ocilayout import LayoutSource  # noqa: PLC0415  (the same)

    if build.request.base is None:
        return None
    source = LayoutSource(build.request.base)
    if not all(source.has(layer.sha256) for layer in image.base_layers):
        return None
    found = packages(source, image.base_layers, build.progress)
    return tuple(package for package in found if package.purl.partition("@")[0] != _REPLACED)


def attachments(build: Build, made: AttestationOutput) -> list[Attachment]:
    """Return an image's documents as attachments."""
    from imagebuild.images.labels import OCI, rfc3339  # noqa: PLC0415  (kept out of start-up)
    from imagebuild.images.referrers import Attachment  # noqa: PLC0415  (the same)

    found = []
    for word, (kind, predicate) in DOCUMENTS.items():
        file: NamedFile = getattr(made, word)
        data = (build.request.dist / file.name).read_bytes()
        notes = {f"{OCI}created": rfc3339(build.epoch), _PREDICATE: predicate}
        found.append(Attachment(kind, data, notes))
    return found


def attach_all(
    build: Build, publisher: Publisher, rows: Sequence[Row], images: Sequence[Image]
) -> dict[str, Sha256]:
    """Attach each image's documents to it; return the attachments' digests by what they are.

    Raises:
        RegistryError: if the registry does not take them.
    """
    from imagebuild.images.oci import MANIFEST  # noqa: PLC0415  (kept out of start-up)
    from imagebuild.images.referrers import attach, subject_of  # noqa: PLC0415  (the same)

    found: dict[str, Sha256] = {}
    made = [row.output for row in rows if isinstance(row.output, AttestationOutput)]
    for image in images:
        subject: Descriptor = subject_of(image.manifest, MANIFEST)
        for output in made:
            if output.subject != subject.digest:
                continue
            for word, attachment in zip(DOCUMENTS, attachments(build, output), strict=True):
                key = f"{output.platform} {word}"
                found[key] = attach(publisher, subject, attachment)
    return found
