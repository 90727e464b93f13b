"""The overlay layer checked against the locks, file by file."""

from __future__ import annotations

import io
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.artifacts import distinfo, record
from imagebuild.artifacts.layer import LayerFile, layer_content, serialize, whiteouts
from imagebuild.artifacts.zipfmt import open_zip
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.patching.produced import Patchset, ProducedFile
from imagebuild.verifying.verify_wheel import (
    ABSENT,
    check_rows,
    differences,
    shipped_paths,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from imagebuild.images.ocibase import Source
    from imagebuild.upstream import Line, Platform
    from imagebuild.verifying.verify import Report

MAX_LAYER = 64 << 20
_FORM = "our layer is a tar of regular files in gzip"


@dataclass(frozen=True)
class Facts:
    """What an image is compared with.

    Attributes:
        line, platform: whose image it should be.
        expected: the digest of every file that the series produces, by its path in the tree.
        labels: what `labels.image_labels` computes; a key that it lacks is not checked.
        epoch: SOURCE_DATE_EPOCH.
        created_by: the text of our step in the image's history.
        official: the official wheel, checked against its pin; None if it is not at hand.
        vouched: the digests of the sdist's files; None if it is not at hand.
        base: where the official image's manifest is; None if it is not at hand.
        base_digest: the digest of the official image; None if it is not pinned.
    """

    line: Line
    platform: Platform
    expected: Mapping[str, Sha256]
    labels: Mapping[str, str]
    epoch: int
    created_by: str
    official: Path | None = None
    vouched: Mapping[str, Sha256] | None = None
    base: Source | None = None
    base_digest: Sha256 | None = None


def check_layer(report: Report, blob: bytes, diff_id: str, facts: Facts) -> None:
    """Check our layer's form and its content.

    Args:
        report: takes the checks.
        blob: the layer, as it is in the image.
        diff_id: what the image's config says of the tar inside, with its prefix.
        facts: what it is compared with.

    Raises:
        BuildError: if the official wheel cannot be read.
    """
    try:
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        tar = inflater.decompress(blob, MAX_LAYER)
        if not inflater.eof or inflater.unused_data:
            raise ValueError("not one gzip stream of a sane size")  # noqa: TRY301
    except (ValueError, zlib.error) as error:
        report.bad(_FORM, "such a tar", error)
        return
    check_tar(report, tar, diff_id, facts, blob)


def check_tar(
    report: Report, tar: bytes, diff_id: str, facts: Facts, blob: bytes | None = None
) -> None:
    """Check our layer's tar; `blob` is its gzip stream, where the image still has it.

    Raises:
        BuildError: if the official wheel cannot be read.
    """
    try:
        content = layer_files(tar)
    except (ValueError, tarfile.TarError) as error:
        report.bad(_FORM, "such a tar", error)
        return
    report.compare("diffID of our layer", diff_id, f"sha256:{sha256_bytes(tar)}")
    # Writing the same files again proves order, owners, modes, times and the absence of the rest.
    again = serialize(content, facts.epoch, lambda _: None)
    wanted, found = (again.tar, tar) if blob is None else (again.blob, blob)
    report.compare("our layer has its writer's form", wanted, sha256_bytes(found))
    _check_content(report, content, facts)


def layer_files(tar: bytes) -> dict[str, LayerFile]:
    """Return a layer's files, whiteouts included.

    Raises:
        ValueError, tarfile.TarError: if there is anything but folders and regular files.
    """
    content: dict[str, LayerFile] = {}
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        for entry in archive:
            if entry.isdir():
                continue
            file = archive.extractfile(entry) if entry.isreg() else None
            if file is None or entry.name in content:
                raise ValueError(f"{entry.name} is no regular file, or there twice")
            content[entry.name] = LayerFile(file.read(), bool(entry.mode & 0o111))
    return content


def _check_content(report: Report, content: Mapping[str, LayerFile], facts: Facts) -> None:
    root = facts.line.site_packages.lstrip("/") + "/"
    outside = [path for path in content if not path.startswith(root)]
    report.files("nothing outside site-packages", dict.fromkeys(outside, (ABSENT, "a file")), 0)
    inside = {path.removeprefix(root): file for path, file in content.items()}
    produced = shipped_paths(facts.expected)
    digests = {path: sha256_bytes(file.data) for path, file in inside.items()}
    report.files("files of the patch set", differences(produced, digests), len(produced))
    hidden = set(whiteouts(produced, facts.line))
    empty = dict.fromkeys(hidden, sha256_bytes(b""))
    report.files("whiteouts", differences(empty, digests), len(hidden))
    folder = f"{distinfo.NAME}-{facts.line.local_version}.dist-info/"
    rest = [p for p in inside if p not in produced and p not in hidden and not p.startswith(folder)]
    report.files("no other files", dict.fromkeys(rest, (ABSENT, "a file")), 0)
    _check_metadata(report, inside, folder, produced)
    metadata = inside.get(f"{folder}METADATA", LayerFile(b"")).data
    report.compare("version", [facts.line.local_version], versions(metadata))
    _check_all(report, content, inside, facts)


def _check_metadata(
    report: Report, inside: Mapping[str, LayerFile], folder: str, produced: Mapping[str, Sha256]
) -> None:
    own = f"{folder}RECORD"
    if own not in inside:
        report.bad("RECORD", own, ABSENT)
        return
    rows = record.parse(inside[own].data, own)
    ours = {path for path in inside if path.startswith(folder)} | produced.keys()
    found = {path: record.row_of(path, inside[path].data) for path in ours if path in inside}
    check_rows(report, rows, found, own, partial=True)


def _check_all(
    report: Report,
    content: Mapping[str, LayerFile],
    inside: Mapping[str, LayerFile],
    facts: Facts,
) -> None:
    """Make the layer again from the official wheel and the layer's own patched files.

    Their digests are known to be right by now, so what comes out is what the build would write.
    """
    if facts.official is None or facts.vouched is None:
        why = "official wheel or sdist are not at hand"
        report.not_checked("metadata and RECORD, whole", "official wheel and sdist", why)
        return
    if report.failures:
        return
    produced = shipped_paths(facts.expected)
    with open_zip(facts.official) as archive:
        members = {p: archive.members[p] for p in produced if p in archive.members}
        stock = {path: sha256_bytes(archive.read(member)) for path, member in members.items()}
    files = tuple(
        ProducedFile(path, inside[path].data, stock.get(path), "generated") for path in produced
    )
    patchset = Patchset(facts.line.tag, Sha256("0" * 64), {}, files)
    wanted = layer_content(facts.official, patchset, facts.line, facts.platform, facts.vouched)
    bad: dict[str, tuple[object, object]] = {
        path: (_shown(wanted.get(path)), _shown(content.get(path)))
        for path in {*wanted, *content}
        if wanted.get(path) != content.get(path)
    }
    report.files("the whole content is what the build makes", bad, len(wanted))


def _shown(file: LayerFile | None) -> str:
    return ABSENT if file is None else f"sha256 {sha256_bytes(file.data)}"
