"""A tiny project whose upstream goes on: an index on loopback with more releases than the lock."""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.errors import SourceError
from imagebuild.fetch.sources import Sources
from tests.support import simple_index, tiny
from tests.support.tinytree import SDIST_ONLY, TREE, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from imagebuild.project import Project
    from tests.support.simple_index import SimpleIndex
    from tests.support.tiny import Tiny

NEXT = "1.3.0"
NEW_LINE = f"v{NEXT}"
_DOCKERFILE = b"""\
ARG CUDA_VERSION=13.1.0
ARG PYTHON_VERSION=3.12
ARG FINAL_BASE_IMAGE=nvidia/cuda:${CUDA_VERSION}-base-ubuntu24.04
FROM ${FINAL_BASE_IMAGE}
"""


def release_tree(version: str, changed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a later release's files: the tiny ones, with its own version and pins."""
    contents = TREE | SDIST_ONLY | dict(changed)
    stated = contents["vllm/_version.py"].replace(VERSION.encode(), version.encode())
    old, new = (part.replace(".", ", ").encode() for part in (VERSION, version))
    contents["vllm/_version.py"] = stated.replace(old, new)
    contents["docker/Dockerfile"] = _DOCKERFILE
    contents["requirements/cuda.txt"] = b"torch==2.15.0\nflashinfer-python==0.8.0\n"
    return contents


def sdist(version: str, contents: Mapping[str, bytes]) -> bytes:
    """Return the sdist of a release."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(contents):
            member = tarfile.TarInfo(f"vllm-{version}/{path}")
            member.size = len(contents[path])
            archive.addfile(member, io.BytesIO(contents[path]))
    return buffer.getvalue()


@dataclass
class Following:
    """The project and its index.

    Attributes:
        tiny: the project.
        index: the index; its files can be added to.
        cache: the user's cache.
    """

    tiny: Tiny
    index: SimpleIndex
    cache: Path

    @property
    def project(self) -> Project:
        return self.tiny.project

    def publish(self, changed: Mapping[str, bytes], version: str = NEXT) -> None:
        """Let upstream release the tiny tree with some files changed."""
        contents = release_tree(version, changed)
        self.index.files[f"vllm-{version}.tar.gz"] = sdist(version, contents)
        for machine in ("x86_64", "aarch64"):
            name = f"vllm-{version}-cp38-abi3-manylinux_2_28_{machine}.whl"
            self.index.files[name] = b"PK" + name.encode()


def start(
    folder: Path,
    index: SimpleIndex,
    monkeypatch: pytest.MonkeyPatch,
    changes: tuple[tiny.Change, ...] = tiny.CHANGES,
) -> Following:
    """Make the project; everything but the index on loopback is out of reach."""
    made = tiny.make(folder / "project", changes)
    cache = folder / "cache"
    simple_index.configure(monkeypatch, index_url=index.url)
    monkeypatch.setenv("VLLM_SM120_CACHE", str(cache))
    for path in made.index.iterdir():
        index.files[path.name] = path.read_bytes()

    def unreachable(*_: object) -> None:
        raise SourceError("out of reach", expected="an answer", found="a test")

    # The only thing left of pip: asking it takes half a second each time.
    listing = f":env:.index-url={index.url!r}"
    monkeypatch.setattr("imagebuild.fetch.pip_settings._listing", lambda: listing)
    monkeypatch.setattr(Sources, "remote_tag", unreachable)
    monkeypatch.setattr(Sources, "resolve_image", unreachable)
    monkeypatch.setattr("imagebuild.following.history.API", simple_index.closed_port())
    return Following(made, index, cache)
