"""Patches and series in memory, their diffs made by real git."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.digest import sha256_bytes
from imagebuild.fetch.git import Git
from imagebuild.patching import diff, metadata
from imagebuild.patching.series import Patch, Series
from tests.support import tiny

if TYPE_CHECKING:
    from imagebuild.patching.hunks import Match

HEAD = b"""\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A Maintainer <maintainer@example.org>
Date: Tue, 3 Nov 2026 09:00:00 +0100
Subject: [PATCH] Do one thing

It was wrong before.

"""
FILE = "vllm/file.py"


@cache
def difference(before: bytes, after: bytes, path: str = FILE) -> bytes:
    """Return what `git diff` says about two contents of one file."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.write_tree(Path(folder) / "a", {path: before})
        tiny.write_tree(Path(folder) / "b", {path: after})
        return Git(Path(folder)).run(
            *("diff", "--no-index", "--no-prefix", "--full-index", f"a/{path}", f"b/{path}"),
            check=False,
        )


def text(*differences: bytes) -> diff.PatchText:
    """Return a patch of the given diffs."""
    return diff.parse(HEAD + b"".join(differences), Path("a.patch"))


def hunks(before: bytes, after: bytes) -> tuple[diff.Hunk, ...]:
    """Return the hunks between two contents."""
    return text(difference(before, after)).files[0].hunks


def states(matches: tuple[Match, ...]) -> list[str]:
    """Return the states of matches."""
    return [match.state for match in matches]


def patch(name: str, data: bytes, **changed: object) -> Patch:
    """Return a patch out of a mail, its metadata the ordinary ones with some keys changed."""
    sidecar = tiny.metadata(name, **changed)
    return Patch(
        name,
        diff.parse(data, Path(f"{name}.patch")),
        metadata.parse(sidecar, Path(f"{name}.toml")),
        sha256_bytes(sidecar),
    )


def series(
    *changes: tiny.Change,
    tree: dict[str, bytes] | None = None,
    overlay: dict[str, bytes] | None = None,
    **changed: object,
) -> Series:
    """Return a series of changes to a tree, all with the same changes to their metadata."""
    mails = tiny.mails(changes, tree)
    patches = tuple(patch(name, data, **changed) for name, data in mails.items())
    return Series(tiny.LINE, patches, overlay or {})
