"""An sdist as a tree: one pass over the archive, then any file at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imagebuild.errors import ArchiveError, BuildError, ChecksumError, SourceError, StorageError
from imagebuild.fetch import download
from imagebuild.fetch.cache import Cache
from imagebuild.fetch.sdist import SdistTree
from imagebuild.progress import Silent
from imagebuild.upstream import FilePin
from tests.support.tarballs import GOOD, PROGRAM, TOP, entry, good, pack, sdist, tar
from tests.support.watching import Watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagebuild.fetch.tree import Tree
    from imagebuild.progress import Verb

SHA256 = hashlib.sha256(sdist()).hexdigest()
ROOT = Path(__file__).parents[1]

OPEN = """
import pathlib, sys
from imagebuild.fetch.cache import Cache
from imagebuild.progress import Silent
from imagebuild.fetch.sdist import SdistTree
archive, sha256, root = sys.argv[1:]
SdistTree.open(pathlib.Path(archive), sha256, Cache(pathlib.Path(root)), Silent())
"""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / f"{TOP}.tar.gz"
    path.write_bytes(sdist())
    return path


def open_tree(archive: Path, cache: Cache, watching: Watching | None = None) -> SdistTree:
    return SdistTree.open(archive, SHA256, cache, watching or Watching())


def packs(cache: Cache) -> list[Path]:
    return sorted((cache.root / "sdists").iterdir())


def test_a_tree_gives_the_files_of_its_sdist(archive: Path, cache: Cache) -> None:
    tree: Tree = open_tree(archive, cache)
    assert tree.label == f"{TOP}.tar.gz"
    assert list(tree.files()) == sorted(GOOD)
    assert {path: tree.read(path) for path in tree.files()} == GOOD
    for absent in ("vllm", "nothing", "../setup.py", "/setup.py", ""):
        assert tree.read(absent) is None


def test_the_manifest_gives_digest_size_and_executable_bit(archive: Path, cache: Cache) -> None:
    manifest = open_tree(archive, cache).manifest()
    assert list(manifest) == sorted(GOOD)
    for path, data in GOOD.items():
        assert manifest[path].sha256 == hashlib.sha256(data).hexdigest()
        assert manifest[path].size == len(data)
        assert manifest[path].executable == (path == PROGRAM)


def test_the_archive_is_read_once(archive: Path, cache: Cache) -> None:
    watching = Watching()
    open_tree(archive, cache, watching)
    assert watching.steps == [("unpack", archive.name, archive.stat().st_size)]
    assert watching.done == [archive.stat().st_size]
    archive.unlink()
    again = open_tree(archive, cache, watching)
    assert again.read("setup.py") == GOOD["setup.py"]
    assert len(watching.steps) == 1


def test_an_sdist_with_the_wrong_hash_is_an_error_and_leaves_nothing(
    archive: Path, cache: Cache
) -> None:
    archive.write_bytes(pack(tar([*good(), entry(f"{TOP}/more.py")])))
    with pytest.raises(ChecksumError, match="not the one that is pinned") as caught:
        open_tree(archive, cache)
    assert caught.value.file == str(archive)
    assert caught.value.expected == f"sha256:{SHA256}"
    assert caught.value.found == f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
    assert packs(cache) == []


def test_a_truncated_sdist_is_an_error_and_leaves_nothing(archive: Path, cache: Cache) -> None:
    archive.write_bytes(sdist()[:-100])
    with pytest.raises(ArchiveError):
        open_tree(archive, cache)
    assert packs(cache) == []


def test_no_archive_and_no_pack_is_an_error(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(SourceError):
        open_tree(tmp_path / "nothing.tar.gz", cache)


@pytest.mark.parametrize("broken", ["empty", "cut", "manifest", "trailer", "other"])
def test_a_damaged_pack_is_made_again(archive: Path, cache: Cache, broken: str) -> None:
    open_tree(archive, cache)
    (path,) = packs(cache)
    data = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": data[:-1],
            "manifest": data[:-200] + bytes([data[-200] ^ 1]) + data[-199:],
            "trailer": data[:-60] + bytes([data[-60] ^ 1]) + data[-59:],
            "other": b"something else entirely" * 10,
        }[broken]
    )
    watching = Watching()
    tree = open_tree(archive, cache, watching)
    assert watching.verbs == ["unpack"]
    assert {path: tree.read(path) for path in tree.files()} == GOOD
    assert path.read_bytes() == data


def test_a_pack_damaged_while_in_use_is_made_again(archive: Path, cache: Cache) -> None:
    watching = Watching()
    tree = open_tree(archive, cache, watching)
    (path,) = packs(cache)
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])
    assert tree.read("PKG-INFO") == GOOD["PKG-INFO"]
    assert watching.verbs == ["unpack", "unpack"]
    assert {path: tree.read(path) for path in tree.files()} == GOOD


def test_the_pack_is_the_same_bytes_each_time(archive: Path, cache: Cache, tmp_path: Path) -> None:
    open_tree(archive, cache)
    other = Cache(tmp_path / "other")
    open_tree(archive, other)
    assert packs(cache)[0].read_bytes() == packs(other)[0].read_bytes()


def test_an_extracted_tree_has_the_sdists_files_with_plain_modes_under_any_umask(
    archive: Path, cache: Cache, tmp_path: Path
) -> None:
    dest = tmp_path / "out" / "tree"
    before = os.umask(0o077)
    try:
        open_tree(archive, cache).extract(dest, Watching())
    finally:
        os.umask(before)
    files = {path for path in dest.rglob("*") if path.is_file()}
    assert {path.relative_to(dest).as_posix(): path.read_bytes() for path in files} == GOOD
    modes = {path.relative_to(dest).as_posix(): path.stat().st_mode & 0o777 for path in files}
    assert modes.pop(PROGRAM) == 0o755
    assert set(modes.values()) == {0o644}
    folders = [dest, *(path for path in dest.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o755}
    assert list(dest.parent.iterdir()) == [dest]


def test_extracting_never_writes_into_what_is_there(
    archive: Path, cache: Cache, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "mine").write_text("mine")
    with pytest.raises(StorageError, match="something already"):
        open_tree(archive, cache).extract(tmp_path / "tree", Watching())
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["mine"]


def test_extracting_that_fails_leaves_nothing(archive: Path, cache: Cache, tmp_path: Path) -> None:
    class Stops(Watching):
        """Interrupts when the files are being written."""

        @contextlib.contextmanager
        def step(
            self, verb: Verb, what: str, total: int | None = None
        ) -> Iterator[Callable[[int], None]]:
            with super().step(verb, what, total):
                yield self.stop

        def stop(self, _: int) -> None:
            assert list(dest.parent.glob(".tree.*.tmp/*"))
            raise KeyboardInterrupt

    tree = open_tree(archive, cache)
    dest = tmp_path / "out" / "tree"
    with pytest.raises(KeyboardInterrupt):
        tree.extract(dest, Stops())
    assert list(dest.parent.iterdir()) == []


def test_what_a_killed_extraction_left_is_removed_by_the_next(
    archive: Path, cache: Cache, tmp_path: Path
) -> None:
    left = tmp_path / "out" / ".tree.abcdefgh.tmp"
    (left / "vllm").mkdir(parents=True)
    open_tree(archive, cache).extract(tmp_path / "out" / "tree", Watching())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tree"]


def start(archive: Path, sha256: str, cache: Cache) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", OPEN, str(archive), sha256, str(cache.root)]
    return subprocess.Popen(command, cwd=ROOT)


def test_two_runs_at_once_make_one_pack(archive: Path, cache: Cache) -> None:
    runs = [start(archive, SHA256, cache) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert len(packs(cache)) == 1


def test_a_run_killed_while_it_makes_the_pack_leaves_none_and_the_next_run_makes_it(
    tmp_path: Path, cache: Cache
) -> None:
    chance = random.Random(3)  # noqa: S311
    data = pack(tar([entry(f"{TOP}/f{n}", chance.randbytes(1 << 20)) for n in range(24)]))
    archive, sha256 = tmp_path / "big.tar.gz", hashlib.sha256(data).hexdigest()
    archive.write_bytes(data)
    caught_at_work = 0
    for _ in range(8):
        run = start(archive, sha256, cache)
        while run.poll() is None and not list(cache.root.glob("sdists/.*.tmp")):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.03))
        run.send_signal(signal.SIGKILL)
        run.wait()
        caught_at_work += bool(list(cache.root.glob("sdists/.*.tmp")))
        for whole in cache.root.glob("sdists/*.pack"):
            SdistTree.open(archive, sha256, cache, Silent())
            whole.unlink()
    assert caught_at_work
    tree = SdistTree.open(archive, sha256, cache, Silent())
    assert len(list(tree.files())) == 24
    assert len(packs(cache)) == 1


REAL = FilePin(
    name="vllm-0.33.0.tar.gz",
    sha256="f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
)


@pytest.mark.upstream
def test_the_real_release_is_read_as_it_is(tmp_path: Path) -> None:
    archive = download.fetch(REAL, Cache.default(), Silent())
    tree = SdistTree.open(archive, REAL.sha256, Cache(tmp_path), Silent())
    assert tree.label == REAL.name
    assert len(tree.manifest()) == 8522
    dockerfile = tree.read("docker/Dockerfile")
    assert dockerfile is not None
    assert hashlib.sha256(dockerfile).hexdigest() == (
        "c5a9c1ed6dad87c8c18abe476172f5767e7c7e397db14c8d5b3821684c27c163"
    )
    assert b"0.33.0" in (tree.read("vllm/_version.py") or b"")


@pytest.mark.upstream
def test_the_real_release_with_one_bit_changed_anywhere_is_refused(tmp_path: Path) -> None:
    data = bytearray(download.fetch(REAL, Cache.default(), Silent()).read_bytes())
    data[random.Random(5).randrange(len(data))] ^= 1  # noqa: S311
    (tmp_path / REAL.name).write_bytes(data)
    with pytest.raises(BuildError) as caught:
        SdistTree.open(tmp_path / REAL.name, REAL.sha256, Cache(tmp_path / "cache"), Silent())
    assert isinstance(caught.value, ChecksumError | ArchiveError)
    assert list((tmp_path / "cache").glob("sdists/*")) == []
