"""`build.py edit` and `build.py export`: a series as commits, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild import files, project, schema, upstream
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.errors import ConflictError
from imagebuild.fetch.sources import Sources
from imagebuild.following import pending
from imagebuild.patching import assemble, checksums, scratch, series

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from imagebuild.patching.scratch import Exported
    from imagebuild.patching.series import Series
    from imagebuild.project import Project
    from imagebuild.upstream import Line


def _folder(arguments: argparse.Namespace, line: str) -> Path:
    chosen: Path | None = arguments.dir
    return chosen.absolute() if chosen else project.cache_root() / "edit" / line


def _differences(exported: Exported, old: Series) -> list[str]:
    """Return the names of patches that are not what stands in the project, in series order."""
    known = {patch.name: patch.text.data for patch in old.patches}
    changed = [name for name, data in exported.patches.items() if known.get(name) != data]
    gone = [name for name in known if name not in exported.patches]
    reordered = [n for n in exported.patches if n in known] != [
        n for n in known if n in exported.patches
    ]
    order = ["series"] if reordered else []
    return [*changed, *gone, *order, *sorted(exported.overlay_changes)]


def _write(exported: Exported, old: Series, home: Project) -> None:
    folder = home.patches(old.line)
    previous = schema.read_bytes(folder / "series", "the series")
    for name, data in exported.patches.items():
        files.write_atomic(folder / f"{name}.patch", data)
    for path, content in exported.overlay_changes.items():
        target = home.overlay(old.line) / path
        if content is None:
            target.unlink(missing_ok=True)
        else:
            files.write_atomic(target, content)
    listed = pending.finished(exported.series(previous), tuple(exported.patches))
    files.write_atomic(folder / "series", listed)
    for patch in old.patches:
        if patch.name not in exported.patches:
            for suffix in (".patch", ".toml"):
                (folder / f"{patch.name}{suffix}").unlink()


def _relock(home: Project, name: str, line: Line, sources: Sources) -> None:
    lock = checksums.load(home.checksums_lock)
    derived = assemble.derive(line, series.load(home, name), sources.sdist(line))
    lines = {**lock.lines, name: derived}
    files.write_atomic(
        home.checksums_lock, checksums.dump(checksums.Checksums(schema=lock.schema, lines=lines))
    )


def _edit(arguments: argparse.Namespace, home: Project, name: str, line: Line) -> int:
    sources = Sources.for_run(reporter(), offline=arguments.offline)
    folder = _folder(arguments, name)
    found = series.load(home, name)
    scratch.create(folder, found, sources.sdist(line), whole=True)
    names = [patch.name for patch in found.patches]
    text = (
        f"{folder} holds {name} with {len(names)} commits on the tag `upstream`.\n"
        f"  git -C {folder} log --oneline upstream..\n"
        f"  git -C {folder} rebase -i upstream\n"
        f"then: python build.py export {name}" + (f" --dir {folder}" if arguments.dir else "")
    )
    emit(arguments, text, {"line": name, "folder": str(folder), "patches": names})
    return 0


def _export(arguments: argparse.Namespace, home: Project, name: str, line: Line) -> int:
    folder = _folder(arguments, name)
    old = series.load(home, name, adding=True)
    exported = scratch.export(folder, old)
    different = _differences(exported, old)
    if arguments.check and different:
        raise ConflictError(
            "the scratch repository holds other patches than the project",
            file=folder,
            expected=f"patches/{name} as it is",
            found=", ".join(different),
            next_command=f"python build.py export {name} --dir {folder}",
        )
    if different:
        pending.adopt(home, name, folder, tuple(exported.patches))
        scratch.check_metadata(exported, home.patches(name))
        _write(exported, old, home)
        _relock(home, name, line, Sources.for_run(reporter(), offline=arguments.offline))
    text = f"written: {', '.join(different)}" if different else "nothing has changed"
    emit(arguments, text, {"line": name, "folder": str(folder), "changed": different})
    return 0


def run(arguments: argparse.Namespace, home: Project) -> int:
    """Make the scratch repository, or write its commits back."""
    name, line = upstream.load(home.upstream_lock).line(arguments.line)
    action = _edit if arguments.command == "edit" else _export
    return action(arguments, home, name, line)
