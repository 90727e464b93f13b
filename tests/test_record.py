"""RECORD: written as pip writes it, read strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuild.artifacts import record
from imagebuild.artifacts.record import Row
from imagebuild.errors import ArchiveError

PATHS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1, max_size=40)


def test_a_row_is_written_as_the_specification_says() -> None:
    row = record.row_of("vllm/x.py", b"text")
    digest = "mC2ePrmW9VnmM_TRlN7zdh2Qn1o7ZH0ahR_q1nwyydE"
    assert record.dump([row]) == f"vllm/x.py,sha256={digest},4\n".encode()


def test_a_file_that_nobody_vouches_for_has_empty_fields() -> None:
    assert record.dump([Row("vllm/x.so")]) == b"vllm/x.so,,\n"


@given(st.lists(st.tuples(PATHS, st.none() | st.binary(max_size=9)), unique_by=lambda row: row[0]))
def test_what_is_written_is_read_back(files: list[tuple[str, bytes | None]]) -> None:
    rows = [Row(path) if data is None else record.row_of(path, data) for path, data in files]
    assert list(record.parse(record.dump(rows), "RECORD").values()) == rows


@pytest.mark.parametrize(
    "data",
    [
        *(b"a\n", b"a,b,c,d\n", b",,\n", b"a,,\na,,\n", b"\xff,,\n", b'"a,,\n'),
        *(b"a,md5=abc,1\n", b"a,sha256=abc,1\n", b"a,sha256=" + b"A" * 44 + b",1\n", b"a,,x\n"),
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveError, match="RECORD"):
        record.parse(data, "RECORD")


@given(st.binary(max_size=100))
def test_nothing_but_an_archive_error_comes_of_garbage(data: bytes) -> None:
    try:
        record.parse(data, "RECORD")
    except ArchiveError as error:
        assert error.file == "RECORD"  # noqa: PT017  (an error is one of two right outcomes)
