"""The patched wheel: the official one with our files, byte for byte the same wherever it is made.

Members that no patch touches are copied as they are, compressed. What we change is stored, not
deflated: deflate's output differs between zlib, zlib-ng and ISA-L, and stored files cost some
hundred kilobytes in 336 MB. The order is the official one, with new files behind the package's,
sorted, and RECORD last; RECORD's rows have the same order. All members have one time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild import files
from imagebuild.artifacts import distinfo, record
from imagebuild.artifacts.artifact import Artifact
from imagebuild.artifacts.shipping import shipped
from imagebuild.artifacts.zipfmt import open_zip
from imagebuild.artifacts.zipwrite import ZipWriter
from imagebuild.digest import sha256_bytes
from imagebuild.errors import ChecksumError, ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagebuild.artifacts.distinfo import DistInfo
    from imagebuild.artifacts.record import Row
    from imagebuild.artifacts.zipfmt import Archive
    from imagebuild.patching.produced import Patchset, ProducedFile
    from imagebuild.progress import Progress
    from imagebuild.upstream import Line, Platform


def write_wheel(
    official: Path,
    patchset: Patchset,
    line: Line,
    platform: Platform,
    dest_dir: Path,
    *,
    epoch: int,
    progress: Progress,
) -> Artifact:
    """Write the patched wheel.

    Args:
        official: the official wheel, already checked against its pin; its file name is not used.
        patchset: what the series produces.
        line: the line.
        platform: the platform of the wheel.
        dest_dir: where the wheel gets its name from `distinfo.wheel_name`.
        epoch: SOURCE_DATE_EPOCH, the time of all members.
        progress: is told of the bytes written.

    Raises:
        TargetError: if the series touches what only a build brings to bear.
        ChecksumError: if wheel and sdist disagree on a file that a patch changes.
        ConflictError: if the wheel has a file where a new one belongs.
        ArchiveError: if the official wheel is damaged.
        StorageError: if the disk is full.
    """
    produced = {file.path: file for file in shipped(patchset)}
    dest = dest_dir / distinfo.wheel_name(line, platform)
    with open_zip(official) as archive:
        info = distinfo.read(archive, line, platform)
        check_sources(archive, produced)
        total = official.stat().st_size
        with (
            progress.step("pack", dest.name, total) as done,
            files.atomic(dest) as file,
            files.storing(dest),
        ):
            writer = ZipWriter(file, epoch)
            _write(writer, archive, info, produced, done)
            digest = writer.finish()
    return Artifact(dest, digest, writer.size)


def check_sources(archive: Archive, produced: dict[str, ProducedFile]) -> None:
    """Check that the official wheel has the very files that the patches were made for.

    Raises:
        ChecksumError: if the wheel lacks a file or has it with other content.
        ConflictError: if the wheel has a file where a new one belongs.
    """
    for path, file in produced.items():
        member = archive.members.get(path)
        if file.before is None:
            if member is not None:
                raise ConflictError(
                    "a new file exists in the official wheel",
                    file=path,
                    expected=f"no {path} in {archive.path.name}",
                    found=f"{member.size} bytes",
                    next_command="rename the overlay file, or make it a patch",
                )
            continue
        found = None if member is None else sha256_bytes(archive.read(member))
        if found != file.before:
            raise ChecksumError(
                "the official wheel and the sdist disagree on a file that is patched",
                file=f"{archive.path}: {path}",
                expected=f"sha256 {file.before}",
                found="no such file" if found is None else f"sha256 {found}",
                next_command="python build.py lock",
            )


def _write(
    writer: ZipWriter,
    archive: Archive,
    info: DistInfo,
    produced: dict[str, ProducedFile],
    done: Callable[[int], None],
) -> None:
    rows: list[Row] = []

    def store(name: str, data: bytes, *, executable: bool = False) -> None:
        rows.append(record.row_of(name, data))
        writer.store(name, data, executable=executable)

    for name, member in archive.members.items():
        if name.startswith(f"{info.replaced}/"):
            continue
        before = writer.size
        if name in produced:
            store(name, produced[name].data, executable=member.executable)
        else:
            writer.copy(member, archive.raw(member))
            rows.append(info.record[name])
        done(writer.size - before)
    for path in sorted(produced.keys() - archive.members.keys()):
        store(path, produced[path].data)
    for name, data in info.files.items():
        store(f"{info.folder}/{name}", data)
    own = f"{info.folder}/RECORD"
    writer.store(own, record.dump([*rows, record.Row(own)]))
