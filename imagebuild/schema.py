"""Reading TOML into frozen, self-checking values.

Unknown keys, wrong types and bad digests are errors that name the file and the place in it. A file
that carries a `schema` number higher than this code knows is refused by that fact alone.
"""

from __future__ import annotations

import stat
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from imagebuild import digest
from imagebuild.errors import LockError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

_LIMIT = 8 << 20
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device"}

Text = Annotated[str, msgspec.Meta(min_length=1, pattern=r"\S")]
Hash = Annotated[str, msgspec.Meta(pattern=digest.PATTERN)]
ImageDigest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Commit = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]
CommitPrefix = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{7,40}\Z")]
Version = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)*([.-]?(a|b|rc|post|dev)[0-9]+)*\Z")
]
FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*\Z")]


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """Base of everything that is read from a TOML file of this project."""


def _unreadable(path: Path, what: str, found: str) -> LockError:
    return LockError(
        f"{what} cannot be read",
        file=path,
        expected=f"a readable regular file of at most {_LIMIT >> 20} MiB",
        found=found,
        next_command=f"git status -- {path}",
    )


def read_bytes(path: Path, what: str) -> bytes:
    """Return the content of `path`, a regular file of at most 8 MiB.

    Raises:
        LockError: if it is missing, unreadable or another thing; `what` says what the file is.
    """
    try:
        status = path.stat()
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG and status.st_size <= _LIMIT:
            return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, what, error.strerror or type(error).__name__) from error
    raise _unreadable(path, what, _KINDS.get(kind, f"{status.st_size} bytes"))


def parse_toml(data: bytes, path: Path, what: str) -> dict[str, Any]:
    """Return `data` as a TOML document.

    Raises:
        LockError: if it is not UTF-8 or not TOML, with the line.
    """
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # tomllib lets int()'s own ValueError through
        raise LockError(
            f"{what} is not TOML",
            file=path,
            expected="a TOML document in UTF-8",
            found=error,
            next_command=f"git diff -- {path}",
        ) from error


def convert(document: object, kind: type[T], path: Path, what: str) -> T:
    """Return `document` as a value of type `kind`.

    Raises:
        LockError: on an unknown key, a missing key or a value of the wrong form.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise LockError(
            f"{what} does not have the form it must have",
            file=path,
            expected=f"the keys and types of {kind.__name__} (docs/formats.md)",
            found=error,
            next_command=f"git diff -- {path}",
        ) from error


def check_schema(document: dict[str, Any], supported: int, path: Path, what: str) -> None:
    """Refuse a document whose `schema` number is not the supported one.

    Raises:
        LockError: if the number is missing, lower or higher.
    """
    found = document.get("schema")
    if found == supported and not isinstance(found, bool):
        return
    newer = isinstance(found, int) and found > supported
    raise LockError(
        f"{what} has a newer schema than this tool knows"
        if newer
        else f"{what} has no schema that this tool knows",
        file=path,
        expected=f"schema = {supported}",
        found="no schema" if found is None else f"schema = {found}",
        next_command="git pull" if newer else f"git log --oneline -- {path}",
    )
