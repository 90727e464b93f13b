"""SHA-256 digests as values."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from pathlib import Path

Sha256 = NewType("Sha256", str)
"""Sixty-four lower-case hexadecimal digits."""

PATTERN = r"^[0-9a-f]{64}\Z"
_CHUNK = 1 << 20


def parse_sha256(text: str) -> Sha256:
    """Return `text` as a digest, with or without the prefix `sha256:`.

    Raises:
        ValueError: if it is not sixty-four lower-case hexadecimal digits.
    """
    bare = text.removeprefix("sha256:")
    if re.fullmatch(PATTERN, bare) is None:
        raise ValueError(f"not a SHA-256 digest: {text!r}")
    return Sha256(bare)


def sha256_bytes(data: bytes | memoryview) -> Sha256:
    """Return the digest of `data`."""
    return Sha256(hashlib.sha256(data).hexdigest())


def sha256_file(path: Path) -> Sha256:
    """Return the digest of a file's content, read in pieces of 1 MiB.

    Raises:
        OSError: if the file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return Sha256(digest.hexdigest())
