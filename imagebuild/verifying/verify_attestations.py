"""What a registry has about an image, checked: attachments are made again and compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from imagebuild.artifacts.layer import Digests
from imagebuild.attesting import attest, provenance
from imagebuild.attesting.sbom import CYCLONEDX, SPDX, cyclonedx, spdx
from imagebuild.attesting.signing import Expected, check
from imagebuild.digest import Sha256, parse_sha256, sha256_bytes
from imagebuild.errors import BuildError, VerifyError
from imagebuild.images import referrers
from imagebuild.patching import checksums, series
from imagebuild.release import NamedFile
from imagebuild.verifying.verify_image import NO_BASE

if TYPE_CHECKING:
    from imagebuild.attesting.sbom import Contents
    from imagebuild.images.registry import Registry
    from imagebuild.project import Project
    from imagebuild.verifying.verify import Report
    from imagebuild.verifying.verify_image import Entry
    from imagebuild.verifying.verify_layer import Facts

_NAMES = {provenance.MEDIA_TYPE: "provenance", SPDX: "SPDX", CYCLONEDX: "CycloneDX"}
_LISTS = {SPDX: "packages", CYCLONEDX: "components"}


def check_attached(
    report: Report, source: Registry, entry: Entry, digest: Sha256, facts: Facts, project: Project
) -> None:
    """Check provenance and SBOMs of one image; others' attachments are listed, not judged.

    Raises:
        RegistryError: if the registry does not list them.
    """
    seen: set[str] = set()
    for descriptor in referrers.listed(source, digest):
        try:
            found, data = referrers.read(source, descriptor, digest)
        except BuildError as error:
            report.bad(f"attached {descriptor.digest[:19]}", error.expected, error.found)
            continue
        if found.kind not in _NAMES:
            report.not_checked(f"attached: {found.kind}", "whoever made it", descriptor.digest)
            continue
        name = _NAMES[found.kind]
        if name in seen:
            report.bad(f"{name} of the image", "one", f"another, {descriptor.digest}")
            continue
        seen.add(name)
        if facts.base is None:
            report.not_checked(f"{name} of the image", "the official image's manifest", NO_BASE)
            continue
        try:
            _check(report, source, entry, digest, facts, project, found.kind, data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            report.bad(f"{name} of the image", "such a document", error)
    for name in sorted(set(_NAMES.values()) - seen):
        report.not_checked(f"{name} of the image", "a registry that has it", "none is attached")


def check_signature(report: Report, ref: str, expected: Expected) -> None:
    """Check who has signed.

    Raises:
        TargetError: if cosign is not there.
    """
    if not expected:
        report.not_checked("signature", "--key FILE, or --identity and --issuer", "nobody named")
        return
    try:
        check(ref, expected)
    except VerifyError as error:
        report.bad("signature", error.expected, error.found)
    else:
        report.ok("signature", " ".join(expected.arguments))


def _check(
    report: Report,
    source: Registry,
    entry: Entry,
    digest: Sha256,
    facts: Facts,
    project: Project,
    kind: str,
    data: bytes,
) -> None:
    name = f"{_NAMES[kind]} of the image"
    if kind == provenance.MEDIA_TYPE:
        said: dict[str, Any] = json.loads(data)
        builder = said["predicate"]["runDetails"]["builder"]
        wanted = _statement(entry, digest, facts, project, str(builder["id"]), builder["version"])
        report.compare(name, f"sha256:{sha256_bytes(wanted)}", f"sha256:{sha256_bytes(data)}")
        report.ok("builder, as the provenance says", builder["id"])
        return
    ours = entry.manifest.layers[-1]
    blob = b"".join(source.blob(ours.sha256, ours.size))
    line = facts.line
    contents = attest.image_contents(
        attest.image_name(line),
        digest,
        line.local_version,
        blob,
        facts.epoch,
        attest.base_url(line.image.repository if line.image else "", f"sha256:{facts.base_digest}"),
        None,
    )
    _check_sbom(report, name, kind, contents, data)


def _check_sbom(report: Report, name: str, kind: str, contents: Contents, data: bytes) -> None:
    """Compare an SBOM with ours; what it has beside that, of the base, is not judged."""
    wanted = (spdx if kind == SPDX else cyclonedx)(contents)
    if wanted == data:
        report.ok(name, "what the layer's contents give")
        return
    mine, other = json.loads(wanted), json.loads(data)
    lacking = [item for item in mine[_LISTS[kind]] if item not in other[_LISTS[kind]]]
    same = mine.get("files") == other.get("files") and not lacking
    if not same or len(other[_LISTS[kind]]) <= len(mine[_LISTS[kind]]):
        report.bad(name, "what the layer's contents give", "something else")
        return
    report.ok(name, "holds what the layer's contents give")
    more = len(other[_LISTS[kind]]) - len(mine[_LISTS[kind]])
    report.not_checked(f"{name}: the base's packages", "the base's layers", f"{more} more entries")


def _statement(
    entry: Entry, digest: Sha256, facts: Facts, project: Project, builder: str, version: object
) -> bytes:
    line = facts.line
    inputs = provenance.Inputs.of(
        project,
        series.load(project, line.tag),
        checksums.load(project.checksums_lock).line(line.tag),
        line,
        facts.platform,
        epoch=facts.epoch,
        revision=entry.labels.get("org.opencontainers.image.revision"),
        base=f"sha256:{facts.base_digest}",
    )
    ours = entry.manifest.layers[-1]
    diff_id = parse_sha256(entry.config.rootfs.diff_ids[-1])
    digests = Digests(ours.sha256, diff_id, ours.size)
    byproducts = attest.byproducts(digests, entry.manifest.config.sha256)
    subject = NamedFile(attest.image_name(line), digest)
    return provenance.statement(inputs, subject, byproducts, builder, version)
