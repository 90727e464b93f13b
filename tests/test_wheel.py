"""The patched wheel: right for pip, unchanged where no patch touches it, the same everywhere."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from imagebuild import upstream
from imagebuild.artifacts import distinfo, record
from imagebuild.artifacts.wheel import write_wheel
from imagebuild.digest import sha256_bytes, sha256_file
from imagebuild.errors import (
    ArchiveError,
    ChecksumError,
    ConflictError,
    StorageError,
    TargetError,
    UnpinnedError,
)
from imagebuild.progress import Silent
from tests.support import artifacts, tiny
from tests.support.artifacts import AMD64, ARM64, EPOCH, NEW, PATCHED, new, patched, patchset
from tests.support.tinytree import TREE, WHEEL_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagebuild.patching.produced import Patchset

INFO = "vllm-1.2.3+sm120.1.dist-info"
OLD = "vllm-1.2.3.dist-info"


def write(folder: Path, files: Patchset, wheel: bytes | None = None) -> Path:
    official = artifacts.official(folder / "in")
    if wheel is not None:
        official.write_bytes(wheel)
    line = artifacts.line()
    made = write_wheel(official, files, line, AMD64, folder, epoch=EPOCH, progress=Silent())
    assert made.sha256 == sha256_file(made.path)
    assert made.size == made.path.stat().st_size
    return made.path


def rewritten(change: Callable[[dict[str, bytes]], None]) -> bytes:
    """Return the official wheel with its members changed."""
    with zipfile.ZipFile(io.BytesIO(tiny.wheel(AMD64))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def test_the_name_has_our_version_and_the_official_tags(tmp_path: Path) -> None:
    made = artifacts.wheel(tmp_path)
    assert made.name == "vllm-1.2.3+sm120.1-cp38-abi3-manylinux_2_28_x86_64.whl"


def test_the_tags_inside_agree_with_the_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(artifacts.wheel(tmp_path)) as archive:
        text = archive.read(f"{INFO}/WHEEL").decode()
    assert [row for row in text.splitlines() if row.startswith("Tag:")] == [
        "Tag: cp38-abi3-manylinux_2_28_x86_64"
    ]


def test_a_compressed_tag_set_is_spelt_out(tmp_path: Path) -> None:
    name = "vllm-1.2.3-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    line = artifacts.line(wheels={AMD64: {"name": name, "sha256": "0" * 64}})
    made = write_wheel(
        artifacts.official(tmp_path / "in"),
        patchset(),
        line,
        AMD64,
        tmp_path,
        epoch=EPOCH,
        progress=Silent(),
    )
    with zipfile.ZipFile(made.path) as archive:
        text = archive.read(f"{INFO}/WHEEL").decode()
    assert "Tag: cp38-abi3-manylinux_2_17_x86_64\nTag: cp38-abi3-manylinux2014_x86_64\n" in text


def test_only_the_version_header_of_the_metadata_changes(tmp_path: Path) -> None:
    def also_in_text(members: dict[str, bytes]) -> None:
        members[f"{OLD}/METADATA"] += b"\nVersion: 1.2.3\n"
        fix_record(members)

    path = write(tmp_path, patchset(), rewritten(also_in_text))
    with zipfile.ZipFile(path) as archive:
        text = archive.read(f"{INFO}/METADATA")
    assert text.count(b"Version: 1.2.3+sm120.1\n") == 1
    assert text.endswith(b"\nVersion: 1.2.3\n")


def fix_record(members: dict[str, bytes]) -> None:
    """Make the official RECORD right again after a change to other members."""
    own = f"{OLD}/RECORD"
    rows = [record.row_of(name, data) for name, data in members.items() if name != own]
    members[own] = record.dump([*rows, record.Row(own)])


def test_untouched_members_keep_their_compressed_bytes(tmp_path: Path) -> None:
    path = artifacts.wheel(tmp_path)
    official = tmp_path / "in" / "official"
    with zipfile.ZipFile(path) as ours, zipfile.ZipFile(official) as theirs:
        kept = [n for n in theirs.namelist() if n != PATCHED and not n.startswith(OLD)]
        assert len(kept) > 10
        for name in kept:
            old, now = theirs.getinfo(name), ours.getinfo(name)
            assert (now.CRC, now.compress_size, now.compress_type) == (
                old.CRC,
                old.compress_size,
                zipfile.ZIP_DEFLATED,
            )
            assert ours.read(name) == theirs.read(name)
            assert now.external_attr >> 16 == old.external_attr >> 16


def test_produced_files_are_in_it_and_tests_are_not(tmp_path: Path) -> None:
    with zipfile.ZipFile(artifacts.wheel(tmp_path)) as archive:
        assert archive.read(PATCHED) == patched().data
        assert archive.read(NEW) == new().data
        assert not [name for name in archive.namelist() if name.startswith("tests/")]


def test_new_files_stand_behind_the_package_and_record_stands_last(tmp_path: Path) -> None:
    files = patchset(patched(), new("vllm/z.py"), new("vllm/a.py"))
    with zipfile.ZipFile(write(tmp_path, files)) as archive:
        names = archive.namelist()
    with zipfile.ZipFile(tmp_path / "in" / "official") as archive:
        official = [name for name in archive.namelist() if not name.startswith(OLD)]
    start = names.index("vllm/a.py")
    assert names[:start] == official
    assert names[start : start + 2] == ["vllm/a.py", "vllm/z.py"]
    assert all(name.startswith(f"{INFO}/") for name in names[start + 2 :])
    assert names[-1] == f"{INFO}/RECORD"


def test_record_lists_every_file_with_its_digest(tmp_path: Path) -> None:
    with zipfile.ZipFile(artifacts.wheel(tmp_path)) as archive:
        assert_record(archive, INFO)


def assert_record(archive: zipfile.ZipFile, info: str) -> None:
    rows = list(csv.reader(io.TextIOWrapper(archive.open(f"{info}/RECORD"), "utf-8", newline="")))
    assert [row[0] for row in rows] == archive.namelist()
    assert rows[-1] == [f"{info}/RECORD", "", ""]
    for path, digest, size in rows[:-1]:
        found, length = hashlib.sha256(), 0
        with archive.open(path) as member:
            while chunk := member.read(1 << 20):
                found.update(chunk)
                length += len(chunk)
        assert (digest, size) == (_record_hash(found.digest()), str(length)), path


def _record_hash(raw: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_nothing_in_it_depends_on_when_or_where(tmp_path: Path) -> None:
    with zipfile.ZipFile(artifacts.wheel(tmp_path)) as archive:
        for info in archive.infolist():
            assert info.date_time == (2026, 11, 2, 10, 12, 56)
            assert (info.create_system, info.create_version, info.flag_bits) == (3, 20, 0)
            assert info.extra == b""
            assert info.external_attr >> 16 in (0o100644, 0o100755)


def test_pip_installs_it_and_the_installed_record_is_right(tmp_path: Path) -> None:
    path = artifacts.wheel(tmp_path)
    target = tmp_path / "site"
    pip_install(path, target)
    assert_installed(target, "1.2.3+sm120.1")
    assert (target / PATCHED).read_bytes() == patched().data


def pip_install(path: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    command += ["--no-compile", "--disable-pip-version-check", "--target", str(target), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def assert_installed(target: Path, version: str) -> None:
    """Check what pip made of the wheel, as `importlib.metadata` sees it."""
    (found,) = importlib.metadata.distributions(path=[str(target)])
    assert (found.metadata["Name"], found.version) == ("vllm", version)
    assert [p.value for p in found.entry_points if p.group == "console_scripts"] == [
        "vllm.entrypoints.cli.main:main"
    ]
    checked = 0
    for file in found.files or ():
        if file.hash is None or ".." in file.parts:
            continue
        digest = hashlib.sha256((target / file).read_bytes()).digest()
        assert _record_hash(digest) == f"sha256={file.hash.value}", file
        checked += 1
    assert checked > 10


def test_a_file_that_differs_between_wheel_and_sdist_is_refused(tmp_path: Path) -> None:
    def differ(members: dict[str, bytes]) -> None:
        members[PATCHED] += b"# from elsewhere\n"
        fix_record(members)

    wheel = rewritten(differ)
    with pytest.raises(ChecksumError, match="disagree") as raised:
        write(tmp_path, patchset(), wheel)
    assert raised.value.file is not None
    assert raised.value.file.endswith(PATCHED)
    assert raised.value.expected == f"sha256 {sha256_bytes(TREE[PATCHED])}"
    assert raised.value.found is not None
    assert raised.value.found.startswith("sha256 ")
    assert_nothing_written(tmp_path)


def assert_nothing_written(folder: Path) -> None:
    assert [path.name for path in folder.iterdir() if path.name != "in"] == []


def test_a_patched_file_that_the_wheel_lacks_is_refused(tmp_path: Path) -> None:
    def lose(members: dict[str, bytes]) -> None:
        del members[PATCHED]
        fix_record(members)

    with pytest.raises(ChecksumError) as raised:
        write(tmp_path, patchset(), rewritten(lose))
    assert raised.value.found == "no such file"


def test_a_new_file_that_the_wheel_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConflictError):
        write(tmp_path, patchset(new(PATCHED)))
    assert_nothing_written(tmp_path)


def test_another_versions_wheel_is_refused(tmp_path: Path) -> None:
    line = replace_version(artifacts.line())
    with pytest.raises(ChecksumError, match="not the official wheel") as raised:
        write_wheel(
            artifacts.official(tmp_path / "in"),
            patchset(),
            line,
            AMD64,
            tmp_path,
            epoch=EPOCH,
            progress=Silent(),
        )
    assert (raised.value.expected, raised.value.found) == ("vllm-9.9.9.dist-info", OLD)


def replace_version(line: upstream.Line) -> upstream.Line:
    pin = upstream.FilePin(name="vllm-9.9.9-cp38-abi3-manylinux_2_28_x86_64.whl", sha256="0" * 64)
    return msgspec.structs.replace(line, version="9.9.9", wheels={AMD64: pin})


def drop(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        del members[f"{OLD}/{name}"]
        if name != "RECORD":
            fix_record(members)

    return change


def extra(members: dict[str, bytes]) -> None:
    members["vllm/unlisted.py"] = b""


def damaged_record(members: dict[str, bytes]) -> None:
    members[f"{OLD}/RECORD"] = b"vllm/x.py,md5=abc,1\n"


def data_folder(members: dict[str, bytes]) -> None:
    members["vllm-1.2.3.data/scripts/x"] = b""
    fix_record(members)


def no_tag(members: dict[str, bytes]) -> None:
    members[f"{OLD}/WHEEL"] = b"Wheel-Version: 1.0\n"
    fix_record(members)


def other_version(members: dict[str, bytes]) -> None:
    members[f"{OLD}/METADATA"] = b"Name: vllm\nVersion: 1.2.4\n\n"
    fix_record(members)


@pytest.mark.parametrize(
    "change",
    [
        *(drop("METADATA"), drop("WHEEL"), drop("RECORD")),
        *(extra, damaged_record, data_folder, no_tag, other_version),
    ],
)
def test_an_official_wheel_that_is_no_wheel_is_refused(
    change: Callable[[dict[str, bytes]], None], tmp_path: Path
) -> None:
    with pytest.raises(ArchiveError):
        write(tmp_path, patchset(), rewritten(change))
    assert_nothing_written(tmp_path)


def test_a_series_that_needs_a_compiler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError):
        write(tmp_path, patchset(patched(), new("csrc/x.cu")))
    assert_nothing_written(tmp_path)


def test_the_arm_wheel_has_arm_tags(tmp_path: Path) -> None:
    official = artifacts.official(tmp_path / "in", ARM64)
    line = artifacts.line()
    made = write_wheel(official, patchset(), line, ARM64, tmp_path, epoch=EPOCH, progress=Silent())
    assert made.path.name == distinfo.wheel_name(line, ARM64)
    with zipfile.ZipFile(made.path) as archive:
        assert b"Tag: cp38-abi3-manylinux_2_28_aarch64\n" in archive.read(f"{INFO}/WHEEL")


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """The real thing: a file size limit that the kernel enforces, in a process of its own."""
    code = (
        "import resource, signal, sys, pathlib\n"
        "from tests.support import artifacts\n"
        "from imagebuild.errors import StorageError\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "artifacts.official(folder / 'in')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        "artifacts.official = lambda folder: folder / 'official'\n"
        "try:\n"
        "    getattr(artifacts, sys.argv[2])(folder)\n"
        "except StorageError as error:\n"
        "    print(error.summary)\n"
    )
    for what in ("wheel", "layer"):
        folder = tmp_path / what
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), what],
            capture_output=True,
            text=True,
            check=False,
            cwd=artifacts.ROOT,
        )
        assert done.stdout == "the disk is full\n", done.stderr
        assert_nothing_written(folder)


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        write_wheel(
            artifacts.official(tmp_path / "in"),
            patchset(),
            artifacts.line(),
            AMD64,
            tmp_path / "file" / "dist",
            epoch=EPOCH,
            progress=Silent(),
        )


def test_a_killed_writer_leaves_nothing_under_a_final_name(tmp_path: Path) -> None:
    """Killed while it waits for its progress receiver, half-way through the members."""
    code = (
        "import contextlib, pathlib, sys, time\n"
        "from tests.support import artifacts\n"
        "class Slow:\n"
        "    @contextlib.contextmanager\n"
        "    def step(self, verb, what, total=None):\n"
        "        def done(count):\n"
        "            print('writing', flush=True)\n"
        "            time.sleep(600)\n"
        "        yield done\n"
        "    def note(self, text): pass\n"
        "artifacts.Silent = Slow\n"
        "getattr(artifacts, sys.argv[2])(pathlib.Path(sys.argv[1]))\n"
    )
    for what in ("wheel", "layer"):
        folder = tmp_path / what
        folder.mkdir()
        command = [sys.executable, "-c", code, str(folder), what]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=artifacts.ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"writing\n"
            process.send_signal(signal.SIGKILL)
        names = [path.name for path in folder.iterdir() if path.name != "in"]
        assert all(name.startswith(".") and name.endswith(".tmp") for name in names)
        getattr(artifacts, what)(folder)
        assert len([p for p in folder.iterdir() if not p.name.startswith(".")]) == 2


ENVIRONMENTS = [
    {"TZ": "Pacific/Kiritimati", "LANG": "C", "PYTHONHASHSEED": "1", "umask": "077"},
    {"TZ": "America/St_Johns", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "4242", "umask": "000"},
]


def test_wheel_and_layer_are_the_same_everywhere(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Other folder, umask, time zone, locale, hash seed, order of files, time of day, Python."""
    line = artifacts.line()
    files = patchset(patched(), new("vllm/a.py"), new("vllm/ü.py"), new(f"vllm/{'long/' * 30}x.py"))
    ours = artifacts.wheel(tmp_path / "here", files)
    layer = artifacts.layer(tmp_path / "here", files)
    expected = f"{sha256_file(ours)} {layer.digest} {layer.diff_id}\n"
    order = {
        "official": str(tmp_path / "here" / "in" / "official"),
        "wheel": line.wheel(AMD64).name,
        "epoch": EPOCH,
        "vouched": artifacts.VOUCHED,
        "line": {
            key: getattr(line, key)
            for key in ("version", "local_version", "tag", "python", "site_packages")
        },
    }
    described = [
        {"path": f.path, "data": f.data.hex(), "before": f.before, "origin": f.origin}
        for f in files.files
    ]
    pythons = artifacts.pythons()
    record_property("pythons", ", ".join(sorted(pythons)))
    for number, (version, python) in enumerate(sorted(pythons.items()) * 2):
        folder = tmp_path / f"{version}-{number}"
        folder.mkdir()
        turned = described if number % 2 else described[::-1]
        (folder / "order.json").write_text(json.dumps(order | {"files": turned}))
        changed = dict(ENVIRONMENTS[number % 2])
        umask = int(changed.pop("umask"), 8)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(artifacts.ROOT)} | changed
        done = subprocess.run(
            [
                *(str(python), "-m", "tests.support.determinism"),
                *(str(folder / "order.json"), str(folder / "out")),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
            umask=umask,
        )
        assert done.returncode == 0, f"{version}: {done.stderr}"
        assert done.stdout == expected, f"Python {version} in {changed}"
    others = set(pythons) - {artifacts.HERE}
    print(f"the same under Python {', '.join(sorted(pythons))}")  # noqa: T201
    assert others or not list(Path.home().glob(".pyenv/versions/3.1[123].*")), "no second Python"


def test_a_produced_executable_stays_executable(tmp_path: Path) -> None:
    binary = next(name for name in WHEEL_ONLY if name.endswith(".so"))
    data = WHEEL_ONLY[binary]
    file = replace(patched(), path=binary, data=b"new", before=sha256_bytes(data))
    with zipfile.ZipFile(write(tmp_path, patchset(file))) as archive:
        assert archive.getinfo(binary).external_attr >> 16 == 0o100755


def test_an_unpinned_platform_is_an_error() -> None:
    line = msgspec.structs.replace(artifacts.line(), wheels={})
    with pytest.raises(UnpinnedError):
        distinfo.wheel_name(line, AMD64)
