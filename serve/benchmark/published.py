"""Rows that others have published; drawn as theirs, never mixed with one's own."""

from __future__ import annotations

from pathlib import Path

from imagebuild import schema
from imagebuild.errors import LockError
from imagebuild.schema import Text, Value
from serve.errors import BenchmarkError

SCHEMA = 1
FILE = Path(__file__).parent / "published.toml"
_WHAT = "the table of published rows"


class Rate(Value, frozen=True, kw_only=True):
    """One published rate, in tokens a second, at a depth if one was told."""

    rate: float
    concurrency: int = 1
    depth: int | None = None


class Row(Value, frozen=True, kw_only=True):
    """One stack that somebody measured.

    Attributes:
        stack: model and software.
        family: the models that it can be compared with: `27b` or `35b-a3b`.
        decode: generated tokens of all requests.
        prefill: prompt tokens.
    """

    stack: Text
    family: Text
    decode: tuple[Rate, ...] = ()
    prefill: tuple[Rate, ...] = ()


class Document(Value, frozen=True, kw_only=True):
    """The file."""

    schema: int
    rows: tuple[Row, ...]


def rows(profile: str) -> tuple[Row, ...]:
    """Return the rows that a profile of this name can be compared with.

    Raises:
        BenchmarkError: if the file cannot be read.
    """
    try:
        document = schema.parse_toml(schema.read_bytes(FILE, _WHAT), FILE, _WHAT)
        schema.check_schema(document, SCHEMA, FILE, _WHAT)
        found = schema.convert(document, Document, FILE, _WHAT).rows
    except LockError as error:
        raise BenchmarkError(
            error.summary,
            file=error.file,
            expected=error.expected,
            found=error.found,
            next_command=error.next_command,
        ) from error
    return tuple(row for row in found if row.family in profile)
