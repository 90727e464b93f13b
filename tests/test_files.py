"""A file has its final name when it is whole, and never before."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from imagebuild import files
from imagebuild.errors import StorageError

ROOT = Path(__file__).parents[1]
WRITER = """
import os, resource, sys
from pathlib import Path
from imagebuild import files
from imagebuild.errors import StorageError
path, what = Path(sys.argv[1]), sys.argv[2]
if what == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
try:
    with files.atomic(path) as file:
        for number in range(64):
            file.write(bytes(4 << 10))
            if what.isdigit() and number == int(what):
                file.flush()
                print("here", flush=True)
                sys.stdin.read()
    if what == "named":
        print("here", flush=True)
        sys.stdin.read()
except StorageError as error:
    print(error.diagnostics())
    sys.exit(error.exit_code)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class LostError(OSError):
    """A connection's error: like those of requests, an OSError that is not about the disk."""


def write(path: Path, what: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), what],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def killed(path: Path, what: str) -> None:
    """Kill a writer with no warning once it has come to the place that `what` names."""
    with write(path, what) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL


def test_the_whole_content_is_there_after_the_block(tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "sub" / "file", b"whole")
    assert (tmp_path / "sub" / "file").read_bytes() == b"whole"
    assert names(tmp_path / "sub") == ["file"]


def test_the_name_is_not_there_inside_the_block(tmp_path: Path) -> None:
    with files.atomic(tmp_path / "file") as file:
        file.write(b"part")
        assert not (tmp_path / "file").exists()


def test_an_older_file_stays_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with files.atomic(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), LostError("reset")])
def test_an_error_in_the_block_leaves_nothing_and_stays_what_it_is(
    tmp_path: Path, error: BaseException
) -> None:
    def fail() -> None:
        with files.atomic(tmp_path / "file") as file:
            file.write(b"part")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert names(tmp_path) == []


@pytest.mark.parametrize("moment", ["0", "31", "63"])
def test_a_killed_writer_leaves_no_file_of_the_final_name(tmp_path: Path, moment: str) -> None:
    killed(tmp_path / "file", moment)
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".file.")
    files.sweep(tmp_path)
    assert names(tmp_path) == []


def test_a_killed_writer_leaves_the_older_file_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    killed(tmp_path / "file", "31")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_writer_killed_after_the_block_has_left_the_whole_file(tmp_path: Path) -> None:
    killed(tmp_path / "file", "named")
    assert (tmp_path / "file").stat().st_size == 64 * (4 << 10)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with write(tmp_path / "file", "full") as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (StorageError.exit_code, b"")
    assert b"error: the disk is full" in output
    assert str(tmp_path / "file").encode() in output
    assert b"df -h" in output
    assert names(tmp_path) == []


def test_a_full_disk_leaves_the_older_file_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with write(tmp_path / "file", "full") as process:
        process.communicate(timeout=60)
    assert process.returncode == StorageError.exit_code
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_the_mode_is_the_asked_one_under_any_umask(tmp_path: Path, umask: int, mode: int) -> None:
    (tmp_path / "sub").mkdir()
    before = os.umask(umask)
    try:
        files.write_atomic(tmp_path / "sub" / "file", b"", mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "sub" / "file").stat().st_mode) == mode


def test_a_file_in_the_folders_place_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        files.write_atomic(tmp_path / "file" / "inner", b"")
    assert caught.value.next_command


def test_a_folder_in_the_files_place_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(StorageError):
        files.write_atomic(tmp_path / "file", b"")
    assert names(tmp_path) == ["file"]


def test_a_name_that_is_too_long_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        files.write_atomic(tmp_path / ("x" * 300), b"")


def test_a_link_in_the_files_place_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "file").symlink_to("other")
    files.write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "other").read_bytes() == b"other"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("name", ["file", ".file", ".x.tmp", ".notes.2026.tmp", "file.tmp"])
def test_sweeping_leaves_what_is_not_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    (tmp_path / ".file.abcd1234.tmp").write_bytes(b"")
    files.sweep(tmp_path)
    assert names(tmp_path) == [name]


def test_sweeping_an_absent_folder_does_nothing(tmp_path: Path) -> None:
    files.sweep(tmp_path / "none")
