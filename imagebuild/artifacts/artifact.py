"""Finished files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.digest import Sha256


@dataclass(frozen=True)
class Artifact:
    """A file that stands whole under its final name.

    Attributes:
        path: where it is.
        sha256: the digest of its content.
        size: its size in bytes.
    """

    path: Path
    sha256: Sha256
    size: int
