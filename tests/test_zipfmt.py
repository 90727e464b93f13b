"""Zip archives: read strictly, copied without recompressing, written the same everywhere."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagebuild.artifacts import zipdir, zipwrite
from imagebuild.artifacts.zipdir import END64
from imagebuild.artifacts.zipfmt import open_zip
from imagebuild.artifacts.zipwrite import ZipWriter, dos_time
from imagebuild.digest import sha256_file
from imagebuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = b"some text\n" * 500
CENTRAL, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"


def made(*names: str, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in names or ("a.txt", "b/c.txt"):
            archive.writestr(zipfile.ZipInfo(name), TEXT, method)
    return buffer.getvalue()


def changed(data: bytes, marker: bytes, offset: int, form: str, value: int) -> bytes:
    """Return `data` with one field of the first header that `marker` begins."""
    place = data.index(marker) + offset
    return data[:place] + struct.pack(form, value) + data[place + struct.calcsize(form) :]


def renamed(name: bytes, data: bytes | None = None) -> bytes:
    """Return an archive whose member `aaaaa` has the five-byte name `name` in both headers."""
    assert len(name) == 5
    return (made("aaaaa") if data is None else data).replace(b"aaaaa", name)


def linked(mode: int) -> bytes:
    return changed(changed(made(), CENTRAL, 38, "<I", mode << 16), CENTRAL, 5, "<B", 3)


def overlapping() -> bytes:
    """Both entries of the directory lead to the first member's data."""
    data = made("a.txt", "b.txt", method=zipfile.ZIP_STORED)
    second = data.rindex(CENTRAL) + 42
    return data[:second] + struct.pack("<I", 0) + data[second + 4 :]


def twice() -> bytes:
    return made("aaaaa", "bbbbb").replace(b"bbbbb", b"aaaaa")


BROKEN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "not_a_zip": lambda: b"plain text, nothing else, long enough for an end record",
    "cut_short": lambda: made()[:-30],
    "prefix": lambda: b"#!/bin/sh\n" + made(),
    "suffix": lambda: made() + b"more",
    "comment": lambda: made()[:-2] + b"\x04\x00more",
    "absolute": lambda: renamed(b"/etc/"[:4] + b"x"),
    "parent": lambda: renamed(b"../aa"),
    "parent_inside": lambda: renamed(b"a/../"),
    "dot": lambda: renamed(b"a/./b"),
    "backslash": lambda: renamed(b"..\\aa"),
    "nul": lambda: renamed(b"aa\0aa"),
    "newline": lambda: renamed(b"aa\naa"),
    "folder": lambda: renamed(b"aaaa/"),
    "not_utf8": lambda: renamed(b"aa\xff\xfea"),
    "utf8_undeclared": lambda: renamed("aäbc".encode()),
    "twice": twice,
    "overlap": overlapping,
    "file_and_folder": lambda: made("a", "a/b"),
    "link": lambda: linked(0o120777),
    "device": lambda: linked(0o020644),
    "encrypted": lambda: changed(made(), CENTRAL, 8, "<H", 1),
    "method_bzip2": lambda: made(method=zipfile.ZIP_BZIP2),
    "bomb_declared": lambda: changed(made(), CENTRAL, 24, "<I", 0xFFFFFFF0),
    "stored_with_two_sizes": lambda: changed(
        made(method=zipfile.ZIP_STORED), CENTRAL, 24, "<I", 4999
    ),
    "local_name_differs": lambda: made("aaaaa").replace(b"aaaaa", b"bbbbb", 1),
    "local_size_differs": lambda: changed(made(), LOCAL, 22, "<I", 1),
    "local_method_differs": lambda: changed(made(), LOCAL, 8, "<H", 0),
    "gap": lambda: changed(made(), CENTRAL, 42, "<I", 7),
    "member_count": lambda: changed(changed(made(), END, 8, "<H", 1), END, 10, "<H", 1),
    "second_disk": lambda: changed(made(), END, 4, "<H", 1),
    "directory_elsewhere": lambda: changed(made(), END, 16, "<I", 3),
    "directory_huge": lambda: changed(made(), END, 12, "<I", 0xFFFFFF00),
    "extra_field_cut": lambda: changed(made(), CENTRAL, 30, "<H", 3),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_no_honest_wheel_does_is_refused(fault: str, tmp_path: Path) -> None:
    path = tmp_path / f"{fault}.whl"
    path.write_bytes(BROKEN[fault]())
    with pytest.raises(ArchiveError) as raised, open_zip(path):
        pass
    assert raised.value.file == str(path)
    assert raised.value.expected
    assert raised.value.found
    assert raised.value.next_command


def test_a_missing_archive_is_an_archive_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot be read"), open_zip(tmp_path / "none.whl"):
        pass


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_content_is_what_was_written(method: int, tmp_path: Path) -> None:
    path = tmp_path / "good.whl"
    path.write_bytes(made(method=method))
    with open_zip(path) as archive:
        assert list(archive.members) == ["a.txt", "b/c.txt"]
        assert archive.read(archive.members["b/c.txt"]) == TEXT


def test_content_larger_than_a_piece_comes_whole(tmp_path: Path) -> None:
    large = bytes(5 << 20) + TEXT
    with zipfile.ZipFile(tmp_path / "large.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large", large)
    with open_zip(tmp_path / "large.whl") as read:
        pieces = list(read.content(read.members["large"]))
    assert max(map(len, pieces)) <= 1 << 20
    assert b"".join(pieces) == large


@pytest.mark.parametrize("signature", [True, False])
def test_data_descriptors_are_understood(signature: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Written to a stream that cannot seek, as some packers do."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:  # noqa: ANN401  (RawIOBase's)
            self.data += data
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", TEXT)
    data = bytes(pipe.data)
    assert b"PK\x07\x08" in data
    if not signature:
        data = data.replace(b"PK\x07\x08", b"")
        data = changed(data, END, 16, "<I", data.index(CENTRAL))
    (tmp_path / "piped.whl").write_bytes(data)
    with open_zip(tmp_path / "piped.whl") as read:
        assert read.read(read.members["a.txt"]) == TEXT


def test_zip64_records_are_understood(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "wide.whl", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.txt", "w", force_zip64=True) as member,
    ):
        member.write(TEXT)
    with open_zip(tmp_path / "wide.whl") as read:
        assert read.read(read.members["a.txt"]) == TEXT


def repeated(sizes: tuple[int, int]) -> bytes:
    """Return an archive whose local header has a zip64 field beside sizes that fit."""
    data = bytearray(made("a.txt"))
    body = struct.pack("<2H2Q", 1, 16, *sizes)
    data[35:35] = body
    data[28:30] = struct.pack("<H", len(body))
    end = data.rindex(b"PK\x05\x06")
    start = struct.unpack_from("<I", data, end + 16)[0]
    data[end + 16 : end + 20] = struct.pack("<I", start + len(body))
    return bytes(data)


def test_a_zip64_field_may_repeat_sizes_that_fit(tmp_path: Path) -> None:
    plain = made("a.txt")
    compressed, size = struct.unpack_from("<2I", plain, 18)
    (tmp_path / "same.whl").write_bytes(repeated((size, compressed)))
    with open_zip(tmp_path / "same.whl") as read:
        assert read.members["a.txt"].size == size
    (tmp_path / "other.whl").write_bytes(repeated((size + 1, compressed)))
    with pytest.raises(ArchiveError, match="zip64"), open_zip(tmp_path / "other.whl"):
        pass


@pytest.mark.parametrize("limit", [0, 10, 2000])
def test_zip64_records_are_written(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the 32-bit limit lowered, since four gigabytes take long; the reader knows no trick.

    A lowered limit makes fields wide that need not be; their short forms then hold `LIMIT32`.
    """
    monkeypatch.setattr(zipwrite, "_WIDE", limit)
    path = tmp_path / "wide.whl"
    with path.open("wb") as file:
        writer = ZipWriter(file, 0)
        for number in range(3):
            writer.store(f"{number}.txt", TEXT)
        writer.finish()
    with open_zip(path) as read:
        assert [read.read(member) for member in read.members.values()] == [TEXT] * 3
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_a_flipped_byte_is_found_when_read(tmp_path: Path) -> None:
    data = bytearray(made(method=zipfile.ZIP_STORED))
    data[data.index(b"some text")] ^= 1
    (tmp_path / "flipped.whl").write_bytes(data)
    with open_zip(tmp_path / "flipped.whl") as archive:
        with pytest.raises(ArchiveError, match=r"a\.txt is damaged"):
            archive.read(archive.members["a.txt"])
        assert archive.read(archive.members["b/c.txt"]) == TEXT


def test_damaged_deflate_data_are_found_when_read(tmp_path: Path) -> None:
    data = bytearray(made())
    data[len(LOCAL) + 26 + len("a.txt")] = 0xFF
    (tmp_path / "flipped.whl").write_bytes(data)
    with (
        open_zip(tmp_path / "flipped.whl") as archive,
        pytest.raises(ArchiveError, match=r"a\.txt is not deflate data"),
    ):
        archive.read(archive.members["a.txt"])


def test_a_bomb_stops_at_the_declared_size(tmp_path: Path) -> None:
    """A member that inflates to 64 MiB and says 1,000 bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("bomb", bytes(64 << 20))
    data = changed(buffer.getvalue(), CENTRAL, 24, "<I", 1000)
    (tmp_path / "bomb.whl").write_bytes(changed(data, LOCAL, 22, "<I", 1000))
    with open_zip(tmp_path / "bomb.whl") as archive:
        pieces = archive.content(archive.members["bomb"])
        with pytest.raises(ArchiveError, match="larger than declared"):
            next(pieces)


def test_a_large_member_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "good.whl").write_bytes(made())
    with (
        open_zip(tmp_path / "good.whl") as archive,
        pytest.raises(ArchiveError, match="too large"),
    ):
        archive.read(archive.members["a.txt"], limit=100)


def test_a_copied_member_keeps_its_compressed_bytes(tmp_path: Path) -> None:
    (tmp_path / "old.whl").write_bytes(made())
    with open_zip(tmp_path / "old.whl") as old, (tmp_path / "new.whl").open("wb") as file:
        writer = ZipWriter(file, 1793614376)
        for member in old.members.values():
            writer.copy(member, old.raw(member))
        writer.store("ü.py", b"x = 1\n", executable=True)
        digest = writer.finish()
        raw = {name: b"".join(old.raw(member)) for name, member in old.members.items()}
    assert digest == sha256_file(tmp_path / "new.whl")
    with open_zip(tmp_path / "new.whl") as new:
        assert {n: b"".join(new.raw(m)) for n, m in new.members.items() if n != "ü.py"} == raw
        assert new.members["ü.py"].executable
    with zipfile.ZipFile(tmp_path / "new.whl") as archive:
        assert archive.testzip() is None
        assert archive.read("ü.py") == b"x = 1\n"
        assert {info.date_time for info in archive.infolist()} == {(2026, 11, 2, 10, 12, 56)}
        assert {info.create_system for info in archive.infolist()} == {3}


@pytest.mark.parametrize(
    ("epoch", "date"),
    [
        (0, (1980, 1, 1)),
        (315532799, (1980, 1, 1)),
        (1793614376, (2026, 11, 2)),
        (9e9, (2107, 12, 31)),
    ],
)
def test_times_stay_within_what_dos_can_say(epoch: int, date: tuple[int, int, int]) -> None:
    _, day = dos_time(int(epoch))
    assert (1980 + (day >> 9), day >> 5 & 15, day & 31) == date


def test_the_ratio_bound_is_deflates_own() -> None:
    """Zeroes are what deflate does best on; even they stay below the bound."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("zeroes", bytes(16 << 20))
        info = archive.getinfo("zeroes")
    assert 1000 < info.file_size / info.compress_size < zipdir._MAX_RATIO


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good archive with some bytes set, cut out or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["set", "wide", "cut", "add"])):
            case "set":
                data[place] = draw(st.integers(0, 255))
            case "wide":
                data[place : place + 4] = draw(st.binary(min_size=4, max_size=4))
            case "cut" if len(data) > 1:
                del data[place]
            case _:
                data[place:place] = draw(st.binary(max_size=4))
    return bytes(data)


def wide() -> bytes:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w") as archive,
        archive.open("a.txt", "w", force_zip64=True) as member,
    ):
        member.write(b"text")
    data = buffer.getvalue()
    end = END64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(data) - 22 - data.index(CENTRAL), 0)
    place = data.index(CENTRAL)
    end = end[:48] + struct.pack("<Q", place)
    return (
        data[:-22] + end + struct.pack("<4sIQI", b"PK\x06\x07", 0, len(data) - 22, 1) + data[-22:]
    )


SEEDS = [made(), made(method=zipfile.ZIP_STORED), wide()]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_seeds_of_the_fuzzing_are_good(seed: bytes, tmp_path: Path) -> None:
    (tmp_path / "seed.whl").write_bytes(seed)
    with open_zip(tmp_path / "seed.whl") as archive:
        assert archive.members


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=mutated())
def test_nothing_but_an_archive_error_comes_of_garbage(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "fuzzed.whl"
    path.write_bytes(data)
    with contextlib.suppress(ArchiveError), open_zip(path) as archive:
        for member in archive.members.values():
            archive.read(member)
