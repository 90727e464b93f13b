"""The real releases: every line checks, exports, builds the same bytes twice, and installs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from imagebuild import errors, release, upstream
from imagebuild.digest import sha256_file
from imagebuild.fetch.sources import Sources
from imagebuild.patching import scratch, series
from imagebuild.progress import Silent
from imagebuild.project import Project
from tests.support.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.upstream

PROJECT = Project(ROOT)
LOCK = upstream.load(PROJECT.upstream_lock)
NAME, LINE = LOCK.line()


def _build(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, str(ROOT / "build.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = _build("--dist", str(folder), "--target", "wheel", "--target", "layer")
    assert done.returncode == 0, done.stderr
    return folder


def test_every_patch_applies_to_its_own_release_at_the_exact_lines() -> None:
    done = _build("check", "--json")
    assert done.returncode == 0, done.stdout
    found = [
        (patch["outcome"], patch["reason"])
        for line in json.loads(done.stdout)["lines"]
        for patch in line["patches"]
    ]
    assert set(found) == {("applies", "at the exact lines")}


def test_a_patch_for_an_older_release_is_drifted_on_the_newest_with_both_sides_shown() -> None:
    done = _build("check", "v0.27.1", "--release", "0.33.0")
    assert done.returncode == errors.DriftedError.exit_code
    assert "state-index-bounds: no exact place for " in done.stdout
    assert "wants to make this change:" in done.stdout
    assert "vllm-0.33.0.tar.gz has there now:" in done.stdout
    assert "Upstream changed between vllm-0.27.1.tar.gz and vllm-0.33.0.tar.gz:" in done.stdout


@pytest.mark.parametrize("name", LOCK.lines)
def test_export_after_edit_is_the_identity(name: str, tmp_path: Path) -> None:
    found = series.load(PROJECT, name)
    tree = Sources.for_run(Silent(), offline=False).sdist(LOCK.lines[name])
    scratch.create(tmp_path / "repository", found, tree, whole=False)
    exported = scratch.export(tmp_path / "repository", found)
    assert exported.patches == {patch.name: patch.text.data for patch in found.patches}
    assert exported.overlay == found.overlay


def test_two_folders_umasks_time_zones_locales_and_hash_seeds_give_the_same_digests(
    dist: Path, tmp_path: Path
) -> None:
    here = tmp_path / "another project"
    # All that is tracked, and git's own folder: the commit stands in the provenance.
    ignored = shutil.ignore_patterns(".venv", "dist", ".*_cache", "__pycache__", ".hypothesis")
    shutil.copytree(ROOT, here, ignore=ignored)
    done = subprocess.run(
        [sys.executable, "build.py", "--target", "wheel", "--target", "layer"],
        cwd=here,
        umask=0o077,
        env=os.environ | {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, other = release.load(dist / "release.json"), release.load(here / "dist" / "release.json")
    assert one == other
    for output in one.outputs:
        if isinstance(output, release.AttestationOutput):
            for file in (output.provenance, output.spdx, output.cyclonedx):
                assert sha256_file(dist / file.name) == file.sha256
            continue
        assert isinstance(output, release.WheelOutput | release.LayerOutput)
        assert sha256_file(dist / output.file) == output.sha256
        assert sha256_file(here / "dist" / output.file) == output.sha256


def test_the_wheel_verifies_and_says_what_it_is_once_installed(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    done = _build("verify", str(wheel))
    assert done.returncode == 0, done.stderr
    assert "BAD" not in done.stdout
    assert "not checked" not in done.stdout
    site = tmp_path / "site"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"),
            *("--no-compile", "--target", str(site), str(wheel)),
        ],
        check=True,
    )
    code = (
        "import importlib.metadata as m, runpy, sys\n"
        "site = sys.argv[1]\n"
        "version = runpy.run_path(f'{site}/vllm/_version.py')\n"
        "overlay = runpy.run_path(f'{site}/vllm/_overlay.py')\n"
        "print(m.version('vllm'), version['__version__'], version['__version_tuple__'][-1])\n"
        "print(overlay['VERSION'], *overlay['PATCHES'])\n"
        "print(overlay['describe']())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(site)],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert found[0] == f"{LINE.local_version} {LINE.local_version} sm120.{LINE.revision}"
    names = [patch.name for patch in series.load(PROJECT, NAME).patches]
    assert found[1].split() == [LINE.local_version, *names]
    assert found[2].startswith(f"vLLM {LINE.local_version} (upstream {LINE.version}, commit ")
