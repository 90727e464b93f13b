"""`build.py check`: which patches apply, to their own release or to another tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imagebuild import upstream
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.errors import BuildError, SourceError
from imagebuild.fetch.sources import Sources
from imagebuild.fetch.tree import DirTree
from imagebuild.patching import apply, assemble, checksums, explain, series
from imagebuild.patching.apply import Outcome

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.apply import Plan
    from imagebuild.patching.checksums import LineChecksums
    from imagebuild.patching.series import Series
    from imagebuild.project import Project
    from imagebuild.upstream import Line


@dataclass(frozen=True)
class Checked:
    """One line on one tree.

    Attributes:
        name: the line.
        plan: what each patch meets.
        problem: what else is wrong, such as an overlay file that upstream has created.
        details: the explanation of each failing patch, by its name.
    """

    name: str
    plan: Plan
    problem: BuildError | None
    details: dict[str, str]

    @property
    def exit_code(self) -> int:
        """The code of the first failure; 0 for none."""
        for report in self.plan.failures():
            if report.outcome.error is not None:
                return report.outcome.error.exit_code
        return self.problem.exit_code if self.problem else 0

    def text(self) -> str:
        """Return the result for people."""
        lines = [f"{self.name} on {self.plan.label}"]
        for report in self.plan.reports:
            lines.append(f"  {report.outcome.value:<16} {report.patch.name}: {report.reason}")
            detail = self.details.get(report.patch.name, "")
            lines += [f"      {line}" for line in detail.splitlines()]
        if self.problem is not None:
            lines += [f"  {line}" for line in self.problem.diagnostics().splitlines()]
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """Return the result for programs."""
        return {
            "line": self.name,
            "tree": self.plan.label,
            "exit_code": self.exit_code,
            "problem": None if self.problem is None else self.problem.facts(),
            "patches": [
                {
                    "name": report.patch.name,
                    "outcome": report.outcome.value,
                    "reason": report.reason,
                    "files": {file.path: file.state.value for file in report.files},
                    "detail": self.details.get(report.patch.name),
                }
                for report in self.plan.reports
            ],
        }


def _rest(line: Line, plan: Plan, own: Tree, tree: Tree, pins: LineChecksums) -> None:
    """Check what the six outcomes do not say: overlay files, generated files, digests."""
    if tree is own:
        checksums.check_line(pins, line)
        apply.check_results(plan, pins)
        assemble.check_produced(assemble.assemble(line, plan.series, plan, own), pins)
    elif not any(r.outcome is Outcome.ALREADY_APPLIED for r in plan.reports):
        assemble.check_overlay(plan.series, tree)


def _check(line: Line, found: Series, pins: LineChecksums, own: Tree, tree: Tree) -> Checked:
    base = None if tree is own else own
    plan = apply.plan(found, tree, pins, base)
    details = {
        report.patch.name: explain.explain(report, tree, base)
        + f"next: {explain.next_command(report, found.line)}"
        for report in plan.failures()
    }
    problem = None
    if plan.success:
        try:
            _rest(line, plan, own, tree, pins)
        except BuildError as error:
            problem = error
    return Checked(found.line, plan, problem, details)


def _folder(path: Path) -> DirTree:
    if not (path / "vllm").is_dir():
        raise SourceError(
            "not a vLLM source tree",
            file=path,
            expected="a folder that holds vllm/",
            found="no such folder" if not path.is_dir() else "no vllm/ in it",
            next_command=f"ls {path}",
        )
    return DirTree(path.absolute())


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Check the lines and print the outcomes.

    Returns:
        0, or the exit code of the first patch that does not apply.
    """
    lock = upstream.load(project.upstream_lock)
    pins = checksums.load(project.checksums_lock)
    sources = Sources.for_run(reporter(), offline=arguments.offline)
    checked = []
    for wanted in arguments.lines or lock.lines:
        name, line = lock.line(wanted)
        found = series.load(project, name)
        checksums.check_inputs(pins.line(name), found)
        own = sources.sdist(line)
        tree: Tree = own
        if arguments.tree is not None:
            tree = _folder(arguments.tree)
        elif arguments.release is not None:
            tree = sources.release(arguments.release, lock)
        checked.append(_check(line, found, pins.line(name), own, tree))
    emit(
        arguments,
        "\n\n".join(result.text() for result in checked),
        {"lines": [result.facts() for result in checked]},
    )
    return next((result.exit_code for result in checked if result.exit_code), 0)
