"""The overlay layer: what it holds, how it is written, and that nothing stock can load under it."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import zlib
from typing import TYPE_CHECKING

import pytest

from imagebuild.artifacts import record
from imagebuild.artifacts.gzipstored import StoredGzip
from imagebuild.artifacts.layer import LayerFile, serialize
from imagebuild.digest import sha256_bytes, sha256_file
from tests.support import artifacts
from tests.support.artifacts import EPOCH, NEW, PATCHED, SITE, new, patched, patchset
from tests.support.baseimage import apply_layer, installed, tar
from tests.support.tinytree import TREE, WHEEL_ONLY

if TYPE_CHECKING:
    from pathlib import Path

ROOT = SITE.lstrip("/")
INFO = f"{ROOT}/vllm-1.2.3+sm120.1.dist-info"


def entries(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path, "r:gz") as archive:
        return {entry.name: entry for entry in archive}


def content(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:gz") as archive:
        files = [(entry.name, archive.extractfile(entry)) for entry in archive]
        return {name: file.read() for name, file in files if file is not None}


def test_digests_are_those_of_the_blob_and_of_the_tar_inside(tmp_path: Path) -> None:
    made = artifacts.layer(tmp_path)
    blob = made.path.read_bytes()
    assert made.digest == sha256_file(made.path)
    assert made.diff_id == sha256_bytes(gzip.decompress(blob))
    assert made.size == len(blob)


def test_produced_files_stand_in_site_packages_and_tests_do_not(tmp_path: Path) -> None:
    found = content(artifacts.layer(tmp_path).path)
    assert found[f"{ROOT}/{PATCHED}"] == patched().data
    assert found[f"{ROOT}/{NEW}"] == new().data
    assert not [path for path in found if "tests" in path]


def test_every_folder_from_the_root_is_listed_with_a_plain_mode(tmp_path: Path) -> None:
    """Docker's overlay2 driver gives folders that a layer does not list the mode 0600."""
    found = entries(artifacts.layer(tmp_path).path)
    listed = set()
    for path, entry in found.items():
        folder = path.rpartition("/")[0]
        assert not folder or folder in listed, f"{folder} comes after {path}"
        if entry.isdir():
            listed.add(path)
            assert entry.mode == 0o755
    assert {"usr", "usr/local", "usr/local/lib", ROOT, f"{ROOT}/vllm/__pycache__"} <= listed


def test_nothing_in_it_depends_on_when_where_or_who(tmp_path: Path) -> None:
    for entry in entries(artifacts.layer(tmp_path).path).values():
        assert (entry.uid, entry.gid, entry.uname, entry.gname) == (0, 0, "", "")
        assert entry.mtime == EPOCH
        assert entry.isdir() or entry.isreg()
        assert entry.mode in (0o644, 0o755)


def test_the_old_metadata_and_every_own_modules_bytecode_are_whited_out(tmp_path: Path) -> None:
    found = content(artifacts.layer(tmp_path).path)
    hidden = {path for path in found if "/.wh." in path}
    tag = f"cpython-{artifacts.HERE.replace('.', '')}"
    folder, _, name = f"{ROOT}/{PATCHED}".rpartition("/")
    stem = f"{folder}/__pycache__/.wh.{name.removesuffix('.py')}.{tag}"
    new_stem = f"{ROOT}/vllm/__pycache__/.wh._overlay.{tag}"
    levels = ("", ".opt-1", ".opt-2")
    assert hidden == {f"{ROOT}/.wh.vllm-1.2.3.dist-info"} | {
        f"{place}{level}.pyc" for place in (stem, new_stem) for level in levels
    }
    assert {found[path] for path in hidden} == {b""}


def test_the_metadata_has_our_version_and_who_installed_it(tmp_path: Path) -> None:
    found = content(artifacts.layer(tmp_path).path)
    assert b"\nVersion: 1.2.3+sm120.1\n" in found[f"{INFO}/METADATA"]
    assert found[f"{INFO}/INSTALLER"] == b"vllm-sm120\n"
    assert found[f"{INFO}/entry_points.txt"].startswith(b"[console_scripts]\n")
    assert f"{INFO}/licenses/LICENSE" in found


def test_record_vouches_only_for_what_is_known(tmp_path: Path) -> None:
    found = content(artifacts.layer(tmp_path).path)
    rows = record.parse(found[f"{INFO}/RECORD"], "RECORD")
    shared = next(path for path in TREE if path != PATCHED and path.startswith("vllm/"))
    assert rows[shared].sha256 == sha256_bytes(TREE[shared])
    assert rows[PATCHED].sha256 == patched().after
    assert rows[NEW].sha256 == new().after
    assert WHEEL_ONLY
    for path in WHEEL_ONLY:
        assert rows[path] == record.Row(path)
    name = INFO.rpartition("/")[2]
    assert rows[f"{name}/INSTALLER"].size == len(b"vllm-sm120\n")
    assert rows[f"{name}/RECORD"] == record.Row(f"{name}/RECORD")
    assert rows["../../../bin/vllm"] == record.Row("../../../bin/vllm")
    assert not [path for path in rows if path.startswith("vllm-1.2.3.dist-info")]


@pytest.fixture
def based(tmp_path: Path) -> Path:
    """A root file system with stock vLLM in it."""
    folder = tmp_path / "rootfs"
    folder.mkdir()
    apply_layer(gzip.compress(tar(installed())), folder)
    return folder


def said(folder: Path, optimise: str) -> str:
    """Return what an interpreter says of the vLLM installed below `folder`."""
    module = PATCHED.removesuffix(".py").replace("/", ".")
    code = (
        f"import importlib.metadata as m, importlib, sys; k = importlib.import_module('{module}')\n"
        "print(getattr(k, 'PATCHED', 'stock'), [d.version for d in m.distributions(path=sys.path)"
        " if d.name == 'vllm'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", *optimise.split(), "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(folder / ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("optimise", ["", "-O", "-OO"])
def test_nothing_of_the_stock_files_can_load(optimise: str, based: Path, tmp_path: Path) -> None:
    assert said(based, optimise) == "stock ['1.2.3']"
    made = artifacts.layer(tmp_path, patchset(patched(data=b"PATCHED = 'ours'\n")))
    apply_layer(made.path.read_bytes(), based)
    assert said(based, optimise) == "ours ['1.2.3+sm120.1']"


def test_without_the_whiteouts_stock_bytecode_would_load(based: Path, tmp_path: Path) -> None:
    """So the test above can fail."""
    made = artifacts.layer(tmp_path, patchset(patched(data=b"PATCHED = 'ours'\n")))
    apply_layer(made.path.read_bytes(), based, whiteouts=False)
    assert said(based, "").startswith("stock [")
    assert "'1.2.3'" in said(based, "")


def test_the_form_of_the_tar_does_not_follow_the_order_of_the_content() -> None:
    files = {"b/x": LayerFile(b"1"), "a": LayerFile(b"2"), "b-c": LayerFile(b"3", executable=True)}
    pieces: list[bytes] = []
    one = serialize(files, EPOCH, pieces.append)
    two = serialize(dict(reversed(files.items())), EPOCH, lambda _: None)
    assert one == two
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(b"".join(pieces)))) as archive:
        assert archive.getnames() == ["a", "b", "b/x", "b-c"]


@pytest.mark.parametrize("name", ["x" * 100, "d/" * 60 + "x", "y" * 300, "ä/ö.py"])
def test_names_of_any_length_come_back(name: str) -> None:
    pieces: list[bytes] = []
    serialize({name: LayerFile(b"data")}, EPOCH, pieces.append)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(b"".join(pieces)))) as archive:
        file = archive.extractfile(name)
        assert file is not None
        assert file.read() == b"data"


def test_short_names_need_no_extended_headers() -> None:
    pieces: list[bytes] = []
    serialize({"a/b.py": LayerFile(b"data")}, EPOCH, pieces.append)
    data = gzip.decompress(b"".join(pieces))
    assert b"PaxHeader" not in data
    assert data[257:265] == b"ustar\x0000"
    assert len(data) == (1 + 2 + 2) * 512


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 131070, 200_000])
def test_stored_gzip_is_gzip_whatever_the_pieces(size: int) -> None:
    data = os.urandom(size)
    streams = []
    for step in (size or 1, 7919):
        pieces: list[bytes] = []
        stream = StoredGzip(pieces.append)
        for start in range(0, size, step):
            stream.write(data[start : start + step])
        stream.finish()
        streams.append(b"".join(pieces))
    assert streams[0] == streams[1]
    assert gzip.decompress(streams[0]) == data
    decompressor = zlib.decompressobj(31)
    assert decompressor.decompress(streams[0]) == data
    assert decompressor.eof
    assert decompressor.unused_data == b""
    assert len(streams[0]) == 18 + size + 5 * max(1, -(-size // 65535))
