"""Source archives as untrusted input: each bad one is broken in one way."""

from __future__ import annotations

import gzip
import tarfile
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebuild.digest import sha256_bytes
from imagebuild.errors import ArchiveError, SourceError
from imagebuild.fetch.archive import Limits, Member, SourceArchive
from tests.support.tarballs import GOOD, PROGRAM, TOP, entry, good, pack, sdist, tar

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = tarfile.BLOCKSIZE


def read(path: Path, limits: Limits = Limits()) -> dict[Member, bytes]:  # noqa: B008  (frozen)
    with SourceArchive(path, limits) as archive:
        return {member: b"".join(content) for member, content in archive.members()}


def refuse(tmp_path: Path, data: bytes, limits: Limits = Limits()) -> ArchiveError:  # noqa: B008
    path = tmp_path / "vllm-1.2.3.tar.gz"
    path.write_bytes(data)
    with pytest.raises(ArchiveError) as caught:
        read(path, limits)
    assert str(path) in str(caught.value.file)
    assert caught.value.next_command is not None
    caught.value.diagnostics().encode("utf-8")
    return caught.value


def with_member(*more: tuple[tarfile.TarInfo, bytes]) -> bytes:
    return pack(tar([*good(), *more]))


def test_a_good_archive_gives_its_files_under_the_top_folder(tmp_path: Path) -> None:
    path = tmp_path / "good.tar.gz"
    path.write_bytes(sdist())
    found = read(path)
    assert {member.path: data for member, data in found.items()} == GOOD
    assert [member.path for member in found if member.executable] == [PROGRAM]
    assert all(member.size == len(data) for member, data in found.items())


def test_the_packed_file_is_hashed_in_the_same_pass_even_if_no_content_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "good.tar.gz"
    path.write_bytes(sdist())
    with SourceArchive(path) as archive:
        for _ in archive.members():
            pass
        assert archive.sha256 == sha256_bytes(sdist())
        assert archive.top == TOP


def test_an_archive_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        read(tmp_path / "nothing.tar.gz")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/etc/passwd", "an absolute path"),
        (f"{TOP}/../../etc/passwd", "`..`"),
        (f"{TOP}/..", "`..`"),
        (f"{TOP}/./a", "`.`"),
        (f"{TOP}//a", "empty"),
        (f"{TOP}/.git/hooks/post-checkout", ".git"),
        (f"{TOP}/vllm/.GIT/config", ".git"),
        (f"{TOP}/a\nb", "control character"),
        (f"{TOP}/a\x1b[2Jb", "control character"),
        (f"{TOP}/{'a' * 256}", "longer than 255 bytes"),
        (f"{TOP}/{'é' * 128}", "longer than 255 bytes"),
        (f"{TOP}/{'a/' * 600}a", "longer than 1024 characters"),
    ],
)
def test_a_name_that_no_source_archive_has_is_refused(
    tmp_path: Path, name: str, found: str
) -> None:
    error = refuse(tmp_path, with_member(entry(name, b"x")))
    assert found in str(error.found)


@pytest.mark.parametrize("path", [b"caf\xe9.py", b"\xff\xfe"])
def test_a_name_that_is_not_utf_8_is_refused_and_shown_escaped(tmp_path: Path, path: bytes) -> None:
    info, data = entry(f"{TOP}/placeholder", b"x")
    raw = info.tobuf(tarfile.USTAR_FORMAT)
    name = TOP.encode() + b"/" + path
    header = bytearray(name + raw[len(name) :])
    header[len(name) : 100] = b"\0" * (100 - len(name))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    plain = tar(good())[: -2 * BLOCK] + bytes(header) + data.ljust(BLOCK, b"\0") + b"\0" * 1024
    error = refuse(tmp_path, pack(plain))
    assert error.found == "bytes that are not UTF-8"
    assert "\\xe9" in str(error.file) or "\\xff" in str(error.file) or "\\udc" in str(error.file)


def test_a_name_that_is_not_utf_8_in_an_extended_header_is_refused(tmp_path: Path) -> None:
    name = f"{TOP}/{'a' * 120}\udce9"
    error = refuse(tmp_path, with_member(entry(name, b"x")))
    assert error.found == "bytes that are not UTF-8"


@pytest.mark.parametrize(
    ("kind", "link", "found"),
    [
        (tarfile.SYMTYPE, "../../../etc/passwd", "a symbolic link to ../../../etc/passwd"),
        (tarfile.SYMTYPE, "/etc/passwd", "a symbolic link to /etc/passwd"),
        (tarfile.SYMTYPE, "setup.py", "a symbolic link to setup.py"),
        (tarfile.LNKTYPE, "/etc/shadow", "a hard link to /etc/shadow"),
        (tarfile.LNKTYPE, f"{TOP}/setup.py", f"a hard link to {TOP}/setup.py"),
        (tarfile.CHRTYPE, "", "a character device"),
        (tarfile.BLKTYPE, "", "a block device"),
        (tarfile.FIFOTYPE, "", "a named pipe"),
        (tarfile.CONTTYPE, "", "type"),
        (tarfile.GNUTYPE_SPARSE, "", "sparse"),
    ],
)
def test_everything_but_files_and_folders_is_refused(
    tmp_path: Path, kind: bytes, link: str, found: str
) -> None:
    error = refuse(tmp_path, with_member(entry(f"{TOP}/vllm/odd", kind=kind, link=link)))
    assert found in str(error.found)
    assert f"{TOP}/vllm/odd" in str(error.file)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("setup.py", tarfile.REGTYPE, "a name that comes once"),
        ("SETUP.py", tarfile.REGTYPE, "a name that comes once"),
        ("vllm", tarfile.REGTYPE, "a file or a folder, not both"),
        ("setup.py", tarfile.DIRTYPE, "a file or a folder, not both"),
        ("setup.py/inside", tarfile.REGTYPE, "a file or a folder, not both"),
        ("VLLM/inside", tarfile.REGTYPE, "names that differ in more than case"),
        ("vllm/model/e\u0301.py", tarfile.REGTYPE, "a name that comes once"),
    ],
)
def test_two_members_for_one_place_are_refused(
    tmp_path: Path, name: str, kind: bytes, expected: str
) -> None:
    error = refuse(tmp_path, with_member(entry(f"{TOP}/{name}", kind=kind)))
    assert error.expected == expected


@pytest.mark.parametrize("name", ["other-1.0/setup.py", "setup.py"])
def test_a_member_outside_the_one_top_folder_is_refused(tmp_path: Path, name: str) -> None:
    error = refuse(tmp_path, with_member(entry(name, b"x")))
    assert error.expected == f"everything in the one folder {TOP}/"


def test_a_member_with_an_absurd_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    error = refuse(tmp_path, with_member(entry(f"{TOP}/huge", size=1 << 62)))
    assert error.found == f"{1 << 62} bytes"


def test_a_member_bigger_than_allowed_is_refused(tmp_path: Path) -> None:
    limits = Limits(member=len(GOOD["vllm/big.bin"]) - 1)
    assert "vllm/big.bin" in str(refuse(tmp_path, sdist(), limits).file)


def test_more_members_than_allowed_are_refused(tmp_path: Path) -> None:
    count = len(good())
    assert refuse(tmp_path, sdist(), Limits(members=count - 1)).expected == (
        f"at most {count - 1} members"
    )


def test_an_archive_bigger_than_allowed_is_refused(tmp_path: Path) -> None:
    assert "unpacked" in str(refuse(tmp_path, sdist(), Limits(total=1_000_000)).expected)


def test_a_compression_bomb_ends_at_the_limit_and_takes_no_memory(tmp_path: Path) -> None:
    bomb = tar([entry(f"{TOP}/bomb", bytes(64 << 20))])
    limits = Limits(total=32 << 20)
    packed = pack(bomb)
    assert len(packed) < 400_000
    del bomb
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(packed)
    tracemalloc.start()
    with SourceArchive(path, limits) as archive, pytest.raises(ArchiveError) as caught:
        list(archive.members())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.expected == f"at most {32 << 20} bytes unpacked"
    assert peak < 8 << 20


def test_an_extended_header_of_absurd_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    header = entry("pax", kind=tarfile.XHDTYPE, size=1 << 30)[0].tobuf(tarfile.USTAR_FORMAT)
    assert "headers of at most" in str(refuse(tmp_path, pack(header + bytes(4096))).expected)


def test_a_chain_of_extended_headers_without_end_is_refused(tmp_path: Path) -> None:
    record = b"13 comment=x\n"
    header = entry("pax", kind=tarfile.XHDTYPE, size=len(record))[0].tobuf(tarfile.USTAR_FORMAT)
    record = record.ljust(BLOCK, b"\0")
    assert "RecursionError" in str(refuse(tmp_path, pack((header + record) * 3000)).found)


@pytest.mark.parametrize("keep", [0, 5, 1000, -9, -1])
def test_a_truncated_archive_is_refused(tmp_path: Path, keep: int) -> None:
    data = sdist()[:keep] if keep >= 0 else sdist()[: len(sdist()) + keep]
    error = refuse(tmp_path, data)
    assert error.file is not None


def test_an_archive_cut_between_two_members_is_refused_though_its_gzip_is_whole(
    tmp_path: Path,
) -> None:
    error = refuse(tmp_path, pack(tar(good())[: -2 * BLOCK]))
    assert error.found == "the archive is cut short"
    assert "vllm/model/" in str(error.file)


def test_a_damaged_byte_of_the_packed_data_is_found(tmp_path: Path) -> None:
    data = bytearray(sdist())
    data[-6] ^= 1
    assert "gzip" in str(refuse(tmp_path, bytes(data)).expected)


def test_a_damaged_header_does_not_pass_for_the_end(tmp_path: Path) -> None:
    plain = bytearray(tar(good()))
    plain[plain.index(f"{TOP}/vllm/big.bin\0".encode())] ^= 1
    assert refuse(tmp_path, pack(bytes(plain))).found == "a damaged header"


def test_data_after_the_end_is_refused(tmp_path: Path) -> None:
    assert refuse(tmp_path, pack(tar(good()) + tar(good()))).found == "more data"


def test_something_after_the_gzip_data_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, sdist() + b"PK\x03\x04")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 12 * BLOCK), st.binary(min_size=1, max_size=12)),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_bytes_an_archive_holds_it_is_read_or_refused(
    tmp_path: Path, changes: list[tuple[int, bytes]]
) -> None:
    plain = bytearray(SMALL)
    for offset, data in changes:
        place = offset % len(plain)
        plain[place : place + len(data)] = data
    path = tmp_path / "fuzzed.tar.gz"
    path.write_bytes(gzip.compress(bytes(plain), 0))
    try:
        found = read(path)
    except ArchiveError as error:
        assert str(path) in str(error.file)  # noqa: PT017
    else:
        assert all(".." not in member.path.split("/") for member in found)


SMALL = tar(
    [
        entry(TOP, kind=tarfile.DIRTYPE),
        entry(f"{TOP}/a.py", b"a"),
        entry(f"{TOP}/{'long' * 30}.py", b"b"),
    ]
)
