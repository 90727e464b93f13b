"""`patches/<line>/`: the series, its patches and their metadata, read and checked as one."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild import schema
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import LockError
from imagebuild.patching import diff, metadata
from imagebuild.patching.metadata import is_tree_path

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.patching.diff import PatchText
    from imagebuild.patching.metadata import Metadata
    from imagebuild.project import Project

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""What a patch may be called: its files and its place in the series bear the name."""


@dataclass(frozen=True)
class Patch:
    """One patch: its text and what is known of it.

    Attributes:
        name: as the series names it.
        text: what it changes.
        meta: why, from where, until when.
        meta_sha256: the digest of the metadata file.
    """

    name: str
    text: PatchText
    meta: Metadata
    meta_sha256: Sha256

    @property
    def targets(self) -> tuple[str, ...]:
        """The paths it changes."""
        return tuple(file.path for file in self.text.files)


@dataclass(frozen=True)
class Series:
    """A line's patches in order, and its overlay files.

    Attributes:
        line: the line's name.
        patches: in the order in which they are applied.
        overlay: the content of each overlay file by its path in the tree.
    """

    line: str
    patches: tuple[Patch, ...]
    overlay: dict[str, bytes]

    def patch(self, name: str) -> Patch | None:
        """Return the patch of that name, or None."""
        return next((patch for patch in self.patches if patch.name == name), None)

    @property
    def targets(self) -> tuple[str, ...]:
        """The paths that any patch changes, sorted."""
        return tuple(sorted({path for patch in self.patches for path in patch.targets}))


def parse_names(data: bytes, path: Path) -> tuple[str, ...]:
    """Return the names in a series file: one a line, `#` starts a comment.

    Raises:
        LockError: on a name of another form, or one that stands twice.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LockError(
            "the series cannot be read",
            file=path,
            expected="UTF-8",
            found=error,
            next_command=f"git diff -- {path}",
        ) from error
    names: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        if NAME.fullmatch(name) is None or name in names:
            raise LockError(
                f"{name!r} stands twice in the series"
                if name in names
                else "a bad name in the series",
                file=f"{path}:{number}",
                expected="each patch once, as lower-case words joined by hyphens",
                found=name,
                next_command=f"git diff -- {path}",
            )
        names[name] = None
    return tuple(names)


def _check_listed(folder: Path, names: tuple[str, ...], *, adding: bool) -> None:
    here = {file.name: file for file in folder.iterdir()}
    for name in names:
        for suffix in (".patch", ".toml"):
            if name + suffix not in here:
                raise LockError(
                    f"patch {name} has no {'metadata' if suffix == '.toml' else 'patch file'}",
                    file=folder / (name + suffix),
                    expected="one .patch and one .toml for each name in the series",
                    found="no such file",
                    next_command=f"git status -- {folder}",
                )
    expected = {"series"} | {name + suffix for name in names for suffix in (".patch", ".toml")}
    unlisted = sorted(here.keys() - expected)
    if adding:
        unlisted = [name for name in unlisted if not name.endswith(".toml")]
    if unlisted:
        raise LockError(
            "a file stands beside the series but not in it",
            file=folder / unlisted[0],
            expected=f"its name in {folder / 'series'}, or no such file",
            found=", ".join(unlisted),
            next_command=f"git status -- {folder}",
        )
    links = sorted(name for name, file in here.items() if file.is_symlink())
    if links:
        raise LockError(
            "a file of the series is a link",
            file=folder / links[0],
            expected="a regular file",
            found="a link",
            next_command=f"ls -l {folder}",
        )


def _overlay(folder: Path) -> dict[str, bytes]:
    if not os.path.lexists(folder):
        return {}
    if folder.is_symlink() or not folder.is_dir():
        raise LockError(
            "the overlay is not a folder",
            file=folder,
            expected="a folder with files below vllm/, or no such folder",
            found="a link" if folder.is_symlink() else "a file",
            next_command=f"ls -l {folder}",
        )
    found: dict[str, bytes] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_dir() and not file.is_symlink():
            continue
        path = file.relative_to(folder).as_posix()
        if path.endswith(".pyc") or "__pycache__" in path:
            continue
        if (
            file.is_symlink()
            or not file.is_file()
            or not path.startswith("vllm/")
            or not is_tree_path(path)
        ):
            raise LockError(
                "not an overlay file",
                file=file,
                expected="a regular file below vllm/ with a plain UTF-8 name",
                found="a link" if file.is_symlink() else path,
                next_command=f"git status -- {folder}",
            )
        found[path] = schema.read_bytes(file, "an overlay file")
    return found


def _check_overlay_owners(series: Series, folder: Path) -> None:
    owners: dict[str, str] = {}
    for patch in series.patches:
        for path in patch.meta.overlay:
            if path in owners or path not in series.overlay:
                raise LockError(
                    f"overlay file {path} of patch {patch.name}",
                    file=folder / path,
                    expected="a file that exists and belongs to one patch",
                    found=f"claimed by {owners[path]}, too" if path in owners else "no such file",
                    next_command=f"git status -- {folder}",
                )
            owners[path] = patch.name
    for path in series.overlay:
        if path not in owners:
            raise LockError(
                "an overlay file belongs to no patch",
                file=folder / path,
                expected="its path in one patch's metadata, key overlay",
                found="no patch that names it",
                next_command=f"grep -rn overlay {folder.parent.parent / 'patches' / series.line}",
            )


def load(project: Project, line: str, *, adding: bool = False) -> Series:
    """Return the series of a line with everything it names.

    Args:
        project: the checkout.
        line: the line's name.
        adding: whether metadata and overlay files may stand there already for patches that an
            export will add.

    Raises:
        LockError: if a file is missing, unlisted, listed twice, or its content is not well formed.
        PatchFormatError: if a patch cannot be read.
    """
    folder = project.patches(line)
    file = folder / "series"
    names = parse_names(schema.read_bytes(file, "the series"), file)
    _check_listed(folder, names, adding=adding)
    patches = []
    for name in names:
        text_path, meta_path = folder / f"{name}.patch", folder / f"{name}.toml"
        meta_data = schema.read_bytes(meta_path, metadata.WHAT)
        patches.append(
            Patch(
                name,
                diff.parse(schema.read_bytes(text_path, "a patch"), text_path),
                metadata.parse(meta_data, meta_path),
                sha256_bytes(meta_data),
            )
        )
    series = Series(line, tuple(patches), _overlay(project.overlay(line)))
    if not adding:
        _check_overlay_owners(series, project.overlay(line))
    return series
