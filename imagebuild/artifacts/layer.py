"""The overlay layer: our files over the official image's vLLM, as one deterministic tar.

Tar: POSIX.1-2001 (pax). Entries are plain ustar headers; an extended header stands only before a
name of more than 100 bytes, and holds that name alone. GNU tar's own long names would do too, but
pax is what the OCI image spec's layers are written in. Owner 0:0 without names, directories 0755,
files 0644 or 0755, one time for all, sorted by path components, two zero blocks at the end.

Gzip: stored blocks. A compressor would save 0.7 MB of 1.1 beside an image of some 10 GB, and cost
the promise of equal bytes: isal -2 gives 384,999 bytes with SSE4.2 and 389,035 without, isal -3 a
third stream with AVX2; zlib 1.2.13 and zlib-ng differ at level 6; so do libzstd 1.5.6 and 1.5.7 at
level 3 (and Docker's older manifests know no zstd).

Directories are listed, all of them from the root: Docker's overlay2 driver unpacks a layer without
the ones below it, and gives folders that it must invent the mode 0600.

Whiteouts (OCI image spec, "Changesets"): the old dist-info, and the bytecode of every module
of ours. The official image installs with UV_COMPILE_BYTECODE=1, so all of them exist there.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from imagebuild import files
from imagebuild.artifacts import distinfo, record
from imagebuild.artifacts.gzipstored import StoredGzip
from imagebuild.artifacts.record import Row
from imagebuild.artifacts.shipping import shipped
from imagebuild.artifacts.wheel import check_sources
from imagebuild.artifacts.zipfmt import open_zip
from imagebuild.digest import Sha256
from imagebuild.errors import ChecksumError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from imagebuild.artifacts.distinfo import DistInfo
    from imagebuild.patching.produced import Patchset, ProducedFile
    from imagebuild.progress import Progress
    from imagebuild.upstream import Line, Platform

INSTALLER = b"vllm-sm120\n"
WHITEOUT = ".wh."
_CHUNK = 1 << 20
_OPTIMISATIONS = ("", ".opt-1", ".opt-2")  # PEP 488


@dataclass(frozen=True)
class Digests:
    """What a layer's bytes are.

    Attributes:
        blob: the digest of the gzip stream.
        tar: the digest of the tar inside: the diffID.
        size: the length of the gzip stream.
    """

    blob: Sha256
    tar: Sha256
    size: int


@dataclass(frozen=True)
class Layer:
    """A layer blob that stands whole under its final name.

    Attributes:
        path: where it is.
        digests: what it is.
    """

    path: Path
    digests: Digests

    @property
    def digest(self) -> Sha256:
        """The digest of the blob."""
        return self.digests.blob

    @property
    def diff_id(self) -> Sha256:
        """The digest of the tar inside."""
        return self.digests.tar

    @property
    def size(self) -> int:
        """The blob's size in bytes."""
        return self.digests.size

    def read(self) -> Iterator[bytes]:
        """Yield the blob's bytes.

        Raises:
            ChecksumError: after the last, if the file is not what it was when it was written.
        """
        found = hashlib.sha256()
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
                yield chunk
        if found.hexdigest() != self.digest:
            raise ChecksumError(
                "the layer was changed after it was written",
                file=self.path,
                expected=self.digest,
                found=found.hexdigest(),
                next_command="python build.py --target layer",
            )


@dataclass(frozen=True)
class LayerFile:
    """One regular file of a layer.

    Attributes:
        data: its content.
        executable: its mode is 0755 instead of 0644.
    """

    data: bytes
    executable: bool = False


def layer_name(line: Line, platform: Platform) -> str:
    """Return the layer's file name."""
    return f"vllm-{line.local_version}-{platform.replace('/', '-')}.layer.tar.gz"


def write_layer(
    official: Path,
    patchset: Patchset,
    line: Line,
    platform: Platform,
    dest_dir: Path,
    *,
    vouched: Mapping[str, Sha256],
    epoch: int,
    progress: Progress,
) -> Layer:
    """Write the overlay layer.

    Args:
        official: the official wheel, already checked against its pin; only its metadata is used.
        patchset: what the series produces.
        line: the line.
        platform: the platform of the image.
        dest_dir: where the blob gets its name from `layer_name`.
        vouched: the digests of the sdist's files. RECORD vouches for what wheel and sdist agree on;
            the rest the image compiled for itself, and RECORD lists it without a digest.
        epoch: SOURCE_DATE_EPOCH, the time of all entries.
        progress: is told of the bytes packed.

    Raises:
        TargetError, ChecksumError, ConflictError, ArchiveError: as `write_wheel`.
        StorageError: if the disk is full.
    """
    content = layer_content(official, patchset, line, platform, vouched)
    dest = dest_dir / layer_name(line, platform)
    total = sum(len(file.data) for file in content.values())
    with (
        progress.step("pack", dest.name, total) as done,
        files.atomic(dest) as file,
        files.storing(dest),
    ):
        digests = serialize(content, epoch, file.write)
        done(total)
    return Layer(dest, digests)


def serialize(
    content: Mapping[str, LayerFile], epoch: int, write: Callable[[bytes], object]
) -> Digests:
    """Give a layer's bytes to `write`, piece by piece, and return what they are."""
    blob, tar = hashlib.sha256(), hashlib.sha256()
    size = 0

    def sink(data: bytes) -> None:
        nonlocal size
        write(data)
        blob.update(data)
        size += len(data)

    stream = StoredGzip(sink)
    for data in _entries(content, epoch):
        tar.update(data)
        stream.write(data)
    stream.finish()
    return Digests(Sha256(blob.hexdigest()), Sha256(tar.hexdigest()), size)


def layer_content(
    official: Path,
    patchset: Patchset,
    line: Line,
    platform: Platform,
    vouched: Mapping[str, Sha256],
) -> dict[str, LayerFile]:
    """Return the layer's files, whiteouts included, by path without a leading slash.

    Raises:
        TargetError, ChecksumError, ConflictError, ArchiveError: as `write_wheel`.
    """
    produced = {file.path: file for file in shipped(patchset)}
    with open_zip(official) as archive:
        info = distinfo.read(archive, line, platform)
        check_sources(archive, produced)
        executable = {name for name, member in archive.members.items() if member.executable}
    root = line.site_packages.lstrip("/")
    found = {
        f"{root}/{path}": LayerFile(file.data, path in executable)
        for path, file in produced.items()
    }
    inside = {f"{info.folder}/{name}": data for name, data in info.files.items()}
    inside[f"{info.folder}/INSTALLER"] = INSTALLER
    inside[f"{info.folder}/RECORD"] = _record(info, produced, inside, vouched, line)
    found |= {f"{root}/{name}": LayerFile(data) for name, data in inside.items()}
    found |= {f"{root}/{path}": LayerFile(b"") for path in whiteouts(produced, line)}
    return found


def whiteouts(produced: Iterable[str], line: Line) -> Iterator[str]:
    """Yield the whiteout files' paths below site-packages, for the produced files' paths."""
    yield f"{WHITEOUT}{distinfo.official(line)}"
    tag = "cpython-" + line.python.replace(".", "")
    for path in produced:
        place = PurePosixPath(path)
        if place.suffix == ".py":
            for level in _OPTIMISATIONS:
                yield f"{place.parent}/__pycache__/{WHITEOUT}{place.stem}.{tag}{level}.pyc"


def _record(
    info: DistInfo,
    produced: Mapping[str, ProducedFile],
    inside: Mapping[str, bytes],
    vouched: Mapping[str, Sha256],
    line: Line,
) -> bytes:
    """Return RECORD: the official order, then new files, metadata and scripts, each sorted."""
    rows: list[Row] = []
    for path, row in info.record.items():
        if path in produced:
            rows.append(record.row_of(path, produced[path].data))
        elif not path.startswith(f"{info.replaced}/"):
            rows.append(row if row.sha256 == vouched.get(path) else Row(path))
    rows += [
        record.row_of(p, produced[p].data) for p in sorted(produced.keys() - info.record.keys())
    ]
    rows += [record.row_of(path, inside[path]) for path in sorted(inside)]
    rows.append(Row(f"{info.folder}/RECORD"))
    # <prefix>/lib/pythonX.Y/site-packages and <prefix>/bin: the scheme of every POSIX prefix.
    prefix = posixpath.dirname(posixpath.dirname(posixpath.dirname(line.site_packages)))
    folder = posixpath.relpath(f"{prefix}/bin", line.site_packages)
    rows += [Row(f"{folder}/{script}") for script in info.scripts]
    return record.dump(rows)


def _entries(content: Mapping[str, LayerFile], epoch: int) -> Iterator[bytes]:
    """Yield each entry's bytes in the tar; at last the end's."""
    folders = {str(parent) for path in content for parent in PurePosixPath(path).parents} - {"."}
    for path in sorted({*content, *folders}, key=lambda path: path.split("/")):
        info = tarfile.TarInfo(path)
        info.mtime = epoch
        if path in folders:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            data = b""
        else:
            data = content[path].data
            info.size, info.mode = len(data), 0o755 if content[path].executable else 0o644
        head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        yield head + data + bytes(-len(data) % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
