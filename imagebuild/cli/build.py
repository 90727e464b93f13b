"""`build.py build`: make the artifacts of a line, and say what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from imagebuild import builder, release, upstream
from imagebuild.builder import Request, Row
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit, size
from imagebuild.sources import Sources

if TYPE_CHECKING:
    import argparse

    from imagebuild.project import Project
    from imagebuild.release import Output

_INDENT = " " * 20


def _digest(output: Output) -> str:
    match output:
        case release.ImageOutput():
            return output.manifest
        case release.TreeOutput():
            return f"{len(output.files)} files differ from upstream's"
        case _:
            return f"sha256:{output.sha256}"


def _where(output: Output) -> str:
    match output:
        case release.ImageOutput():
            return f"{output.folder}/  {output.content}"
        case release.TreeOutput():
            return f"{output.folder}/"
        case _:
            return f"{output.file}  {size(output.size)}"


def _row(row: Row) -> list[str]:
    if row.left_out is not None:
        reason = f"{row.target:<9} left out   {row.left_out.summary}"
        following = row.left_out.next_command
        return [reason, *([f"{_INDENT}next: {following}"] if following else [])]
    if row.output is None:
        return []
    took = "unchanged" if row.unchanged else f"{row.seconds:.1f} s"
    return [
        f"{row.target:<9} {took:<10} {_digest(row.output)}",
        f"{_INDENT}{_where(row.output)}",
    ]


def _facts(row: Row) -> dict[str, Any]:
    return {
        "target": row.target,
        "seconds": round(row.seconds, 3),
        "unchanged": row.unchanged,
        "output": None if row.output is None else msgspec.to_builtins(row.output),
        "left-out": None if row.left_out is None else row.left_out.facts(),
    }


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Build, and print a table of what came out."""
    name, line = upstream.load(project.upstream_lock).line(arguments.line)
    progress = reporter()
    request = Request(
        line=name,
        targets=tuple(dict.fromkeys(arguments.target or ())),
        platform=arguments.platform,
        source=arguments.source,
        dist=(arguments.dist or project.dist).absolute(),
        base=arguments.base,
        export=arguments.export,
        wait=not arguments.no_wait,
    )
    sources = Sources.for_run(progress, offline=arguments.offline)
    build = builder.open_build(project, request, line, sources, progress)
    rows = builder.run(build)
    head = f"{name}  {line.local_version}  {request.platform}  in {request.dist}"
    lines = [head, "artefact  time       digest", *(text for row in rows for text in _row(row))]
    lines.append(f"{release.NAME} names every input and every output")
    facts = {"line": name, "dist": str(request.dist), "targets": [_facts(row) for row in rows]}
    emit(arguments, "\n".join(lines), facts)
    return 0
