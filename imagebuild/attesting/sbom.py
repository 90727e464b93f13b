"""What is in an artifact: SPDX 2.3 and CycloneDX 1.6, from contents, never from a guess.

Our own part is listed file by file; the base's Python packages from the metadata in its layers,
where those are at hand. Both documents are the same bytes for the same contents: their ids come of
the artifact's digest, their times of SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imagebuild.digest import sha256_bytes
from imagebuild.images.oci import canonical
from imagebuild.project import SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagebuild.attesting.basepackages import Package
    from imagebuild.digest import Sha256

SPDX = "application/spdx+json"
CYCLONEDX = "application/vnd.cyclonedx+json"
LICENSE = "Apache-2.0"
_NAMESPACE = uuid.UUID("5b6f2a5e-6f5e-5d3c-9b63-5d3a6f0e7a11")


@dataclass(frozen=True)
class Contents:
    """What is described.

    Attributes:
        name: the artifact's name.
        digest: its digest.
        version: vLLM's version in it.
        files: the content of the files that we add or replace, by path.
        epoch: SOURCE_DATE_EPOCH.
        base: the official image or wheel below it, as a package URL.
        packages: the base's Python packages; None where its layers are not at hand.
    """

    name: str
    digest: Sha256
    version: str
    files: Mapping[str, bytes]
    epoch: int
    base: str
    packages: tuple[Package, ...] | None = None

    @property
    def time(self) -> dt.datetime:
        """The time that both documents carry."""
        return dt.datetime.fromtimestamp(self.epoch, tz=dt.UTC)


def cyclonedx(contents: Contents) -> bytes:
    """Return the CycloneDX 1.6 document, checked against its schema's types by the library."""
    from cyclonedx.model import HashAlgorithm, HashType, Property  # noqa: PLC0415  (slow to load)
    from cyclonedx.model.bom import Bom  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.model.license import DisjunctiveLicense  # noqa: PLC0415
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    def sha256(digest: str) -> HashType:
        return HashType(alg=HashAlgorithm.SHA_256, content=digest)

    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, f"cyclonedx {contents.digest}"))
    bom.metadata.timestamp = contents.time
    bom.metadata.component = Component(
        name=contents.name,
        version=contents.version,
        type=ComponentType.CONTAINER,
        bom_ref=f"sha256:{contents.digest}",
        hashes=[sha256(contents.digest)],
        licenses=[DisjunctiveLicense(id=LICENSE)],
    )
    scope = "not at hand" if contents.packages is None else "from the layers"
    bom.metadata.properties.add(Property(name="vllm-sm120:base-packages", value=scope))
    purl = PackageURL.from_string(contents.base)
    bom.components.add(
        Component(name=purl.name, type=ComponentType.CONTAINER, bom_ref=contents.base, purl=purl)
    )
    vllm = PackageURL("pypi", name="vllm", version=contents.version)
    ours = [
        Component(
            name=path,
            type=ComponentType.FILE,
            bom_ref=f"file:{path}",
            hashes=[sha256(sha256_bytes(data))],
        )
        for path, data in sorted(contents.files.items())
    ]
    bom.components.add(
        Component(
            name="vllm",
            version=contents.version,
            type=ComponentType.LIBRARY,
            bom_ref=str(vllm),
            purl=vllm,
            licenses=[DisjunctiveLicense(id=LICENSE)],
            components=ours,
        )
    )
    for package in contents.packages or ():
        own = PackageURL.from_string(package.purl)
        bom.components.add(
            Component(
                name=package.name,
                version=package.version,
                type=ComponentType.LIBRARY,
                bom_ref=str(own),
                purl=own,
            )
        )
    bom.register_dependency(bom.metadata.component, bom.components)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return canonical(document)


def spdx(contents: Contents) -> bytes:
    """Return the SPDX 2.3 document, validated by the library.

    Raises:
        ValueError: if it is not valid; a fault of this code.
    """
    from spdx_tools.spdx import model  # noqa: PLC0415  (slow to load)
    from spdx_tools.spdx.jsonschema.document_converter import DocumentConverter  # noqa: PLC0415
    from spdx_tools.spdx.validation.document_validator import (  # noqa: PLC0415
        validate_full_spdx_document,
    )

    image, vllm = "SPDXRef-image", "SPDXRef-vllm"
    creation = model.CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id="SPDXRef-DOCUMENT",
        name=contents.name,
        document_namespace=f"{SOURCE}/spdx/{contents.digest}",
        creators=[model.Actor(model.ActorType.TOOL, "vllm-sm120")],
        created=contents.time.replace(tzinfo=None),
    )
    packages = [
        _package(image, contents.name, contents.version, None, contents.digest),
        _package("SPDXRef-base", contents.base, None, contents.base),
        _package(vllm, "vllm", contents.version, f"pkg:pypi/vllm@{contents.version}"),
    ]
    packages[-1].files_analyzed = True
    packages[-1].verification_code = model.PackageVerificationCode(
        _sha1("".join(sorted(map(_sha1, contents.files.values()))).encode())
    )
    links = [
        ("SPDXRef-DOCUMENT", model.RelationshipType.DESCRIBES, image),
        (image, model.RelationshipType.DESCENDANT_OF, "SPDXRef-base"),
        (image, model.RelationshipType.CONTAINS, vllm),
    ]
    for number, found in enumerate(contents.packages or ()):
        own = f"SPDXRef-package-{number}"
        packages.append(_package(own, found.name, found.version, found.purl))
        links.append((image, model.RelationshipType.CONTAINS, own))
    files = []
    for number, (path, data) in enumerate(sorted(contents.files.items())):
        own = f"SPDXRef-file-{number}"
        sums = [
            model.Checksum(model.ChecksumAlgorithm.SHA1, _sha1(data)),
            model.Checksum(model.ChecksumAlgorithm.SHA256, sha256_bytes(data)),
        ]
        files.append(model.File(name=f"./{path}", spdx_id=own, checksums=sums))
        links.append((vllm, model.RelationshipType.CONTAINS, own))
    document = model.Document(
        creation,
        packages=packages,
        files=files,
        relationships=[model.Relationship(*link) for link in links],
    )
    wrong = [m.validation_message for m in validate_full_spdx_document(document, "SPDX-2.3")]
    if wrong:
        raise ValueError("; ".join(wrong))
    return canonical(DocumentConverter().convert(document))


def _sha1(data: bytes) -> str:
    """Return what the form of SPDX 2.3 asks for; what counts is the SHA-256 beside it."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _package(
    spdx_id: str, name: str, version: str | None, purl: str | None, digest: str | None = None
) -> Any:  # noqa: ANN401  (the library's type, loaded late)
    from spdx_tools.spdx import model  # noqa: PLC0415  (slow to load)

    category = model.ExternalPackageRefCategory.PACKAGE_MANAGER
    return model.Package(
        spdx_id=spdx_id,
        name=name,
        version=version,
        download_location=model.SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[model.Checksum(model.ChecksumAlgorithm.SHA256, digest)] if digest else [],
        external_references=[model.ExternalPackageRef(category, "purl", purl)] if purl else [],
    )
