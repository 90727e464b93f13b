"""`upstream.lock`: what each release line's upstream is, pinned by content."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from imagebuild import schema
from imagebuild.errors import LockError, UnpinnedError, UsageError
from imagebuild.patching.metadata import is_tree_path
from imagebuild.schema import (
    Commit,
    CommitPrefix,
    FileName,
    Hash,
    ImageDigest,
    Text,
    Value,
    Version,
)

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
WHAT = "upstream.lock"
REPOSITORY = "https://github.com/vllm-project/vllm"

_ZIP_EPOCH = 1980

Platform = Literal["linux/amd64", "linux/arm64"]
PLATFORMS: tuple[Platform, ...] = ("linux/amd64", "linux/arm64")
LineName = Annotated[str, msgspec.Meta(pattern=r"^v[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?\Z")]
ImageRef = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._/:-]*:[A-Za-z0-9_.-]+\Z")]
AbsolutePath = Annotated[str, msgspec.Meta(pattern=r"^(/[A-Za-z0-9._-]*[A-Za-z0-9_-])+\Z")]
ArchList = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]a?(;[0-9]+\.[0-9]a?)*\Z")]


class FilePin(Value, frozen=True):
    """One file of the package index.

    Attributes:
        name: its file name.
        sha256: the digest of its content.
    """

    name: FileName
    sha256: Hash


class DockerfilePin(Value, frozen=True):
    """Upstream's own Dockerfile, inside the sdist.

    Attributes:
        path: where it stands in the tree.
        sha256: the digest of its content.
    """

    path: Text
    sha256: Hash


class ImagePin(Value, frozen=True):
    """An image by a readable reference and the digest it resolved to.

    Attributes:
        ref: registry, repository and tag, for people.
        digest: the digest of the index (or of the manifest, for a single-platform image).
        platforms: the digest of each platform's manifest, as far as resolved.
    """

    ref: ImageRef
    digest: ImageDigest | None = None
    platforms: dict[Platform, ImageDigest] = msgspec.field(default_factory=dict)

    @property
    def repository(self) -> str:
        """The reference without its tag."""
        return self.ref.rsplit(":", 1)[0]


class Line(Value, frozen=True):
    """One release line.

    Attributes:
        summary: what the line is for, in one sentence.
        version: upstream's version.
        revision: the N of our local version `+sm120.N`; raised by hand with every published change.
        tag: upstream's git tag.
        commit_prefix: the abbreviated commit that the sdist's own `_version.py` names.
        commit: the whole commit id; absent until resolved.
        released: when the sdist was uploaded; the default of SOURCE_DATE_EPOCH.
        torch, flashinfer, cuda, python: versions that this release is built with.
        cuda_archs: `torch_cuda_arch_list` of the official target, per platform.
        site_packages: where the official image keeps vllm.
        sdist, wheels, dockerfile, image, bases: pinned content.
    """

    summary: Text
    version: Version
    revision: Annotated[int, msgspec.Meta(ge=1)]
    tag: Text
    commit_prefix: CommitPrefix
    released: dt.datetime
    torch: Version
    flashinfer: Version
    cuda: Version
    python: Annotated[str, msgspec.Meta(pattern=r"^3\.[0-9]+\Z")]
    cuda_archs: dict[Platform, ArchList]
    site_packages: AbsolutePath
    sdist: FilePin
    wheels: dict[Platform, FilePin]
    dockerfile: DockerfilePin
    commit: Commit | None = None
    image: ImagePin | None = None
    bases: dict[str, ImagePin] = msgspec.field(default_factory=dict)

    @property
    def local_version(self) -> str:
        """The version of what we build: upstream's, with our local part (PEP 440)."""
        return f"{self.version}+sm120.{self.revision}"

    @property
    def source_date_epoch(self) -> int:
        """Seconds since 1970 at which upstream released, for reproducible timestamps."""
        return int(self.released.timestamp())

    @property
    def best_commit(self) -> str:
        """The whole commit id where it is pinned, else the abbreviated one."""
        return self.commit or self.commit_prefix

    def wheel(self, platform: Platform) -> FilePin:
        """Return the official wheel's pin.

        Raises:
            UnpinnedError: if the line pins none for `platform`.
        """
        if platform not in self.wheels:
            raise UnpinnedError(
                f"no official wheel is pinned for {platform}",
                file=WHAT,
                expected=f'[lines."{self.tag}".wheels."{platform}"]',
                found=", ".join(self.wheels) or "no wheels",
                next_command=f"python build.py lock {self.tag} --write",
            )
        return self.wheels[platform]

    def image_digest(self, platform: Platform) -> str:
        """Return the digest of the official image: the platform's manifest, else the index.

        Raises:
            UnpinnedError: if neither is resolved.
        """
        found = (
            None if self.image is None else self.image.platforms.get(platform, self.image.digest)
        )
        if found is None:
            raise UnpinnedError(
                f"the official image's digest is not pinned for {self.tag}",
                file=WHAT,
                expected=f'[lines."{self.tag}".image] digest = "sha256:…"',
                found="no digest" if self.image is None else f"{self.image.ref}, no digest",
                next_command=f"python build.py lock {self.tag} --write",
            )
        return found


class UpstreamLock(Value, frozen=True):
    """The whole file.

    Attributes:
        schema: the format's number.
        default: the line that is built when none is named.
        lines: the release lines by name.
    """

    schema: int
    default: LineName
    lines: dict[LineName, Line]

    def line(self, name: str | None = None) -> tuple[str, Line]:
        """Return a line with its name; the default one for None.

        Raises:
            UsageError: if there is no such line.
        """
        wanted = self.default if name is None else name
        if re.match(r"^[0-9]", wanted):
            wanted = f"v{wanted}"
        if wanted not in self.lines:
            raise UsageError(
                f"no line {name}",
                file=WHAT,
                expected=f"one of {', '.join(self.lines)}",
                found=wanted,
                next_command="python build.py show",
            )
        return wanted, self.lines[wanted]


def _contradictions(name: str, line: Line) -> list[str]:
    found = []
    if name != f"v{line.version}":
        found.append(f'version = "{line.version}"')
    if name != line.tag:
        found.append(f'tag = "{line.tag}"')
    if line.released.tzinfo is None:
        found.append(f"released = {line.released.isoformat()}, without a time zone")
    elif line.released.year <= _ZIP_EPOCH:
        found.append(f"released = {line.released.isoformat()}, which no zip file can hold")
    if line.commit is not None and not line.commit.startswith(line.commit_prefix):
        found.append(f'commit = "{line.commit}", commit-prefix = "{line.commit_prefix}"')
    named = (("sdist", line.sdist), *((f"wheels.{p}", pin) for p, pin in line.wheels.items()))
    own = re.compile(rf"[A-Za-z0-9_.]+-{re.escape(line.version)}(\+[a-z0-9.]+)?(-|\.tar\.gz\Z)")
    found += [f'{key}.name = "{pin.name}"' for key, pin in named if own.match(pin.name) is None]
    if not is_tree_path(line.dockerfile.path):
        found.append(f"dockerfile.path = {line.dockerfile.path!r}")
    return found


def parse(data: bytes, path: Path) -> UpstreamLock:
    """Return the lock that `data` holds; `path` is for messages.

    Raises:
        LockError: on anything but a well-formed lock of this schema.
    """
    document = schema.parse_toml(data, path, WHAT)
    schema.check_schema(document, SCHEMA, path, WHAT)
    lock = schema.convert(document, UpstreamLock, path, WHAT)
    if lock.default not in lock.lines:
        raise LockError(
            "the default line is not in the lock",
            file=path,
            expected=f"default = one of {', '.join(lock.lines)}",
            found=lock.default,
            next_command=f"git diff -- {path}",
        )
    for name, line in lock.lines.items():
        contradictions = _contradictions(name, line)
        if contradictions:
            raise LockError(
                f"line {name} contradicts itself",
                file=path,
                expected=f"the pins of one release, {name.removeprefix('v')}",
                found="; ".join(contradictions),
                next_command=f"git diff -- {path}",
            )
    return lock


def load(path: Path) -> UpstreamLock:
    """Return the lock in the file `path`.

    Raises:
        LockError: on anything but a well-formed lock of this schema.
    """
    return parse(schema.read_bytes(path, WHAT), path)
