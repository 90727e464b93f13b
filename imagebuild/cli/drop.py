"""`build.py drop`: retire a patch, and say why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild import upstream
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.fetch.sources import Sources
from imagebuild.following import drop

if TYPE_CHECKING:
    import argparse

    from imagebuild.project import Project


def run(arguments: argparse.Namespace, home: Project) -> int:
    """Retire the patch, or say what would go."""
    lock = upstream.load(home.upstream_lock)
    sources = Sources.for_run(reporter(), offline=arguments.offline)
    name, _ = lock.line(arguments.line)
    made = drop.prepare(
        home,
        lock,
        (name, arguments.patch),
        sources,
        release=arguments.release,
        because=arguments.because,
    )
    if not arguments.dry_run:
        drop.write(home, lock, made, sources)
    gone = [path.relative_to(home.root).as_posix() for path in made.removed]
    verb = "would be retired" if arguments.dry_run else "is retired"
    lines = [f"{made.patch} of {made.line} {verb}: {made.reason}"]
    lines += [f"  removed  {path}" for path in gone]
    lines += [f"  updated  patches/{made.line}/series, checksums.lock, docs/patches.md"]
    lines += ["next: git diff --stat; python build.py check"]
    facts = {
        "patch": made.patch,
        "line": made.line,
        "reason": made.reason,
        "removed": gone,
        "written": not arguments.dry_run,
    }
    emit(arguments, "\n".join(lines), facts)
    return 0
