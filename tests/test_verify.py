"""Verification goes red for what is not what the locks say, and claims nothing it did not see."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild.artifacts.layer import LayerFile, serialize
from imagebuild.artifacts.zipfmt import open_zip
from imagebuild.artifacts.zipwrite import ZipWriter
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import VerifyError
from imagebuild.images import oci
from imagebuild.images.image import overlay_image
from imagebuild.images.labels import image_labels
from imagebuild.images.ocibase import read_base
from imagebuild.images.ocilayout import LAYOUT, LayoutSource, write_layout
from imagebuild.progress import Silent
from imagebuild.verifying.verify import Check, Report, Verdict
from imagebuild.verifying.verify_layout import verify_layout
from imagebuild.verifying.verify_wheel import verify_wheel
from tests.support import artifacts
from tests.support.artifacts import (
    AMD64,
    CREATED_BY,
    EPOCH,
    NEW,
    PATCHED,
    SITE,
    expected,
    new,
    patched,
    patchset,
)
from tests.support.baseimage import BaseImage, load
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INFO = "vllm-1.2.3+sm120.1.dist-info"
ROOT = SITE.lstrip("/")
UNTOUCHED = next(path for path in TREE if path != PATCHED and path.startswith("vllm/"))


def wheel_report(path: Path, official: Path | None = None) -> Report:
    line = artifacts.line()
    return verify_wheel(path, line, AMD64, expected(patchset()), official, progress=Silent())


def names(report: Report) -> list[str]:
    return [check.name for check in report.failures]


def skipped(report: Report) -> list[str]:
    return [check.name for check in report.checks if check.verdict is Verdict.NOT_CHECKED]


def test_our_wheel_is_right(tmp_path: Path) -> None:
    path = artifacts.wheel(tmp_path)
    report = wheel_report(path, tmp_path / "in" / "official")
    report.require()
    assert not skipped(report)
    assert {"version", "RECORD agrees with the files", "files that no patch touches"} <= {
        check.name for check in report.checks
    }


def test_its_file_name_is_not_believed(tmp_path: Path) -> None:
    path = artifacts.wheel(tmp_path).rename(tmp_path / "anything")
    wheel_report(path, tmp_path / "in" / "official").require()


def test_without_the_official_wheel_the_rest_is_called_not_checked(tmp_path: Path) -> None:
    report = wheel_report(artifacts.wheel(tmp_path))
    report.require()
    assert skipped(report) == ["files that no patch touches"]


def test_the_official_wheel_is_not_ours(tmp_path: Path) -> None:
    report = wheel_report(artifacts.official(tmp_path))
    assert names(report) == ["metadata folder"]


@pytest.mark.parametrize("position", [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_one_flipped_byte_anywhere_turns_a_wheel_red(position: float, tmp_path: Path) -> None:
    path = artifacts.wheel(tmp_path)
    data = bytearray(path.read_bytes())
    data[int(len(data) * position)] ^= 1
    path.write_bytes(data)
    assert wheel_report(path, tmp_path / "in" / "official").failures


def rewritten(path: Path, changed: dict[str, bytes | None], *, fix_record: bool = True) -> Path:
    """Write the wheel again with other members; RECORD follows, as a careful forger's would."""
    from imagebuild.artifacts import record  # noqa: PLC0415

    with open_zip(path) as archive:
        content = {name: archive.read(member) for name, member in archive.members.items()}
    content |= {name: data for name, data in changed.items() if data is not None}
    content = {n: data for n, data in content.items() if changed.get(n, data) is not None}
    own = f"{INFO}/RECORD"
    if fix_record:
        rows = [record.row_of(name, data) for name, data in content.items() if name != own]
        content.pop(own)
        content[own] = record.dump([*rows, record.Row(own)])
    with path.open("wb") as file:
        writer = ZipWriter(file, EPOCH)
        for name, data in content.items():
            writer.store(name, data)
        writer.finish()
    return path


FORGED: dict[str, tuple[dict[str, bytes | None], str]] = {
    "patched": ({PATCHED: patched().data + b"evil = 1\n"}, f"files of the patch set: {PATCHED}"),
    "stock_again": ({PATCHED: TREE[PATCHED]}, f"files of the patch set: {PATCHED}"),
    "overlay_gone": ({NEW: None}, f"files of the patch set: {NEW}"),
    "untouched": ({UNTOUCHED: b"evil = 1\n"}, f"files that no patch touches: {UNTOUCHED}"),
    "untouched_gone": ({UNTOUCHED: None}, f"files that no patch touches: {UNTOUCHED}"),
    "one_more": ({"vllm/evil.py": b""}, "no other files: vllm/evil.py"),
    "startup_hook": ({"evil.pth": b"import os"}, "no other files: evil.pth"),
    "metadata": (
        {f"{INFO}/METADATA": b"Name: vllm\nVersion: 1.2.3+sm120.1\nRequires-Dist: evil\n\n"},
        f"metadata: {INFO}/METADATA",
    ),
    "version": ({f"{INFO}/METADATA": b"Name: vllm\nVersion: 1.2.3\n\n"}, "version"),
    "no_metadata": ({f"{INFO}/METADATA": None}, "version"),
    "entry_points": (
        {f"{INFO}/entry_points.txt": b"[console_scripts]\nvllm = evil:main\n"},
        f"metadata: {INFO}/entry_points.txt",
    ),
    "second_metadata": ({"other-1.dist-info/METADATA": b"Name: other\n"}, "metadata folder"),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_careful_forgery_of_a_wheel_is_named(forgery: str, tmp_path: Path) -> None:
    changed, name = FORGED[forgery]
    path = rewritten(artifacts.wheel(tmp_path), changed)
    assert name in names(wheel_report(path, tmp_path / "in" / "official"))


def test_a_record_that_does_not_follow_is_named(tmp_path: Path) -> None:
    path = rewritten(artifacts.wheel(tmp_path), {UNTOUCHED: b"evil\n"}, fix_record=False)
    assert f"RECORD agrees with the files: {UNTOUCHED}" in names(wheel_report(path))
    path = rewritten(artifacts.wheel(tmp_path), {f"{INFO}/RECORD": None}, fix_record=False)
    assert "RECORD" in names(wheel_report(path))


def test_a_lost_executable_bit_is_named(tmp_path: Path) -> None:
    path = rewritten(artifacts.wheel(tmp_path), {})
    found = names(wheel_report(path, tmp_path / "in" / "official"))
    assert found
    assert all(name.startswith("executable bits: ") for name in found)


def test_a_file_that_is_no_wheel_is_red(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no wheel at all, but long enough to hold an end record")
    assert names(wheel_report(tmp_path / "x.whl")) == ["archive"]


def test_a_red_report_is_a_verify_error_with_the_facts() -> None:
    report = Report("x.whl", [Check("fine", Verdict.OK, "1", "1")])
    report.require()
    report.bad("vllm/x.py", "sha256 a", "sha256 b")
    report.bad("version", "1", "2")
    with pytest.raises(VerifyError) as raised:
        report.require()
    assert raised.value.exit_code == 31
    assert (raised.value.file, raised.value.expected, raised.value.found) == (
        "x.whl",
        "sha256 a",
        "sha256 b",
    )
    assert raised.value.detail == "vllm/x.py\nversion"


@pytest.fixture
def base(tmp_path: Path) -> BaseImage:
    return BaseImage(tmp_path / "base")


def layout(base: BaseImage, folder: Path, *, export: bool = False) -> Path:
    source = LayoutSource(base.root)
    read = read_base(source, base.manifests[AMD64], AMD64)
    labels = image_labels(artifacts.image_facts(f"sha256:{read.digest}"))
    layer = artifacts.layer(folder)
    image = overlay_image(read, layer, labels, created_by=CREATED_BY, epoch=EPOCH)
    out = folder / "out"
    write_layout([image], out, name="x", progress=Silent(), export=source if export else None)
    return out


def layout_report(base: BaseImage, path: Path) -> Report:
    return verify_layout(path, artifacts.facts(base, base.root.parent / "in"), progress=Silent())


def test_our_layout_is_right_and_says_what_it_lacks(base: BaseImage, tmp_path: Path) -> None:
    report = layout_report(base, layout(base, tmp_path))
    report.require()
    assert skipped(report) == ["the base's layers"]


def test_our_exported_layout_is_right_all_through(base: BaseImage, tmp_path: Path) -> None:
    report = layout_report(base, layout(base, tmp_path, export=True))
    report.require()
    assert skipped(report) == []


def test_what_is_not_at_hand_is_called_not_checked(base: BaseImage, tmp_path: Path) -> None:
    path = layout(base, tmp_path)
    given = artifacts.facts(base)
    bare = replace(given, base=None, base_digest=None)
    report = verify_layout(path, bare, progress=Silent())
    report.require()
    assert skipped(report) == [
        "metadata and RECORD, whole",
        "the base is the official image",
        "the base's layers",
    ]


def test_a_layout_behind_an_index_of_platforms_is_found(base: BaseImage, tmp_path: Path) -> None:
    images = []
    for platform in (AMD64, artifacts.ARM64):
        read = read_base(LayoutSource(base.root), base.index, platform)
        labels = image_labels(artifacts.image_facts(f"sha256:{read.digest}"))
        layer = artifacts.layer(tmp_path)
        images.append(overlay_image(read, layer, labels, created_by=CREATED_BY, epoch=EPOCH))
    write_layout(images, tmp_path / "out", name="x", progress=Silent())
    layout_report(base, tmp_path / "out").require()


def blobs(path: Path) -> list[Path]:
    return sorted((path / "blobs" / "sha256").iterdir())


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_one_flipped_byte_in_any_blob_turns_a_layout_red(
    number: int, base: BaseImage, tmp_path: Path
) -> None:
    path = layout(base, tmp_path, export=True)
    blob = blobs(path)[number]
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    found = names(layout_report(base, path))
    assert f"every blob is what its name says: {blob.name}" in found


def test_a_missing_blob_of_ours_turns_a_layout_red(base: BaseImage, tmp_path: Path) -> None:
    for number in range(3):
        path = layout(base, tmp_path / str(number))
        blobs(path)[number].unlink()
        assert layout_report(base, path).failures


class Forger:
    """Changes a layout and mends every digest behind it, as a careful forger would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index: dict[str, Any] = load((path / "index.json").read_bytes())
        self.manifest = load(self._get(self.index["manifests"][0]["digest"]))
        self.config = load(self._get(self.manifest["config"]["digest"]))
        with tarfile.open(
            fileobj=io.BytesIO(self._get(self.manifest["layers"][-1]["digest"])), mode="r:gz"
        ) as archive:
            files = [(entry, archive.extractfile(entry)) for entry in archive]
            self.content = {
                entry.name: LayerFile(file.read()) for entry, file in files if file is not None
            }

    def _get(self, digest: str) -> bytes:
        return (self.path / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()

    def _put(self, data: bytes) -> dict[str, Any]:
        digest = sha256_bytes(data)
        (self.path / "blobs" / "sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def put_layer(self, blob: bytes) -> None:
        self.manifest["layers"][-1] |= self._put(blob)
        tar = gzip.decompress(blob)
        self.config["rootfs"]["diff_ids"][-1] = f"sha256:{sha256_bytes(tar)}"

    def write_layer(self) -> None:
        pieces: list[bytes] = []
        serialize(self.content, EPOCH, pieces.append)
        self.put_layer(b"".join(pieces))

    def finish(self) -> Path:
        self.manifest["config"] |= self._put(oci.canonical(self.config))
        self.index["manifests"][0] |= self._put(oci.canonical(self.manifest))
        (self.path / "index.json").write_bytes(oci.canonical(self.index))
        return self.path


def edit_file(path: str, data: bytes | None) -> Callable[[Forger], None]:
    def change(forger: Forger) -> None:
        forger.content.pop(path, None)
        if data is not None:
            forger.content[path] = LayerFile(data)
        forger.write_layer()

    return change


def label(forger: Forger) -> None:
    forger.config["config"]["Labels"]["io.github.vllm-sm120.patchset.sha256"] = "f" * 64


def more_labels(forger: Forger) -> None:
    forger.config["config"]["Labels"]["io.github.vllm-sm120.blessed"] = "yes"


def annotation(forger: Forger) -> None:
    forger.manifest["annotations"]["org.opencontainers.image.base.digest"] = "sha256:" + "f" * 64


def entry_point(forger: Forger) -> None:
    forger.config["config"]["Entrypoint"] = ["evil"]


def other_base(forger: Forger) -> None:
    forger.manifest["layers"][0]["digest"] = "sha256:" + "f" * 64


def other_platform(forger: Forger) -> None:
    forger.config["architecture"] = "arm64"


def diff_ids(forger: Forger) -> None:
    forger.config["rootfs"]["diff_ids"][-1] = "sha256:" + "f" * 64


def too_few_diff_ids(forger: Forger) -> None:
    forger.config["rootfs"]["diff_ids"].pop()


def compressed(forger: Forger) -> None:
    pieces: list[bytes] = []
    serialize(forger.content, EPOCH, pieces.append)
    forger.put_layer(gzip.compress(gzip.decompress(b"".join(pieces)), mtime=0))


def other_times(forger: Forger) -> None:
    pieces: list[bytes] = []
    serialize(forger.content, EPOCH + 2, pieces.append)
    forger.put_layer(b"".join(pieces))


def special(kind: bytes, name: str) -> Callable[[Forger], None]:
    def change(forger: Forger) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, file in forger.content.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(file.data)
                archive.addfile(entry, io.BytesIO(file.data))
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        forger.put_layer(gzip.compress(buffer.getvalue(), mtime=0))

    return change


def bomb(forger: Forger) -> None:
    forger.put_layer(gzip.compress(bytes(65 << 20), compresslevel=1, mtime=0))


def no_gzip(forger: Forger) -> None:
    forger.manifest["layers"][-1] |= forger._put(b"plain")


STEM = f"{ROOT}/.wh.vllm-1.2.3.dist-info"
IMAGE_FORGED: dict[str, tuple[Callable[[Forger], None], str]] = {
    "patched": (edit_file(f"{ROOT}/{PATCHED}", b"evil"), f"files of the patch set: {PATCHED}"),
    "patched_gone": (edit_file(f"{ROOT}/{PATCHED}", None), f"files of the patch set: {PATCHED}"),
    "overlay": (edit_file(f"{ROOT}/{NEW}", new().data + b"x"), f"files of the patch set: {NEW}"),
    "one_more": (edit_file(f"{ROOT}/vllm/evil.py", b""), "no other files: vllm/evil.py"),
    "hook": (edit_file(f"{ROOT}/evil.pth", b""), "no other files: evil.pth"),
    "outside": (
        edit_file("etc/ld.so.preload", b"x"),
        "nothing outside site-packages: etc/ld.so.preload",
    ),
    "whiteout_gone": (edit_file(STEM, None), "whiteouts: .wh.vllm-1.2.3.dist-info"),
    "whiteout_more": (
        edit_file(f"{ROOT}/vllm/.wh.__init__.py", b""),
        "no other files: vllm/.wh.__init__.py",
    ),
    "metadata": (
        edit_file(f"{ROOT}/{INFO}/METADATA", b"Name: vllm\nVersion: 1.2.3\n\n"),
        "version",
    ),
    "record_gone": (edit_file(f"{ROOT}/{INFO}/RECORD", None), "RECORD"),
    "label": (label, "labels are the facts: io.github.vllm-sm120.patchset.sha256"),
    "label_more": (more_labels, "labels are the facts: io.github.vllm-sm120.blessed"),
    "annotation": (annotation, "annotations are the facts: org.opencontainers.image.base.digest"),
    "entry_point": (entry_point, "the image is the official one with this layer"),
    "other_base": (other_base, "the image is the official one with this layer"),
    "other_platform": (other_platform, "platform"),
    "diff_ids": (diff_ids, "diffID of our layer"),
    "too_few_diff_ids": (too_few_diff_ids, "image"),
    "compressed": (compressed, "our layer has its writer's form"),
    "other_times": (other_times, "our layer has its writer's form"),
    "link": (special(tarfile.SYMTYPE, "etc/x"), "our layer is a tar of regular files in gzip"),
    "hard_link": (special(tarfile.LNKTYPE, "etc/x"), "our layer is a tar of regular files in gzip"),
    "device": (special(tarfile.CHRTYPE, "dev/x"), "our layer is a tar of regular files in gzip"),
    "bomb": (bomb, "our layer is a tar of regular files in gzip"),
    "no_gzip": (no_gzip, "our layer is a tar of regular files in gzip"),
}


@pytest.mark.parametrize("forgery", IMAGE_FORGED)
def test_a_careful_forgery_of_an_image_is_named(
    forgery: str, base: BaseImage, tmp_path: Path
) -> None:
    change, name = IMAGE_FORGED[forgery]
    forger = Forger(layout(base, tmp_path))
    change(forger)
    assert name in names(layout_report(base, forger.finish()))


def test_an_unchanged_forgery_is_right(base: BaseImage, tmp_path: Path) -> None:
    """So the forger itself breaks nothing."""
    forger = Forger(layout(base, tmp_path))
    forger.write_layer()
    layout_report(base, forger.finish()).require()


def test_a_forged_entry_point_is_seen_only_with_the_base_at_hand(
    base: BaseImage, tmp_path: Path
) -> None:
    forger = Forger(layout(base, tmp_path))
    entry_point(forger)
    given = replace(artifacts.facts(base), base=None, base_digest=None)
    report = verify_layout(forger.finish(), given, progress=Silent())
    assert not report.failures
    assert "the base is the official image" in skipped(report)


def test_a_layout_that_lacks_layers_and_does_not_say_so_is_red(
    base: BaseImage, tmp_path: Path
) -> None:
    path = layout(base, tmp_path)
    index = load((path / "index.json").read_bytes())
    index["annotations"][LAYOUT] = "complete"
    (path / "index.json").write_bytes(oci.canonical(index))
    assert names(layout_report(base, path)) == ["layers of the base that are missing"]


def test_a_metadata_file_that_only_the_whole_comparison_sees(
    base: BaseImage, tmp_path: Path
) -> None:
    """A RECORD that vouches for a file of the base with another digest."""
    forger = Forger(layout(base, tmp_path))
    own = f"{ROOT}/{INFO}/RECORD"
    text = forger.content[own].data
    row = f"{UNTOUCHED},sha256=".encode()
    assert row in text
    start = text.index(row) + len(row)
    edit_file(own, text[:start] + b"A" * 42 + text[start + 42 :])(forger)
    found = names(layout_report(base, forger.finish()))
    assert f"the whole content is what the build makes: {own}" in found


def test_a_folder_that_is_no_layout_is_red(tmp_path: Path, base: BaseImage) -> None:
    shutil.rmtree(base.root / "blobs")
    (tmp_path / "in").mkdir()
    report = verify_layout(base.root, replace(artifacts.facts(None)), progress=Silent())
    assert report.failures
    (base.root / "index.json").unlink()
    assert names(verify_layout(base.root, artifacts.facts(None), progress=Silent())) == ["image"]


def test_the_official_image_is_not_ours(base: BaseImage) -> None:
    report = verify_layout(base.root, artifacts.facts(base), progress=Silent())
    assert report.failures


def test_a_wheel_of_another_patch_set_is_red(tmp_path: Path) -> None:
    path = artifacts.wheel(tmp_path)
    other = {PATCHED: Sha256("0" * 64)}
    report = verify_wheel(path, artifacts.line(), AMD64, other, None, progress=Silent())
    assert names(report) == [f"files of the patch set: {PATCHED}"]


def test_zipfile_agrees_with_our_reader(tmp_path: Path) -> None:
    """The reader under all of this sees what the standard library sees."""
    path = artifacts.wheel(tmp_path)
    with open_zip(path) as ours, zipfile.ZipFile(path) as theirs:
        assert {n: ours.read(m) for n, m in ours.members.items()} == {
            name: theirs.read(name) for name in theirs.namelist()
        }
