"""A wheel checked against the locks, file by file; its name and its labels are not believed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from imagebuild.artifacts import distinfo, record
from imagebuild.artifacts.shipping import Fate, fate
from imagebuild.artifacts.zipfmt import open_zip
from imagebuild.digest import Sha256
from imagebuild.errors import ArchiveError
from imagebuild.verifying.verify import Report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from imagebuild.artifacts.distinfo import DistInfo
    from imagebuild.artifacts.record import Row
    from imagebuild.artifacts.zipfmt import Archive
    from imagebuild.progress import Progress
    from imagebuild.upstream import Line, Platform

Bad = dict[str, tuple[object, object]]
ABSENT = "no such file"


def verify_wheel(
    path: Path,
    line: Line,
    platform: Platform,
    expected: Mapping[str, Sha256],
    official: Path | None,
    *,
    progress: Progress,
) -> Report:
    """Return what a wheel is, compared with what it must be.

    Args:
        path: the wheel.
        line: the line whose wheel it should be.
        platform: the platform whose wheel it should be.
        expected: the digest of every file that the series produces, by its path in the tree.
        official: the official wheel, already checked against its pin; None if it is not at hand.
        progress: is told of the bytes read.
    """
    report = Report(str(path))
    try:
        with open_zip(path) as archive:
            _verify(report, archive, line, expected, progress)
            if official is None:
                why = "the official wheel is not at hand"
                report.not_checked("files that no patch touches", "the official wheel", why)
            elif not report.failures:
                with open_zip(official) as stock:
                    info = distinfo.read(stock, line, platform)
                    _against(report, archive, stock, info, expected)
    except ArchiveError as error:
        report.bad("archive", error.expected, f"{error.summary}: {error.found}")
    return report


def shipped_paths(expected: Mapping[str, Sha256]) -> dict[str, Sha256]:
    """Return the part of `expected` that wheel and image carry."""
    return {path: digest for path, digest in expected.items() if fate(path) is Fate.SHIPPED}


def check_rows(
    report: Report, rows: Mapping[str, Row], found: Mapping[str, Row], own: str, *, partial: bool
) -> None:
    """Check RECORD's rows against files.

    Args:
        report: takes the checks.
        rows: RECORD's.
        found: what the files are.
        own: RECORD's own path, whose row must be empty.
        partial: whether RECORD may list files that are not there.
    """
    bad: Bad = {}
    for path in {*found, *(() if partial else rows)} - {own}:
        if rows.get(path) != found.get(path):
            bad[path] = (rows.get(path, "no row"), found.get(path, ABSENT))
    if rows.get(own) != record.Row(own):
        bad[own] = ("an empty row", rows.get(own, "no row"))
    report.files("RECORD agrees with the files", bad, len(found))


def _verify(
    report: Report,
    archive: Archive,
    line: Line,
    expected: Mapping[str, Sha256],
    progress: Progress,
) -> None:
    folder = f"{distinfo.NAME}-{line.local_version}.dist-info"
    folders = sorted({name.split("/")[0] for name in archive.members if ".dist-info/" in name})
    if not report.compare("metadata folder", folder, ", ".join(folders)):
        return
    found = _hashes(archive, progress)
    metadata = archive.members.get(f"{folder}/METADATA")
    if metadata is None:
        report.bad("version", line.local_version, "no METADATA")
    else:
        found_versions = versions(archive.read(metadata))
        report.compare("version", line.local_version, ", ".join(found_versions))
    own = f"{folder}/RECORD"
    if own in archive.members:
        rows = record.parse(archive.read(archive.members[own]), own)
        check_rows(report, rows, found, own, partial=False)
    else:
        report.bad("RECORD", own, ABSENT)
    produced = shipped_paths(expected)
    digests = {path: row.sha256 for path, row in found.items()}
    report.files("files of the patch set", differences(produced, digests), len(produced))


def differences(expected: Mapping[str, object], found: Mapping[str, object]) -> Bad:
    """Return the files of `expected` that `found` has otherwise or not at all."""
    return {
        path: (value, found.get(path, ABSENT))
        for path, value in expected.items()
        if found.get(path) != value
    }


def versions(metadata: bytes) -> list[str]:
    """Return the values of METADATA's version headers."""
    headers = metadata.partition(b"\n\n")[0].decode("utf-8", "replace").splitlines()
    pairs = [header.partition(":") for header in headers]
    return [value.strip() for key, _, value in pairs if key.lower() == "version"]


def _hashes(archive: Archive, progress: Progress) -> dict[str, Row]:
    """Return what each member is, by reading all of them."""
    rows: dict[str, Row] = {}
    total = sum(member.size for member in archive.members.values())
    with progress.step("verify", archive.path.name, total) as done:
        for name, member in archive.members.items():
            digest = hashlib.sha256()
            for piece in archive.content(member):
                digest.update(piece)
            done(member.size)
            rows[name] = record.Row(name, Sha256(digest.hexdigest()), member.size)
    return rows


def _against(
    report: Report,
    archive: Archive,
    stock: Archive,
    info: DistInfo,
    expected: Mapping[str, Sha256],
) -> None:
    """Compare what no patch touches with the official wheel.

    By now RECORD is known to be right about this archive, and the official RECORD is part of a file
    whose digest is pinned: equal rows are equal contents.
    """
    own = f"{info.folder}/RECORD"
    rows = record.parse(archive.read(archive.members[own]), own)
    produced = shipped_paths(expected)
    metadata = {f"{info.folder}/{name}": data for name, data in info.files.items()}
    wanted = {path: record.row_of(path, data) for path, data in metadata.items()}
    untouched = {
        path: row
        for path, row in info.record.items()
        if path not in produced and not path.startswith(f"{info.replaced}/")
    }
    report.files("metadata", differences(wanted, rows), len(wanted))
    report.files("files that no patch touches", differences(untouched, rows), len(untouched))
    extra = rows.keys() - untouched.keys() - wanted.keys() - produced.keys() - {own}
    report.files("no other files", {path: (ABSENT, rows[path]) for path in extra}, 0)
    modes: Bad = {
        path: (member.executable, archive.members[path].executable)
        for path, member in stock.members.items()
        if path in archive.members and member.executable != archive.members[path].executable
    }
    report.files("executable bits", modes, len(rows))
