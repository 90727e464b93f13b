"""`build.py reproduce`: what was published, made again and compared."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild import builder, upstream
from imagebuild.attesting import releaselock
from imagebuild.attesting.reproduce import reproduce
from imagebuild.builder import Request
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.cli.verify import facts_of, text_of
from imagebuild.errors import VerifyError
from imagebuild.fetch.sources import Sources

if TYPE_CHECKING:
    import argparse

    from imagebuild.attesting.releaselock import Published
    from imagebuild.project import Project
    from imagebuild.verifying.verify import Report


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Make every published release of the lines again, the newest of each.

    Returns:
        0 if all are the same; with `--json`, `VerifyError`'s exit code if any is not.

    Raises:
        VerifyError: if any is not the same, without `--json`.
    """
    lock = upstream.load(project.upstream_lock)
    named = [lock.line(name)[0] for name in arguments.lines]
    newest = {entry.line: entry for entry in releaselock.load(project.release_lock).releases}
    chosen = [entry for line, entry in newest.items() if not named or line in named]
    if not chosen:
        text = f"{releaselock.NAME} has no entries: nothing is published yet"
        emit(arguments, text, {"ok": True, "releases": []})
        return 0
    reports = [_one(arguments, project, entry) for entry in chosen]
    facts = {
        "ok": not any(report.failures for report in reports),
        "releases": [facts_of(report) for report in reports],
    }
    emit(arguments, "\n".join(text_of(report) for report in reports), facts)
    if arguments.json:
        return 0 if facts["ok"] else VerifyError.exit_code
    for report in reports:
        report.require()
    return 0


def _one(arguments: argparse.Namespace, project: Project, entry: Published) -> Report:
    progress = reporter()
    _, line = upstream.load(project.upstream_lock).line(entry.line)
    sources = Sources.for_run(progress, offline=arguments.offline)
    with tempfile.TemporaryDirectory() as folder:
        request = Request(
            line=entry.line,
            targets=("wheel", "layer", "image") if entry.wheels else ("layer", "image"),
            platforms=tuple(p for p in upstream.PLATFORMS if p in entry.platforms),
            source="sdist",
            dist=Path(folder),
            base=arguments.base,
        )
        return reproduce(builder.open_build(project, request, line, sources, progress), entry)
