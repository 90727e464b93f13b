"""`build.py status`: every patch on every release, and why a cell is what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from imagebuild import files, upstream
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.errors import ConflictError, UsageError
from imagebuild.fetch.sources import Sources
from imagebuild.following import heatmap, matrix, overlaps, proofs, statustable
from imagebuild.patching import apply, dropwhen, explain

if TYPE_CHECKING:
    import argparse

    from imagebuild.fetch.tree import Tree
    from imagebuild.following.matrix import Matrix, Subject
    from imagebuild.project import Project
    from imagebuild.upstream import UpstreamLock


def _facts(found: Matrix) -> dict[str, Any]:
    return {
        "releases": list(found.releases),
        "lines": {row.line: msgspec.to_builtins(row) for row in found.rows},
        "problems": [error.facts() for error in found.problems],
    }


def _why_text(subject: Subject, name: str, own: Tree, tree: Tree) -> tuple[str, dict[str, Any]]:
    """Return why a patch meets what it meets, from the plan that a build would make."""
    base = None if tree is own else own
    try:
        plan = apply.plan(subject.series, tree, subject.pins, base)
    except ConflictError as error:
        return error.diagnostics(), {"line": subject.name, "conflict": error.facts()}
    report = next(r for r in plan.reports if r.patch.name == name)
    lines = [
        f"{name} of {subject.name} on {tree.label}: {report.outcome.value}",
        f"  {report.reason}",
    ]
    lines += [f"  {file.path}: {file.state.value}" for file in report.files]
    for check, stated in zip(
        report.patch.meta.drop_when, proofs.prove(report.patch, tree).checks, strict=True
    ):
        lines.append(
            f"  drop-when {'yes' if dropwhen.holds(check, tree) else 'no '}: {stated.text}"
        )
    detail = explain.explain(report, tree, base)
    moved = list(overlaps.moved_symbols(report, own, tree))
    lines += [f"  {overlap.text}" for overlap in moved]
    if detail:
        lines += ["", detail.rstrip("\n")]
    if not report.outcome.success:
        lines.append(f"next: {explain.next_command(report, subject.name)}")
    facts = {
        "line": subject.name,
        "patch": name,
        "tree": tree.label,
        "outcome": report.outcome.value,
        "reason": report.reason,
        "files": {file.path: file.state.value for file in report.files},
        "moved": [msgspec.to_builtins(overlap) for overlap in moved],
        "detail": detail,
    }
    return "\n".join(lines), facts


def _why(
    arguments: argparse.Namespace, chosen: tuple[Subject, ...], lock: UpstreamLock, sources: Sources
) -> int:
    name, release = arguments.why
    having = [subject for subject in chosen if subject.series.patch(name) is not None]
    if not having:
        known = sorted({p.name for subject in chosen for p in subject.series.patches})
        raise UsageError(
            f"no patch {name}",
            file="patches/",
            expected=f"one of {', '.join(known) or 'no patches'}",
            found=name,
            next_command="python build.py status",
        )
    parts = []
    for subject in having:
        own = sources.sdist(subject.line)
        parts.append(_why_text(subject, name, own, sources.release(release, lock)))
    emit(arguments, "\n\n".join(text for text, _ in parts), {"why": [facts for _, facts in parts]})
    return 0


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Print the status.

    Returns:
        0, or the exit code of the first drop-when that is not proven. What upstream does to a patch
        is no error here: it is what was asked.
    """
    lock = upstream.load(project.upstream_lock)
    sources = Sources.for_run(reporter(), offline=arguments.offline)
    chosen = matrix.subjects(project, lock, arguments.lines)
    if arguments.why is not None:
        return _why(arguments, chosen, lock, sources)
    wanted = matrix.columns(chosen, lock, sources, arguments.releases)
    found = matrix.gather(chosen, wanted, lock, sources, refresh=arguments.refresh)
    if arguments.svg is not None:
        files.write_atomic(arguments.svg, heatmap.render(found).encode())
    if arguments.markdown is not None:
        asked = arguments.releases or f"{wanted[0]}..{wanted[-1]}"
        files.write_atomic(arguments.markdown, statustable.markdown(found, asked).encode())
    emit(arguments, statustable.text(found), _facts(found))
    return found.problems[0].exit_code if found.problems else 0
