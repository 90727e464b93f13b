"""`RECORD`: the list of an installed distribution's files.

The format: packaging.python.org, "Recording installed projects", and PEP 376: CSV rows of path,
`sha256=` with unpadded URL-safe base64, size; both empty where the content cannot be vouched for.
"""

from __future__ import annotations

import base64
import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIELDS = 3
_DIGEST_SIZE = 32


@dataclass(frozen=True)
class Row:
    """One file.

    Attributes:
        path: relative to the folder that holds the dist-info.
        sha256: the digest of the content, or None.
        size: its size in bytes, or None.
    """

    path: str
    sha256: Sha256 | None = None
    size: int | None = None


def row_of(path: str, data: bytes) -> Row:
    """Return the row of a file with the content `data`."""
    return Row(path, sha256_bytes(data), len(data))


def dump(rows: Iterable[Row]) -> bytes:
    """Return the file's content; rows stay in the given order, lines end in LF."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        size = "" if row.size is None else str(row.size)
        writer.writerow((row.path, "" if row.sha256 is None else _encode(row.sha256), size))
    return text.getvalue().encode()


def parse(data: bytes, where: str) -> dict[str, Row]:
    """Return the rows by path, in their order; `where` names the file for messages.

    Raises:
        ArchiveError: if it is not a RECORD, or names a file twice.
    """
    rows: dict[str, Row] = {}
    try:
        for fields in csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True):
            row = _row(fields)
            if row.path in rows:
                raise ValueError(f"{row.path} twice")  # noqa: TRY301
            rows[row.path] = row
    except (ValueError, csv.Error) as error:
        raise ArchiveError(
            "RECORD cannot be read",
            file=where,
            expected="rows of path, sha256=digest, size",
            found=error,
            next_command="get the file again; its digest says whether it is damaged",
        ) from error
    return rows


def _row(fields: list[str]) -> Row:
    if len(fields) != _FIELDS or not fields[0]:
        raise ValueError(f"not three fields: {fields!r}"[:200])
    path, digest, size = fields
    return Row(path, _decode(digest) if digest else None, int(size) if size else None)


def _encode(digest: Sha256) -> str:
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()


def _decode(text: str) -> Sha256:
    name, _, value = text.partition("=")
    raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    digest = Sha256(raw.hex())
    if name != "sha256" or len(raw) != _DIGEST_SIZE or _encode(digest) != text:
        raise ValueError(f"not a SHA-256 in RECORD's form: {text!r}"[:200])
    return digest
