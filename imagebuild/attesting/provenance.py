"""Where an artifact comes from: an in-toto Statement v1 with SLSA provenance v1.

The forms: in-toto attestation framework, spec/v1/statement.md; slsa.dev/spec/v1.1/provenance. It is
a pure function of the locks and the artifact's digest, so that a verifier makes it again and
compares. It holds no clock, no host, no path and no variable of the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from imagebuild.digest import sha256_file
from imagebuild.images.oci import canonical
from imagebuild.project import BUILDER, SOURCE
from imagebuild.release import NamedFile
from imagebuild.upstream import REPOSITORY

if TYPE_CHECKING:
    from imagebuild.patching.checksums import LineChecksums
    from imagebuild.patching.series import Series
    from imagebuild.project import Project
    from imagebuild.upstream import Line, Platform

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = f"{SOURCE}/blob/main/docs/images.md#build-type"
MEDIA_TYPE = "application/vnd.in-toto+json"


@dataclass(frozen=True)
class Inputs:
    """Everything that an artifact is made from.

    Attributes:
        line: the line.
        platform: for which platform.
        epoch: SOURCE_DATE_EPOCH.
        pins: the line's digests.
        patches: the patch files, in series order.
        locks: the project's locks.
        revision: the commit of this project; None outside a clean git checkout.
        base: the digest of the official image's manifest; None for what is not built on it.
    """

    line: Line
    platform: Platform
    epoch: int
    pins: LineChecksums
    patches: tuple[NamedFile, ...]
    locks: tuple[NamedFile, ...]
    revision: str | None
    base: str | None = None

    @classmethod
    def of(
        cls,
        project: Project,
        series: Series,
        pins: LineChecksums,
        line: Line,
        platform: Platform,
        *,
        epoch: int,
        revision: str | None,
        base: str | None,
    ) -> Inputs:
        """Return the inputs as the project's files say them."""
        locks = (project.upstream_lock, project.checksums_lock)
        return cls(
            line=line,
            platform=platform,
            epoch=epoch,
            pins=pins,
            patches=tuple(NamedFile(f"{p.name}.patch", p.text.sha256) for p in series.patches),
            locks=tuple(NamedFile(path.name, sha256_file(path)) for path in locks),
            revision=revision,
            base=base,
        )


def statement(
    inputs: Inputs,
    subject: NamedFile,
    byproducts: tuple[NamedFile, ...],
    builder: str = BUILDER,
    version: object = None,
) -> bytes:
    """Return the statement about one artifact, as canonical JSON.

    Args:
        inputs: what it is made from.
        subject: the artifact.
        byproducts: what else came of the build.
        builder: who built it, as a URI: the builder that a verifier has to trust.
        version: what the builder says of its own version; by default this tool's.
    """
    return canonical(
        {
            "_type": STATEMENT,
            "subject": [_resource(subject)],
            "predicateType": PREDICATE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "line": inputs.line.tag,
                        "platform": inputs.platform,
                        "SOURCE_DATE_EPOCH": inputs.epoch,
                    },
                    "internalParameters": {
                        "cuda": inputs.line.cuda,
                        "patchset": f"sha256:{inputs.pins.patchset}",
                        "python": inputs.line.python,
                    },
                    "resolvedDependencies": _dependencies(inputs),
                },
                "runDetails": {
                    "builder": {
                        "id": builder,
                        "version": version or {"vllm-sm120": metadata.version("vllm-sm120")},
                    },
                    "byproducts": [_resource(file) for file in byproducts],
                },
            },
        }
    )


def _resource(file: NamedFile, **more: str) -> dict[str, Any]:
    return {"name": file.name, "digest": {"sha256": file.sha256}, **more}


def _dependencies(inputs: Inputs) -> list[dict[str, Any]]:
    line, found = inputs.line, []
    if inputs.revision is not None:
        own = {"gitCommit": inputs.revision}
        found.append({"name": "vllm-sm120", "uri": f"git+{SOURCE}", "digest": own})
    upstream: dict[str, Any] = {"name": "vllm", "uri": f"git+{REPOSITORY}@{line.tag}"}
    if line.commit is None:
        upstream["annotations"] = {"commit-prefix": line.commit_prefix}
    else:
        upstream["digest"] = {"gitCommit": line.commit}
    found.append(upstream)
    files = [line.sdist, *(pin for p, pin in line.wheels.items() if p == inputs.platform)]
    for pin in files:
        uri = f"pkg:pypi/vllm@{line.version}?file_name={pin.name}"
        found.append(_resource(NamedFile(pin.name, pin.sha256), uri=uri))
    if inputs.base is not None and line.image is not None:
        base = NamedFile(line.image.ref, inputs.base.removeprefix("sha256:"))
        found.append(_resource(base, uri=f"docker://{line.image.repository}@{inputs.base}"))
    # The official image and wheel bring these; their versions are the release's own requirements.
    for name, version in (("flashinfer-python", line.flashinfer), ("torch", line.torch)):
        found.append({"name": name, "uri": f"pkg:pypi/{name}@{version}"})
    folder = f"patches/{line.tag}"
    found += [_resource(NamedFile(f"{folder}/{p.name}", p.sha256)) for p in inputs.patches]
    overlay = sorted(inputs.pins.overlay.items())
    found += [_resource(NamedFile(f"overlay/{line.tag}/{p}", digest)) for p, digest in overlay]
    found += [_resource(lock) for lock in inputs.locks]
    return found
