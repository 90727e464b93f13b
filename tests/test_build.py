"""Whole builds of a tiny project, as processes: what comes out, what stays, what a fault leaves."""

from __future__ import annotations

import random
import shutil
import signal
import time
from typing import TYPE_CHECKING

import filelock
import pytest

from imagebuild import errors, release
from imagebuild.digest import sha256_file
from imagebuild.fetch import equality
from imagebuild.fetch.git import Git
from imagebuild.project import Project
from tests.support import tiny as tinies
from tests.support.command import Command
from tests.support.tiny import LINE, LOCAL_VERSION, Tiny

if TYPE_CHECKING:
    from pathlib import Path

WHEEL = f"vllm-{LOCAL_VERSION}-cp38-abi3-manylinux_2_28_x86_64.whl"
LAYER = f"vllm-{LOCAL_VERSION}-linux-amd64.layer.tar.gz"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return tinies.make(tmp_path_factory.mktemp("template") / "project")


@pytest.fixture
def tiny(template: Tiny, tmp_path: Path) -> Tiny:
    shutil.copytree(template.project.root, tmp_path / "project")
    shutil.copytree(template.index, tmp_path / "project-index")
    return Tiny(Project(tmp_path / "project"), tmp_path / "project-index", template.tree)


@pytest.fixture
def command(tiny: Tiny, tmp_path: Path) -> Command:
    return Command.on(tiny, tmp_path)


def _digests(dist: Path) -> dict[str, str]:
    return {
        path.relative_to(dist).as_posix(): sha256_file(path)
        for path in sorted(dist.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def test_no_arguments_make_wheel_layer_and_release_and_say_why_there_is_no_image(
    command: Command, tiny: Tiny
) -> None:
    done = command.run()
    assert done.returncode == 0, done.stderr
    said = {f"{WHEEL}.{word}.json" for word in ("provenance", "spdx", "cyclonedx")}
    assert set(_digests(tiny.project.dist)) == {WHEEL, LAYER, "release.json", *said}
    made = release.load(tiny.project.dist / "release.json")
    assert [type(output) for output in made.outputs] == [
        release.WheelOutput,
        release.LayerOutput,
        release.AttestationOutput,
    ]
    for output in made.outputs[:2]:
        assert isinstance(output, release.WheelOutput | release.LayerOutput)
        assert output.sha256 == sha256_file(tiny.project.dist / output.file)
        assert f"sha256:{output.sha256}" in done.stdout
    assert "image        left out   the official image's digest is not pinned" in done.stdout
    assert f"next: python build.py lock {LINE} --write" in done.stdout
    for verb in ("verify", "unpack", "apply", "pack"):
        assert verb in done.stderr


def test_an_image_that_is_asked_for_by_name_and_not_pinned_is_an_error(command: Command) -> None:
    done = command.run("--target", "image")
    assert done.returncode == errors.UnpinnedError.exit_code
    assert "is not pinned" in done.stderr


def test_a_second_build_leaves_what_is_right_as_it_is(command: Command, tiny: Tiny) -> None:
    command.ok()
    before = {p.name: p.stat() for p in tiny.project.dist.iterdir() if p.name in (WHEEL, LAYER)}
    text = command.ok()
    assert text.count("unchanged") == 3
    after = {p.name: p.stat() for p in tiny.project.dist.iterdir() if p.name in (WHEEL, LAYER)}
    assert {n: (s.st_ino, s.st_mtime_ns) for n, s in before.items()} == {
        n: (s.st_ino, s.st_mtime_ns) for n, s in after.items()
    }


def test_an_artifact_that_somebody_changed_is_made_again(command: Command, tiny: Tiny) -> None:
    command.ok()
    right = _digests(tiny.project.dist)
    with (tiny.project.dist / LAYER).open("ab") as file:
        file.write(b"x")
    command.ok()
    assert _digests(tiny.project.dist) == right


@pytest.mark.parametrize(
    "circumstances",
    [
        {"umask": 0o077, "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7", "LANG": "tr_TR.UTF-8"},
        {"umask": 0o000, "TZ": "America/St_Johns", "PYTHONHASHSEED": "0", "LC_ALL": "C"},
    ],
)
def test_folder_umask_time_zone_locale_and_hash_seed_change_no_byte(
    tmp_path: Path, circumstances: dict[str, str | int]
) -> None:
    first = tinies.make(tmp_path / "one")
    Command.on(first, tmp_path / "scratch-one").ok()
    umask = int(circumstances.pop("umask"))
    second = tinies.make(tmp_path / "another" / "place" / "two")
    other = Command.on(second, tmp_path / "scratch-two")
    other.extra = {name: str(value) for name, value in circumstances.items()}
    other.ok(cwd=tmp_path, umask=umask)
    assert _digests(first.project.dist) == _digests(second.project.dist)


def test_source_date_epoch_is_the_time_in_the_artifacts(command: Command, tiny: Tiny) -> None:
    command.ok()
    usual = _digests(tiny.project.dist)
    command.extra = {"SOURCE_DATE_EPOCH": "1700000000"}
    command.ok()
    assert release.load(tiny.project.dist / "release.json").source_date_epoch == 1700000000
    assert _digests(tiny.project.dist)[WHEEL] != usual[WHEEL]
    command.extra = {}
    command.ok()
    assert _digests(tiny.project.dist) == usual


@pytest.mark.parametrize("epoch", ["", "-1", "yesterday", "9" * 40, "1"])
def test_a_source_date_epoch_that_no_artifact_can_hold_is_refused(
    command: Command, epoch: str
) -> None:
    command.extra = {"SOURCE_DATE_EPOCH": epoch}
    assert command.json()["error"] == "usage"


def test_the_tree_target_is_the_release_with_the_series_in(command: Command, tiny: Tiny) -> None:
    command.ok("--target", "tree")
    folder = tiny.project.dist / f"vllm-{LOCAL_VERSION}"
    produced = tiny.pins.produced
    for path, data in tiny.tree.items():
        found = (folder / path).read_bytes()
        assert (found != data) == (path in produced)
    assert {p: sha256_file(folder / p) for p in produced} == produced
    command.ok("check", "--tree", str(folder))


def test_no_network_is_an_error_and_the_cache_is_enough_afterwards(
    command: Command, tiny: Tiny
) -> None:
    assert command.json("--offline")["error"] == "source"
    assert not tiny.project.dist.exists() or _digests(tiny.project.dist) == {}
    command.ok()
    shutil.rmtree(tiny.project.dist)
    command.index = "http://127.0.0.1:9/simple"
    command.ok("--offline")
    assert WHEEL in _digests(tiny.project.dist)


def test_a_patch_that_is_not_the_one_in_the_lock_is_not_applied(
    command: Command, tiny: Tiny
) -> None:
    patch = next(tiny.project.patches(LINE).glob("*.patch"))
    patch.write_bytes(patch.read_bytes().replace(b"\n\n", b"\n\nMore words.\n", 1))
    facts = command.json()
    assert facts["error"] == "checksum"
    assert facts["file"].endswith(patch.name)
    assert not (tiny.project.dist / "release.json").exists()


def test_a_lock_that_was_derived_for_another_revision_is_refused(
    command: Command, tiny: Tiny
) -> None:
    text = tiny.project.upstream_lock.read_text()
    assert "revision = 1" in text
    tiny.project.upstream_lock.write_text(text.replace("revision = 1", "revision = 2"))
    facts = command.json()
    assert (facts["error"], facts["found"]) == ("checksum", f"version {LOCAL_VERSION}")


def test_a_second_build_in_the_same_folder_says_that_it_is_busy(
    command: Command, tiny: Tiny
) -> None:
    tiny.project.dist.mkdir()
    with filelock.FileLock(tiny.project.dist / ".lock"):
        assert command.json("--no-wait")["error"] == "busy"
    command.ok("--no-wait")


def test_a_second_build_in_the_same_folder_waits_and_says_so(command: Command, tiny: Tiny) -> None:
    tiny.project.dist.mkdir()
    lock = filelock.FileLock(tiny.project.dist / ".lock")
    with lock:
        process = command.start()
        assert process.stderr is not None
        heard = [process.stderr.readline()]
        assert "waiting for another build" in heard[0]
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_two_builds_at_once_both_succeed_with_the_same_digests(
    command: Command, tiny: Tiny
) -> None:
    processes = [command.start() for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    wheels = [next(line for line in out.splitlines() if "sha256:" in line) for out in outputs]
    assert len({line.split()[-1] for line in wheels}) == 1
    assert WHEEL in _digests(tiny.project.dist)


def test_a_build_killed_at_any_moment_leaves_nothing_half_written_and_the_next_one_succeeds(
    command: Command, tiny: Tiny
) -> None:
    command.ok()
    right = _digests(tiny.project.dist)
    rng = random.Random(20261201)  # noqa: S311  (where to kill, not a secret)
    for _ in range(8):
        shutil.rmtree(tiny.project.dist)
        shutil.rmtree(command.home)
        process = command.start()
        time.sleep(rng.uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        if tiny.project.dist.exists():
            for name, digest in _digests(tiny.project.dist).items():
                if name in (WHEEL, LAYER):
                    assert digest == right[name]
        command.ok()
        assert _digests(tiny.project.dist) == right
        assert not list(tiny.project.dist.glob(".*.tmp"))


def test_a_build_that_is_ended_says_so_and_removes_its_temporary_files(
    command: Command, tiny: Tiny
) -> None:
    tiny.project.dist.mkdir()
    with filelock.FileLock(tiny.project.dist / ".lock"):
        process = command.start()
        assert process.stderr is not None
        assert "waiting" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == errors.InterruptError.exit_code
    assert "error: the run was ended" in err
    assert not list(tiny.project.dist.glob(".*.tmp"))


def _source_folder(tiny: Tiny, tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for path, data in tiny.tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def test_a_folder_as_source_gives_the_same_bytes_as_the_sdist(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    command.ok()
    right = _digests(tiny.project.dist)
    shutil.rmtree(tiny.project.dist)
    folder = _source_folder(tiny, tmp_path)
    command.ok("--source", str(folder))
    assert _digests(tiny.project.dist) == right


def test_a_source_inside_another_git_repository_is_patched_all_the_same(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    Git(tmp_path).run("init", "--quiet", str(tmp_path))
    folder = _source_folder(tiny, tmp_path)
    text = command.ok("check", "--tree", str(folder))
    assert "applies" in text
    assert "already applied" not in text
    command.ok("--source", str(folder))
    assert WHEEL in _digests(tiny.project.dist)


def test_a_source_is_only_read(command: Command, tiny: Tiny, tmp_path: Path) -> None:
    folder = _source_folder(tiny, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    command.ok("--source", str(folder))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_source_that_is_patched_already_gives_the_same_bytes(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    command.ok()
    right = _digests(tiny.project.dist)
    command.ok("--target", "tree")
    patched = tmp_path / "patched"
    (tiny.project.dist / f"vllm-{LOCAL_VERSION}").rename(patched)
    shutil.rmtree(tiny.project.dist)
    assert "already applied" in command.ok("check", "--tree", str(patched))
    command.ok("--source", str(patched))
    assert _digests(tiny.project.dist) == right


def test_a_half_patched_source_is_refused_with_its_own_exit_code(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    command.ok("--target", "tree")
    folder = _source_folder(tiny, tmp_path)
    patch = next(p for p in tiny.series.patches if len(p.targets) > 1)
    done = tiny.project.dist / f"vllm-{LOCAL_VERSION}" / patch.targets[0]
    shutil.copyfile(done, folder / patch.targets[0])
    facts = command.json("--source", str(folder))
    assert (facts["error"], facts["exit_code"]) == ("partial", 23)


def test_a_source_with_another_file_than_the_releases_is_refused(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    folder = _source_folder(tiny, tmp_path)
    untouched = next(path for path in tiny.tree if path not in tiny.pins.produced)
    (folder / untouched).write_bytes(b"# something else\n")
    facts = command.json("--source", str(folder))
    assert facts["error"] == "checksum"
    assert f"{untouched}: differs" in facts["detail"]


def test_git_as_source_gives_the_same_bytes_and_lists_what_only_one_side_has(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    folder = _source_folder(tiny, tmp_path)
    for path in equality.SDIST_ONLY:
        (folder / path).unlink(missing_ok=True)
    git = Git(folder)
    git.run("init", "--quiet", str(folder))
    git.run("add", "--all", "--force", ".")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    git.run(*identity, "commit", "--quiet", "-m", "release")
    commit = git.text("rev-parse", "HEAD")
    tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(commit_prefix=commit[:9]))
    tiny.relock()
    done = command.run("--source", f"git:{folder}")
    assert done.returncode == 0, done.stderr
    assert "only in the sdist: " in done.stderr
    from_git = _digests(tiny.project.dist)
    shutil.rmtree(tiny.project.dist)
    command.ok()
    assert _digests(tiny.project.dist) == from_git


def test_a_full_disk_leaves_no_artifact_and_the_next_build_succeeds(
    command: Command, tiny: Tiny
) -> None:
    import resource  # noqa: PLC0415

    command.ok("--target", "layer")
    shutil.rmtree(tiny.project.dist)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    with command.start("--target", "layer", preexec_fn=limit) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == errors.StorageError.exit_code, err
    assert _digests(tiny.project.dist) == {}
    assert not list(tiny.project.dist.glob(".*.tmp"))
    command.ok("--target", "layer")
    assert set(_digests(tiny.project.dist)) == {LAYER, "release.json"}


def test_a_folder_that_cannot_be_written_is_an_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    facts = command.json("--dist", str(tmp_path / "file" / "dist"))
    assert facts["error"] == "storage"


def test_the_working_folder_does_not_matter(command: Command, tiny: Tiny, tmp_path: Path) -> None:
    command.ok(cwd=tmp_path)
    assert (tiny.project.dist / WHEEL).is_file()
