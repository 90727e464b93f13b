"""Patches of a new line that wait for a person: where they stand, and how they come back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild import files, project, schema
from imagebuild.files import storing
from imagebuild.following import carry, newline
from imagebuild.patching import metadata, series

if TYPE_CHECKING:
    from imagebuild.fetch.sources import Sources
    from imagebuild.project import Project
    from imagebuild.upstream import UpstreamLock

FOLDER = "pending"
"""Below the scratch repository's `.git`: the metadata that an export takes with the patch."""


def pending_of(home: Project, line: str) -> tuple[str, ...]:
    """Return the patches that the line's series file says are pending."""
    path = home.patches(line) / "series"
    text = schema.read_bytes(path, "the series").decode()
    marked = [entry for entry in text.splitlines() if entry.startswith("# pending: ")]
    return tuple(entry.split(": ")[1] for entry in marked)


def source_of(home: Project, line: str) -> str | None:
    """Return the line that a line's series was carried over from, as its series file says."""
    path = home.patches(line) / "series"
    first = schema.read_bytes(path, "the series").decode().partition("\n")[0]
    return first.split(" ")[4] if first.startswith("# carried over from ") else None


def open_scratch(
    home: Project, lock: UpstreamLock, name: str, source: str, sources: Sources
) -> tuple[Path, tuple[str, ...]]:
    """Make the scratch repository in which a person finishes a line's pending patches.

    Args:
        home: the project.
        lock: the lines, the new one among them.
        name: the new line.
        source: the line that its series comes from.
        sources: where releases come from.

    Returns:
        The repository's folder, and the patches that wait there; the first as conflict files.
    """
    folder = project.cache_root() / "edit" / name
    waiting = pending_of(home, name)
    if folder.exists() and any(folder.iterdir()):
        sources.progress.note(f"{folder}: kept as it is, it holds something already")
        return folder, waiting
    old, new = lock.lines[source], lock.lines[name]
    found = series.load(home, source)
    done = {patch.name: patch for patch in series.load(home, name).patches}
    with tempfile.TemporaryDirectory(dir=_parent(folder)) as made:
        target = Path(made, "repository")
        carrier = carry.Carrier.start(
            target, found, sources.sdist(old), sources.sdist(new), name, whole=True, done=done
        )
        carrier.run()
        for result in carrier.results:
            if result.old.name in waiting:
                file = f"{result.old.name}.toml"
                data = schema.read_bytes(home.patches(source) / file, metadata.WHAT)
                text = newline.metadata(data, result, old)
                files.write_atomic(target / ".git" / FOLDER / file, text)
        carry.open_conflict(carrier, waiting)
        with storing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            target.rename(folder)
    return folder, waiting


def _parent(folder: Path) -> Path:
    with storing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.parent


def adopt(home: Project, line: str, folder: Path, names: tuple[str, ...]) -> None:
    """Put the metadata of finished patches beside the series, where it is not there yet."""
    for name in names:
        waiting = folder / ".git" / FOLDER / f"{name}.toml"
        target = home.patches(line) / f"{name}.toml"
        if waiting.is_file() and not target.exists():
            files.write_atomic(target, schema.read_bytes(waiting, metadata.WHAT))


def finished(listed: bytes, names: tuple[str, ...]) -> bytes:
    """Return a series file without the notes that say of finished patches that they are pending."""
    notes = tuple(f"# pending: {name}: ".encode() for name in names)
    kept = (entry for entry in listed.splitlines(keepends=True) if not entry.startswith(notes))
    return b"".join(kept)
