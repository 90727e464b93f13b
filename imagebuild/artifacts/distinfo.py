"""The metadata of what we build, made from the official wheel's.

Only what must change is changed: the version, the tags, the names of the folders that carry the
version, and RECORD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.artifacts import record
from imagebuild.errors import ArchiveError, ChecksumError

if TYPE_CHECKING:
    from imagebuild.artifacts.record import Row
    from imagebuild.artifacts.zipfmt import Archive
    from imagebuild.upstream import Line, Platform

NAME = "vllm"
_NAME_PARTS = 5


@dataclass(frozen=True)
class DistInfo:
    """The renewed metadata of one line on one platform.

    Attributes:
        folder: the new folder's name, such as `vllm-0.33.0+sm120.1.dist-info`.
        replaced: the official folder's name.
        files: content by file name inside the folder, all but RECORD.
        record: the official RECORD's rows by path.
        scripts: the names of the console scripts.
    """

    folder: str
    replaced: str
    files: dict[str, bytes]
    record: dict[str, Row]
    scripts: tuple[str, ...]


def wheel_name(line: Line, platform: Platform) -> str:
    """Return our wheel's file name: the official one with our version.

    Raises:
        UnpinnedError: if the line pins no wheel for `platform`.
    """
    return "-".join((NAME, line.local_version, *_tag_parts(line, platform))) + ".whl"


def official(line: Line) -> str:
    """Return the name of the official dist-info folder."""
    return f"{NAME}-{line.version}.dist-info"


def read(archive: Archive, line: Line, platform: Platform) -> DistInfo:
    """Return the renewed metadata.

    Raises:
        ChecksumError: if the archive is the wheel of another version.
        ArchiveError: if its metadata or its RECORD is not what a wheel must have.
        UnpinnedError: if the line pins no wheel for `platform`.
    """
    old = official(line)
    found = sorted({n.split("/")[0] for n in archive.members if ".dist-info/" in n})
    if found != [old]:
        raise ChecksumError(
            "not the official wheel of this line",
            file=archive.path,
            expected=old,
            found=", ".join(found) or "no dist-info",
            next_command=f"python build.py {line.tag}",
        )
    if any(name.split("/")[0].endswith(".data") for name in archive.members):
        raise _bad(
            archive, "the wheel has a .data folder", "files that are installed in place", old
        )
    files = {
        name.removeprefix(f"{old}/"): archive.read(member)
        for name, member in archive.members.items()
        if name.startswith(f"{old}/")
    }
    for required in ("METADATA", "WHEEL", "RECORD"):
        if required not in files:
            raise _bad(archive, f"the wheel has no {required}", f"{old}/{required}", "none")
    rows = record.parse(files.pop("RECORD"), f"{archive.path}: {old}/RECORD")
    _check_record(archive, rows, f"{old}/RECORD")
    files["METADATA"] = _metadata(archive, files["METADATA"], line)
    files["WHEEL"] = _wheel(archive, files["WHEEL"], _tag_parts(line, platform))
    folder = f"{NAME}-{line.local_version}.dist-info"
    return DistInfo(folder, old, files, rows, _scripts(files.get("entry_points.txt", b"")))


def _tag_parts(line: Line, platform: Platform) -> list[str]:
    """Return the file name's python, ABI and platform tags."""
    pin = line.wheel(platform)
    parts = pin.name.removesuffix(".whl").split("-")
    if len(parts) != _NAME_PARTS or parts[:2] != [NAME, line.version]:
        raise ChecksumError(
            "the pinned wheel's name is not of this line",
            file="upstream.lock",
            expected=f"{NAME}-{line.version}-PYTHON-ABI-PLATFORM.whl",
            found=pin.name,
            next_command="git diff -- upstream.lock",
        )
    return parts[2:]


def _metadata(archive: Archive, data: bytes, line: Line) -> bytes:
    """Return METADATA with our version in the one header that holds it."""
    headers, blank, text = data.partition(b"\n\n")
    lines = headers.split(b"\n")
    old = f"Version: {line.version}".encode()
    places = [n for n, header in enumerate(lines) if header.lower().startswith(b"version:")]
    if len(places) != 1 or lines[places[0]] != old:
        found = b", ".join(lines[n] for n in places).decode("utf-8", "replace") or "none"
        raise _bad(archive, "METADATA has another version", old.decode(), found)
    lines[places[0]] = f"Version: {line.local_version}".encode()
    return b"\n".join(lines) + blank + text


def _wheel(archive: Archive, data: bytes, tags: list[str]) -> bytes:
    """Return WHEEL with the tags that the file name says; a compressed set is spelt out."""
    python, abi, platform = (part.split(".") for part in tags)
    wanted = [f"Tag: {p}-{a}-{m}\n".encode() for p in python for a in abi for m in platform]
    lines = data.splitlines(keepends=True)
    places = [n for n, header in enumerate(lines) if header.startswith(b"Tag:")]
    if not places or not lines[places[-1]].endswith(b"\n"):
        raise _bad(archive, "WHEEL has no tags", "Tag: …", "none")
    kept = [header for n, header in enumerate(lines) if n not in places]
    return b"".join([*kept[: places[0]], *wanted, *kept[places[0] :]])


def _scripts(entry_points: bytes) -> tuple[str, ...]:
    names: list[str] = []
    section = ""
    for entry in entry_points.decode("utf-8", "replace").splitlines():
        text = entry.strip()
        if text.startswith("["):
            section = text
        elif section in ("[console_scripts]", "[gui_scripts]") and "=" in text:
            names.append(text.partition("=")[0].strip())
    return tuple(sorted(names))


def _check_record(archive: Archive, rows: dict[str, Row], where: str) -> None:
    """Check that RECORD lists the members, no more and no less, with their sizes."""
    sizes = {name: member.size for name, member in archive.members.items()}
    for name in sorted({*rows, *sizes} - {where}):
        row = rows.get(name)
        listed = None if row is None or row.sha256 is None else row.size
        if listed != sizes.get(name) or listed is None:
            raise _bad(archive, f"RECORD and archive differ on {name}", listed, sizes.get(name))


def _bad(archive: Archive, summary: str, expected: object, found: object) -> ArchiveError:
    return ArchiveError(
        summary,
        file=archive.path,
        expected=expected,
        found=found,
        next_command=f"python -m zipfile --list {archive.path}",
    )
