"""`build.py lock`: refresh pins and checksums; show what is different, write only if told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from imagebuild import files, schema, upstream
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.fetch import refresh
from imagebuild.fetch.sources import Sources
from imagebuild.patching import assemble, checksums, series

if TYPE_CHECKING:
    import argparse

    from imagebuild.fetch.refresh import Refreshed
    from imagebuild.patching.checksums import Checksums, LineChecksums
    from imagebuild.project import Project
    from imagebuild.upstream import UpstreamLock


def _value(value: object) -> str:
    return "absent" if value is None else str(value)


def _pins_text(result: Refreshed) -> list[str]:
    lines = [
        f"  {'.'.join(d.key)}: {_value(d.old)} -> {_value(d.new)}  ({d.source})"
        for d in result.differences
    ]
    return lines + [f"  not resolved now: {key}: {why}" for key, why in result.unresolved]


def _checksum_changes(old: LineChecksums | None, new: LineChecksums) -> list[str]:
    """Return a line for each digest that is not the one in the lock."""
    before = {} if old is None else msgspec.to_builtins(old)
    after = msgspec.to_builtins(new)
    changes = []
    for key, value in after.items():
        was = before.get(key)
        if was == value:
            continue
        if isinstance(value, dict):
            known = was or {}
            names = sorted({*known, *value})
            changes += [f"{key}.{n}" for n in names if known.get(n) != value.get(n)]
        else:
            changes.append(key)
    return changes


def _rewritten(project: Project, results: list[Refreshed]) -> tuple[bytes, UpstreamLock]:
    """Return `upstream.lock` with the differences taken over, and what it then says."""
    import tomlkit  # noqa: PLC0415  (keeps comments; only needed here)

    document = tomlkit.parse(schema.read_bytes(project.upstream_lock, upstream.WHAT).decode())
    refresh.apply(document, results)
    data = tomlkit.dumps(document).encode()
    return data, upstream.parse(data, project.upstream_lock)


def _derive(
    project: Project, lock: UpstreamLock, names: list[str], sources: Sources
) -> tuple[Checksums, Checksums]:
    """Return the checksums lock as it is and as it should be."""
    old = checksums.Checksums(schema=checksums.SCHEMA)
    if project.checksums_lock.exists():
        old = checksums.load(project.checksums_lock)
    lines = {name: pins for name, pins in old.lines.items() if name in lock.lines}
    for name in names:
        line = lock.lines[name]
        found = series.load(project, name)
        lines[name] = assemble.derive(line, found, sources.sdist(line))
    ordered = {name: lines[name] for name in lock.lines if name in lines}
    return old, checksums.Checksums(schema=checksums.SCHEMA, lines=ordered)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Show, and with `--write` take over, what is different now."""
    lock = upstream.load(project.upstream_lock)
    sources = Sources.for_run(reporter(), offline=arguments.offline)
    names = [lock.line(wanted)[0] for wanted in arguments.lines or lock.lines]
    results = [refresh.refresh(name, lock.lines[name], sources) for name in names]
    data, new_lock = _rewritten(project, results)
    old, new = _derive(project, new_lock, names, sources)
    changed = {n: _checksum_changes(old.lines.get(n), new.lines[n]) for n in names}
    pins_differ = any(result.differences for result in results)
    checksums_differ = old != new
    if arguments.write:
        if pins_differ:
            files.write_atomic(project.upstream_lock, data)
        if checksums_differ or not project.checksums_lock.exists():
            files.write_atomic(project.checksums_lock, checksums.dump(new))
    lines = []
    for result in results:
        lines += [result.line, *_pins_text(result)]
        lines += [f"  checksums: {key}" for key in changed[result.line]]
    different = pins_differ or checksums_differ
    verdict = "nothing is different"
    if different:
        verdict = "written" if arguments.write else "not written; --write takes this over"
    facts: dict[str, Any] = {
        "written": bool(arguments.write and different),
        "lines": {
            result.line: {
                "pins": [msgspec.to_builtins(d) for d in result.differences],
                "unresolved": dict(result.unresolved),
                "checksums": changed[result.line],
            }
            for result in results
        },
    }
    emit(arguments, "\n".join([*lines, verdict]), facts)
    return 0
