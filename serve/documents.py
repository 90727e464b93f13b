"""Reading the JSON documents that serving writes for itself: of one type and one schema number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagebuild.errors import BuildError


class _Numbered(Protocol):
    @property
    def schema(self) -> int:
        """The format's number."""


D = TypeVar("D", bound=_Numbered)


def load(path: Path, kind: type[D], schema: int, refused: Callable[[str], BuildError]) -> D:
    """Return the document in a file.

    Args:
        path: the file.
        kind: the document's type.
        schema: the number that it must carry.
        refused: makes the error from what was found instead.

    Raises:
        BuildError: the one that `refused` makes.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise refused(str(error)) from error
    if found.schema != schema:
        raise refused(f"schema {found.schema}")
    return found
