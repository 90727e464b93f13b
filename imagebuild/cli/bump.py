"""`build.py bump`: a line of a new release, a report of it, and on request its pull request."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from imagebuild import files, upstream
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.fetch.sources import Sources
from imagebuild.following import bump, pending, pullrequest, report, rerun
from imagebuild.following.bump import Wanted
from imagebuild.following.pullrequest import Change, Target

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from imagebuild.following.bump import Bump, Choice
    from imagebuild.following.rerun import Rerun
    from imagebuild.project import Project
    from imagebuild.upstream import UpstreamLock


def _nothing_new(arguments: argparse.Namespace, lock: UpstreamLock, choice: Choice) -> int:
    lines = [f"nothing to follow: no newer stable release than {', '.join(lock.lines)}"]
    lines += [f"  passed over {skipped.version}: {skipped.reason}" for skipped in choice.skipped]
    skipped = {entry.version: entry.reason for entry in choice.skipped}
    emit(arguments, "\n".join(lines), {"release": None, "skipped": skipped})
    return 0


def _resume(
    arguments: argparse.Namespace, home: Project, lock: UpstreamLock, name: str, sources: Sources
) -> int:
    """Make the scratch repository of a line that has pending patches, on this machine."""
    from imagebuild.following import carry  # noqa: PLC0415  (only where there is something to do)

    source = arguments.source or pending.source_of(home, name) or ""
    folder, waiting = pending.open_scratch(home, lock, name, lock.line(source)[0], sources)
    commands = carry.next_commands(folder, waiting, name)
    text = "\n".join([f"{name} waits for: {', '.join(waiting)}", *(f"  {c}" for c in commands)])
    facts = {"line": name, "pending": list(waiting), "folder": str(folder), "next": list(commands)}
    emit(arguments, text, facts)
    return 0


def _tests(arguments: argparse.Namespace, home: Project, made: Bump, sources: Sources) -> Rerun:
    """Run the new line's tests if that is wanted, and record what they show."""
    if arguments.dry_run or arguments.no_tests:
        reason = "--dry-run writes no line to test" if arguments.dry_run else "--no-tests"
        return rerun.not_run(reason, made.name)
    result = rerun.run(home, made.name)
    if result.passed:
        names = tuple(r.old.name for r in made.results if r.new is not None)
        rerun.record(home, made.name, names, result, dt.datetime.now(dt.UTC).date())
        bump.relock(home, made.new.line, sources)
        bump.write_page(home)
    return result


def _facts(made: Bump, folder: Path | None, text: str) -> dict[str, Any]:
    return {
        "release": made.new.line.version,
        "line": made.name,
        "from": made.source,
        "patches": {
            r.old.name: {"outcome": r.outcome, "decision": r.decision, "reason": r.reason}
            for r in made.results
        },
        "unresolved": dict(made.new.unresolved),
        "scratch": None if folder is None else str(folder),
        "report": text,
    }


def run(arguments: argparse.Namespace, home: Project) -> int:
    """Make the line, or say what would be made.

    Returns:
        0 also where patches wait for a person: the report says so, and the line holds the others.
    """
    target = None
    if arguments.pull_request and not arguments.dry_run:
        target = Target.of_environment()
    lock = upstream.load(home.upstream_lock)
    sources = Sources.for_run(reporter(), offline=arguments.offline)
    choice = bump.choose(lock, arguments.release, arguments.older_than, sources)
    if choice.version is None:
        return _nothing_new(arguments, lock, choice)
    name = f"v{choice.version}"
    if name in lock.lines and not arguments.dry_run:
        if not pending.pending_of(home, name):
            bump.check_new(lock, choice.version)
        return _resume(arguments, home, lock, name, sources)
    wanted = Wanted(choice.version, arguments.source, arguments.history)
    folder: Path | None = None
    changed: tuple[str, ...] = ()
    with sources.cache.lock(f"bump-{name}", sources.progress, f"line {name}"):
        made = bump.prepare(home, lock, wanted, sources)
        if not arguments.dry_run:
            changed = bump.write(home, made, sources)
            if made.pending:
                written = upstream.load(home.upstream_lock)
                folder, _ = pending.open_scratch(home, written, name, made.source, sources)
        text = report.render(made, folder, _tests(arguments, home, made, sources))
    if arguments.report is not None:
        files.write_atomic(arguments.report, text.encode())
    facts = _facts(made, folder, text) | {"written": list(changed)}
    if target is not None:
        change = Change(name, changed, report.title(made.new.line), text)
        told = pullrequest.publish(home, target, change)
        facts["pull_request"] = told
        text = told
    emit(arguments, text.rstrip("\n"), facts)
    return 0
