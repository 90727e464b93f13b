"""`build.py checkpoint`: what vLLM makes of a checkpoint, before anything of it is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild import schema, upstream
from imagebuild.checkpoint import report, source
from imagebuild.cli.output import emit
from imagebuild.patching import series

if TYPE_CHECKING:
    import argparse

    from imagebuild.project import Project


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Print the report.

    Raises:
        UsageError: if the line, the model or its quantization is not known here.
        SourceError: if a part of the checkpoint cannot be had.
        ArchiveError: if a part of it is damaged.
    """
    lock = upstream.load(project.upstream_lock)
    name, _ = lock.line(arguments.line)
    file = project.patches(name) / "series"
    patches = frozenset(series.parse_names(schema.read_bytes(file, "the series"), file))
    checkpoint = source.read(arguments.checkpoint, arguments.revision)
    made = report.make(checkpoint, name, patches)
    emit(arguments, report.table(made), report.facts(made))
    return 0
