"""The real official wheel, 336 MB: read, patched, installed by pip, verified."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from imagebuild import upstream
from imagebuild.artifacts import record
from imagebuild.artifacts.layer import layer_content
from imagebuild.artifacts.wheel import write_wheel
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.fetch import download
from imagebuild.fetch.cache import Cache
from imagebuild.patching.produced import Patchset, ProducedFile
from imagebuild.progress import Silent
from imagebuild.verifying.verify_wheel import verify_wheel
from tests.support import artifacts
from tests.support.artifacts import AMD64
from tests.test_wheel import assert_installed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.upstream

PATCHED = "vllm/envs.py"
NEW = "vllm/_ours.py"
LINE = upstream.load(artifacts.ROOT / "upstream.lock").lines["v0.33.0"]


@pytest.fixture(scope="module")
def official() -> Path:
    return download.fetch(LINE.wheel(AMD64), Cache.default(), Silent())


@pytest.fixture(scope="module")
def patchset(official: Path) -> Patchset:
    with zipfile.ZipFile(official) as archive:
        before = archive.read(PATCHED)
    patched = ProducedFile(PATCHED, before + b"# ours\n", sha256_bytes(before), "patched")
    new = ProducedFile(NEW, b"OURS = True\n", None, "overlay")
    return Patchset("v0.33.0", Sha256("0" * 64), {}, (patched, new))


@pytest.fixture(scope="module")
def ours(official: Path, patchset: Patchset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    epoch = LINE.source_date_epoch
    progress = Silent()
    made = write_wheel(official, patchset, LINE, AMD64, folder, epoch=epoch, progress=progress)
    assert made.path.name == "vllm-0.33.0+sm120.1-cp38-abi3-manylinux_2_28_x86_64.whl"
    return made.path


def test_all_but_our_members_keep_their_compressed_bytes(official: Path, ours: Path) -> None:
    with zipfile.ZipFile(official) as theirs, zipfile.ZipFile(ours) as archive:
        found = {info.filename: info for info in archive.infolist()}
        kept = [info for info in theirs.infolist() if "dist-info" not in info.filename]
        assert len(found) == len(theirs.infolist()) + 1 == 5803
        for old in kept:
            new = found[old.filename]
            same = (old.CRC, old.compress_size, old.compress_type)
            assert (
                old.filename == PATCHED or (new.CRC, new.compress_size, new.compress_type) == same
            )


def test_it_verifies_against_the_official_one(
    official: Path, ours: Path, patchset: Patchset
) -> None:
    expected = {file.path: file.after for file in patchset.files}
    report = verify_wheel(ours, LINE, AMD64, expected, official, progress=Silent())
    report.require()
    checks = {check.name: check.found for check in report.checks}
    assert checks["RECORD agrees with the files"] == "5803 files"
    assert checks["files that no patch touches"] == "5795 files"


def test_pip_installs_it_into_an_environment(ours: Path, tmp_path: Path) -> None:
    """The real installer, a real environment; every file's digest as RECORD has it."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", str(ours)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (site,) = environment.glob("lib/python3.*/site-packages")
    assert_installed(site, "0.33.0+sm120.1")
    assert (site / NEW).read_bytes() == b"OURS = True\n"
    assert (environment / "bin" / "vllm").is_file()


def test_the_layer_vouches_for_the_files_that_sdist_and_wheel_share(
    official: Path, patchset: Patchset
) -> None:
    """The digests are taken from the wheel's RECORD for the Python files, as the sdist has them."""
    with zipfile.ZipFile(official) as archive:
        rows = record.parse(archive.read("vllm-0.33.0.dist-info/RECORD"), "RECORD")
    vouched = {
        path: row.sha256 for path, row in rows.items() if path.endswith(".py") and row.sha256
    }
    content = layer_content(official, patchset, LINE, AMD64, vouched)
    root = LINE.site_packages.lstrip("/")
    name = "vllm-0.33.0+sm120.1.dist-info"
    found = record.parse(content[f"{root}/{name}/RECORD"].data, "RECORD")
    assert found["vllm/__init__.py"] == rows["vllm/__init__.py"]
    binaries = [row for path, row in found.items() if path.endswith(".so")]
    assert binaries
    assert all(row.sha256 is None and row.size is None for row in binaries)
    assert found[PATCHED].sha256 == patchset.files[0].after
    assert sum(len(file.data) for file in content.values()) < 1 << 20
