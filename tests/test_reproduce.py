"""`reproduce`: what was published comes out again, or the first difference is named."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from imagebuild.attesting import releaselock
from imagebuild.attesting.releaselock import Published, ReleaseLock, Wheel
from imagebuild.errors import LockError
from imagebuild.project import Project
from tests.support import tiny as tinies
from tests.support.baseimage import BaseImage
from tests.support.command import ROOT, Command
from tests.support.real_registry import RealRegistry
from tests.support.tiny import LINE, LOCAL_VERSION
from tests.support.tinytree import SDIST_ONLY, TREE
from tests.test_docker import SITE
from tests.test_registry import push as push_base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRY = Published(
    line=LINE,
    version=LOCAL_VERSION,
    date=dt.date(2026, 12, 1),
    revision="5" * 40,
    ref="registry.example.org/ours:1",
    digest="sha256:" + "1" * 64,
    platforms={"linux/amd64": "sha256:" + "1" * 64},
    wheels={"linux/amd64": Wheel(name="x.whl", sha256="2" * 64)},
    attestations={"linux/amd64 spdx": "sha256:" + "3" * 64},
)


def test_the_projects_own_lock_has_no_entries_and_reproduce_says_so() -> None:
    assert releaselock.load(ROOT / "release.lock").releases == ()
    done = subprocess.run(
        [sys.executable, "build.py", "reproduce"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "release.lock has no entries: nothing is published yet\n"


def test_the_lock_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "release.lock"
    shutil.copyfile(ROOT / "release.lock", path)
    releaselock.record(path, ENTRY)
    assert releaselock.load(path) == ReleaseLock(schema=1, releases=(ENTRY,))
    releaselock.record(path, ENTRY)
    assert len(releaselock.load(path).releases) == 1


@pytest.mark.parametrize(
    "text", ["schema = 2", "releases = []", "schema = 1\nx = 1", "schema = 1\n[[releases]]\nline=1"]
)
def test_a_malformed_lock_is_a_lock_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "release.lock").write_text(text)
    with pytest.raises(LockError):
        releaselock.load(tmp_path / "release.lock")


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def published(tmp_path: Path) -> Iterator[tuple[Command, str, Path]]:
    """Publish a tiny project; return its command line, what it was pushed to, and its root."""
    with RealRegistry(tmp_path / "registry") as registry:
        base = BaseImage(tmp_path / "base", site=SITE)
        push_base(base, registry.host)
        tiny = tinies.make(tmp_path / "project")
        pin = {"ref": f"{registry.host}/vllm/vllm-openai:v1.2.3", "digest": f"sha256:{base.index}"}
        tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(image=pin))
        tiny.relock()
        shutil.copyfile(ROOT / "release.lock", tiny.project.release_lock)
        command = Command.on(tiny, tmp_path)
        root = tiny.project.root
        (root / ".gitignore").write_text("dist\nrelease.lock\n")
        git(root, "init", "--quiet")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", "all")
        ref = f"{registry.host}/ours:1"
        targets = ("--target", "wheel", "--target", "layer")
        command.ok(*targets, "--push", ref, "--record")
        yield command, ref, root


@pytest.mark.containers
def test_what_was_published_comes_out_again(published: tuple[Command, str, Path]) -> None:
    command, ref, root = published
    entry = releaselock.load(root / "release.lock").releases[0]
    assert (entry.ref, entry.line, len(entry.attestations)) == (ref, LINE, 3)
    found = command.json("reproduce")
    verdicts = {c["name"]: c["verdict"] for c in found["releases"][0]["checks"]}
    assert verdicts == {"wheel, linux/amd64": "ok", "image, linux/amd64": "ok"}


@pytest.mark.containers
def test_where_it_differs_the_first_file_is_named(published: tuple[Command, str, Path]) -> None:
    command, _, root = published
    patch = root / "patches" / LINE / f"{tinies.CLEAR.name}.patch"
    patch.write_bytes(
        patch.read_bytes().replace(b"+    for block in range(1, ", b"+    for block in range(2, ")
    )
    tiny = tinies.Tiny(Project(root), root, TREE | SDIST_ONLY)
    tiny.relock()
    git(root, "commit", "--quiet", "--all", "--message", "another patch")
    done = command.run("reproduce")
    assert done.returncode == 31
    assert "wheel, linux/amd64" in done.stderr
    assert "the layer's files: usr/local/lib/python3.12/dist-packages/vllm" in done.stderr
    assert "git checkout" in done.stdout


@pytest.mark.containers
def test_a_changed_checkout_is_pushed_and_not_recorded(
    published: tuple[Command, str, Path],
) -> None:
    command, ref, root = published
    (root / ".gitignore").write_text("dist\nrelease.lock\n# changed\n")
    done = command.run("--push", ref, "--record")
    assert done.returncode == 30
    assert "nobody could make it again" in done.stderr
    assert command.run("--record").returncode == 2
