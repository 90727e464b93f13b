"""`release.lock`: what was published, by digest, so that anybody can make it again and compare."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import msgspec

from imagebuild import files, schema
from imagebuild.schema import Commit, FileName, Hash, ImageDigest, Text, Value
from imagebuild.upstream import LineName, Platform

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
NAME = "release.lock"
_HEAD = """\
# What was published, by digest; `python build.py build --push REF --record` adds an entry, and
# `python build.py reproduce` makes each again and compares.
"""


class Wheel(Value, frozen=True):
    """A published wheel."""

    name: FileName
    sha256: Hash


class Published(Value, frozen=True):
    """One published release.

    Attributes:
        line: the line's name.
        version: the version, with its local part.
        date: when it was published.
        revision: the commit of this project that it was made from.
        ref: the tag under which it was pushed.
        digest: the digest that the tag led to.
        platforms: the digest of each platform's image.
        wheels: each platform's wheel, as far as published.
        attestations: the digests of provenance and SBOMs, by platform and kind.
    """

    line: LineName
    version: Text
    date: dt.date
    revision: Commit
    ref: Annotated[str, msgspec.Meta(pattern=r"^[^\s@]+:[A-Za-z0-9_.-]+\Z")]
    digest: ImageDigest
    platforms: dict[Platform, ImageDigest]
    wheels: dict[Platform, Wheel] = msgspec.field(default_factory=dict)
    attestations: dict[str, ImageDigest] = msgspec.field(default_factory=dict)

    @property
    def repository(self) -> str:
        """The reference without its tag."""
        return self.ref.rsplit(":", 1)[0]


class ReleaseLock(Value, frozen=True):
    """The whole file.

    Attributes:
        schema: the format's number.
        releases: what was published, the newest last.
    """

    schema: int
    releases: tuple[Published, ...] = ()


def load(path: Path) -> ReleaseLock:
    """Return the lock in the file `path`.

    Raises:
        LockError: on anything but a well-formed lock of this schema.
    """
    document = schema.parse_toml(schema.read_bytes(path, NAME), path, NAME)
    schema.check_schema(document, SCHEMA, path, NAME)
    return schema.convert(document, ReleaseLock, path, NAME)


def dump(lock: ReleaseLock) -> bytes:
    """Return the file's bytes; the same value gives the same bytes."""
    import tomli_w  # noqa: PLC0415  (kept out of start-up)

    plain = msgspec.to_builtins(lock, builtin_types=(dt.date,))
    return (_HEAD + tomli_w.dumps(plain)).encode()


def record(path: Path, entry: Published) -> None:
    """Add an entry; the same reference is not recorded twice.

    Raises:
        LockError: if the file is malformed.
        StorageError: if it cannot be written.
    """
    known = load(path)
    kept = tuple(old for old in known.releases if old.ref != entry.ref)
    files.write_atomic(path, dump(ReleaseLock(schema=SCHEMA, releases=(*kept, entry))))
