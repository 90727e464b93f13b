"""Labels and annotations of our images: a pure function of facts.

The keys `org.opencontainers.image.*` are the OCI image spec's (annotations.md, 1.1); our own are in
DESIGN's namespace. A label and the annotation of the same key have the same value.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagebuild.digest import Sha256
    from imagebuild.upstream import Line

OCI = "org.opencontainers.image."
OWN = "io.github.vllm-sm120."


@dataclass(frozen=True)
class ImageFacts:
    """What an image's labels say.

    Attributes:
        line: the line.
        patchset: the digest of the patch set.
        patches: the patches' names, in series order.
        lock: the digest of `checksums.lock`, which covers everything that we put in.
        base_ref: the official image's readable reference.
        base_digest: the digest of the official image's manifest for the platform.
        source: the address of this project's repository.
        revision: the commit of this project; None outside a git checkout.
        epoch: SOURCE_DATE_EPOCH.
        cuda_archs: for which architectures this build compiled; None for an overlay, whose kernels
            are the official image's.
    """

    line: Line
    patchset: Sha256
    patches: tuple[str, ...]
    lock: Sha256
    base_ref: str
    base_digest: str
    source: str
    revision: str | None
    epoch: int
    cuda_archs: str | None = None


def rfc3339(epoch: int) -> str:
    """Return seconds since 1970 as RFC 3339 writes them, in UTC."""
    return datetime.fromtimestamp(epoch, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def image_labels(facts: ImageFacts) -> dict[str, str]:
    """Return the labels, sorted by key; a fact that is not known has no label."""
    line = facts.line
    found: dict[str, str | None] = {
        f"{OCI}title": "vLLM for SM120 and SM121",
        f"{OCI}description": (
            f"vLLM {line.version} with a typed, tested patch set for consumer Blackwell "
            "(RTX 5090, RTX PRO 6000, DGX Spark)"
        ),
        f"{OCI}vendor": "vllm-sm120",
        f"{OCI}licenses": "Apache-2.0",
        f"{OCI}version": line.local_version,
        f"{OCI}created": rfc3339(facts.epoch),
        f"{OCI}source": facts.source,
        f"{OCI}url": facts.source,
        f"{OCI}revision": facts.revision,
        f"{OCI}base.name": facts.base_ref,
        f"{OCI}base.digest": facts.base_digest,
        f"{OWN}upstream.version": line.version,
        f"{OWN}upstream.revision": line.best_commit,
        f"{OWN}patchset.sha256": facts.patchset,
        f"{OWN}patchset.names": ",".join(facts.patches),
        f"{OWN}lock.sha256": facts.lock,
        f"{OWN}cuda.archs": facts.cuda_archs,
        f"{OWN}torch.version": line.torch,
        f"{OWN}flashinfer.version": line.flashinfer,
    }
    return {key: value for key, value in sorted(found.items()) if value is not None}
