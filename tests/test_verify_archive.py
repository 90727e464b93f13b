"""Image archives: read once, hashed whole, and nothing in them believed."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from imagebuild.digest import sha256_bytes
from imagebuild.errors import ArchiveError, ChecksumError
from imagebuild.images.image import overlay_image
from imagebuild.images.imagearchive import write_archive
from imagebuild.images.labels import image_labels
from imagebuild.images.ocibase import read_base
from imagebuild.images.ocilayout import LayoutSource
from imagebuild.progress import Silent
from imagebuild.verifying.verify import Report
from imagebuild.verifying.verify_archive import ArchiveSubject, ImageArchive, check_docker_archive
from imagebuild.verifying.verify_layout import verify_subject
from tests.support import artifacts
from tests.support.artifacts import AMD64, CREATED_BY, EPOCH
from tests.support.baseimage import BaseImage, tar

if TYPE_CHECKING:
    from pathlib import Path


def archive(tmp_path: Path) -> tuple[Path, BaseImage]:
    base = BaseImage(tmp_path / "base")
    source = LayoutSource(base.root)
    read = read_base(source, base.manifests[AMD64], AMD64)
    labels = image_labels(artifacts.image_facts(f"sha256:{read.digest}"))
    layer = artifacts.layer(tmp_path)
    image = overlay_image(read, layer, labels, created_by=CREATED_BY, epoch=EPOCH)
    path = tmp_path / "image.tar"
    write_archive([image], path, source, name="x", epoch=EPOCH, progress=Silent())
    return path, base


def opened(data: bytes, folder: Path) -> ImageArchive:
    folder.mkdir(exist_ok=True)
    return ImageArchive.read(io.BytesIO(data), "archive", folder, Silent())


def report(found: ImageArchive, base: BaseImage, folder: Path) -> Report:
    facts = artifacts.facts(base, folder / "in")
    return verify_subject(ArchiveSubject(found), facts, progress=Silent())


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        entries = [(entry.name, file.extractfile(entry)) for entry in file]
        return {name: content.read() for name, content in entries if content is not None}


def names(found: Report) -> list[str]:
    return [check.name for check in found.failures]


def test_our_archive_is_right_in_both_of_its_forms(tmp_path: Path) -> None:
    path, base = archive(tmp_path)
    found = opened(path.read_bytes(), tmp_path / "kept")
    assert names(report(found, base, tmp_path)) == []
    older = Report("older")
    check_docker_archive(older, found, artifacts.facts(base, tmp_path / "in"))
    assert names(older) == []


def test_the_same_image_gives_the_same_archive(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = (archive(tmp_path / name)[0].read_bytes() for name in ("a", "b"))
    assert one == other


@pytest.mark.parametrize("number", range(5))
def test_one_flipped_byte_in_any_blob_turns_an_archive_red(number: int, tmp_path: Path) -> None:
    path, base = archive(tmp_path)
    contents = members(path.read_bytes())
    name = sorted(n for n in contents if n.startswith("blobs/"))[number]
    changed = bytearray(contents[name])
    changed[len(changed) // 2] ^= 1
    contents[name] = bytes(changed)
    found = opened(tar(contents), tmp_path / "kept")
    blob = name.rpartition("/")[2]
    assert f"every blob is what its name says: {blob}" in names(report(found, base, tmp_path))


def test_a_missing_layer_of_the_base_is_named(tmp_path: Path) -> None:
    path, base = archive(tmp_path)
    contents = members(path.read_bytes())
    entry = json.loads(contents["manifest.json"])[0]
    del contents[entry["Layers"][0]]
    found = opened(tar(contents), tmp_path / "kept")
    assert any(n.startswith("the base's layers") for n in names(report(found, base, tmp_path)))
    older = Report("older")
    check_docker_archive(older, found, artifacts.facts(base, tmp_path / "in"))
    assert any(n.startswith("the base's layers") for n in names(older))


def test_a_blob_that_is_not_what_its_name_says_is_not_given(tmp_path: Path) -> None:
    digest = sha256_bytes(b"right")
    found = opened(tar({f"blobs/sha256/{digest}": b"wrong"}), tmp_path)
    with pytest.raises(ChecksumError):
        found.manifest(digest)
    with pytest.raises(ArchiveError):
        found.manifest(sha256_bytes(b"another"))


def twice() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for data in (b"one", b"other"):
            entry = tarfile.TarInfo("index.json")
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


BROKEN = {
    "no-tar": b"not a tar at all" * 100,
    "cut": tar({"index.json": b"x" * 5000})[:2000],
    "twice": twice(),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_archive_is_an_archive_error(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError):
        opened(BROKEN[kind], tmp_path)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"[1]", b"[{}]", b'[{"Config": 1}]'])
def test_a_manifest_json_that_is_not_dockers_is_an_archive_error(
    text: bytes, tmp_path: Path
) -> None:
    found = opened(tar({"manifest.json": text}), tmp_path)
    with pytest.raises(ArchiveError):
        check_docker_archive(Report("x"), found, artifacts.facts(None))
