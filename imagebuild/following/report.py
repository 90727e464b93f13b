"""The report of a bump: the body of its pull request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.following import carry, skew
from imagebuild.following.statustable import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagebuild.following.bump import Bump
    from imagebuild.following.carry import Carried
    from imagebuild.following.rerun import Rerun
    from imagebuild.upstream import Line

_PINS = ("torch", "flashinfer", "cuda", "python")
_BRIEF = 160
_LIMIT = 60_000
"""Characters; GitHub refuses a body of more than 65,536."""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _brief(text: str) -> str:
    return text if len(text) <= _BRIEF else text[:_BRIEF].rstrip() + "…"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    out = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return [*out, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows), ""]


def _fenced(text: str, kind: str = "text") -> list[str]:
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence + kind, text.rstrip("\n"), fence, ""]


def _hunks(result: Carried) -> str:
    patch = result.new or result.old
    return "".join(
        f"{file.path}, line {hunk.old_start}\n{hunk.text()}"
        for file in patch.text.files
        for hunk in file.hunks
    )


def _todo(bump: Bump, folder: Path | None) -> Iterator[str]:
    for result in bump.of("merged"):
        same = "the same lines as before" if result.same_change else "OTHER LINES THAN BEFORE"
        yield f"Read the merge of `{result.old.name}` below: it changes {same}."
    if bump.pending:
        names = ", ".join(f"`{name}`" for name in bump.pending)
        where = "`build.py bump` without --dry-run makes" if folder is None else f"`{folder}` is"
        yield (
            f"Finish {names}. {where} the scratch repository, with the first one's conflicts in "
            "its work tree; the commands stand below."
        )
    for result in bump.of("left out"):
        yield (
            f"Confirm that upstream has `{result.old.name}` ({result.reason}); then retire it "
            "where it is not needed: `python build.py drop`."
        )
    for name in bump.missing:
        yield (
            f"`{name}` is pending in {bump.source} and could not come along: finish it there "
            f"(`python build.py bump {bump.old.version}`), then bring it here."
        )
    if bump.new.unresolved:
        yield f"Resolve the absent pins: `python build.py lock {bump.name} --write`."
    default = f'`default = "{bump.name}"`'
    yield f"Give the line a summary in `upstream.lock`; if it is to be the default: {default}."


def _pins(bump: Bump) -> list[str]:
    old, new = bump.old, bump.new.line
    rows = [(name, getattr(old, name), getattr(new, name)) for name in _PINS]
    rows += [("commit", old.best_commit[:12], new.best_commit[:12])]
    rows += [("sdist", old.sdist.sha256[:12], new.sdist.sha256[:12])]
    rows += [("Dockerfile", old.dockerfile.sha256[:12], new.dockerfile.sha256[:12])]
    for arg, pin in new.bases.items():
        before = old.bases.get(arg)
        rows.append((arg, before.ref if before else "-", pin.ref))
    marked = [(what, a, b if a != b else "the same") for what, a, b in rows]
    out = ["## Pins", "", *_table(("pin", bump.source, bump.name), marked)]
    if bump.new.unresolved:
        out += ["Not resolved, and therefore absent:", ""]
        out += [f"- {key}: {_brief(reason)}" for key, reason in bump.new.unresolved] + [""]
    return out


def _evidence(bump: Bump) -> list[str]:
    """Return which measurements stand no more, and what changed since each."""
    now = bump.new.line
    rows = []
    for result in bump.results:
        for entry in result.old.meta.evidence if result.decision != "left out" else ():
            then = {name: getattr(bump.old, name) for name in _PINS} | {"vllm": bump.old.version}
            taken = entry.inputs
            then |= {name: value for name in then if taken and (value := getattr(taken, name, ""))}
            new = {name: getattr(now, name) for name in _PINS} | {"vllm": now.version}
            changed = [
                str(skew.Skew(n, then[n], new[n])) for n in sorted(then) if then[n] != new[n]
            ]
            rows.append((result.old.name, entry.hardware, f"{entry.when}", ", ".join(changed)))
    if not rows:
        return []
    head = "Nothing is verified on the new line until it is shown there. What there was:"
    return ["## Evidence", "", head, "", *_table(("patch", "on", "taken", "changed since"), rows)]


def _upstream(bump: Bump) -> list[str]:
    rows = []
    for path, count in bump.churn.items():
        text = "gone" if count is None else f"+{count[0]} -{count[1]}"
        commits = bump.history.commits.get(path, ())
        subjects = "; ".join(f"{c.sha[:9]} {c.subject}" for c in commits[:8])
        rows.append((f"`{path}`", text, subjects or "-"))
    out = ["## What upstream changed in the series' files", ""]
    out += _table(("file", "lines", "commits"), rows)
    out += [f"Not reachable: {reason}\n" for reason in bump.history.unreachable]
    if bump.history.notes:
        out += ["From the release notes:", "", *(f"> {line}" for line in bump.history.notes), ""]
    return out


def _status(bump: Bump) -> list[str]:
    version = bump.new.line.version
    rows = [
        (row.line, patch, short(cell), cell.reason)
        for row in bump.status.rows
        for patch, cell in row.columns[version].cells.items()
    ]
    out = [f"## Every line's patches on {version}", ""]
    out += _table(("line", "patch", "outcome", "reason"), rows)
    overlaps = [
        f"- {row.line}, {overlap.patch}: {overlap.kind}: {overlap.text}"
        for row in bump.status.rows
        for overlap in row.columns[version].overlaps
    ]
    return [*out, *([*overlaps, ""] if overlaps else [])]


def render(bump: Bump, folder: Path | None, rerun: Rerun) -> str:
    """Return the report as Markdown.

    Args:
        bump: what was made.
        folder: the scratch repository with the pending patches, if one was made.
        rerun: what became of the series' tests.
    """
    new = bump.new.line
    counts = ", ".join(
        f"{len(bump.of(decision))} {decision}"
        for decision in ("carried", "merged", "left out", "pending")
    )
    out = [f"# vLLM {new.version}: line {bump.name} from {bump.source}", ""]
    out += [f"Released {new.released:%Y-%m-%d}. Patches: {counts}.", ""]
    rows = [(r.old.name, r.outcome, r.decision, r.reason) for r in bump.results]
    out += _table(("patch", "meets there", "decision", "why"), rows)
    out += ["## To do", ""]
    out += [f"{number}. {text}" for number, text in enumerate(_todo(bump, folder), 1)] + [""]
    if bump.pending:
        where = folder or Path("SCRATCH")
        out += _fenced("\n".join(carry.next_commands(where, bump.pending, bump.name)), "sh")
    out += ["## Tests", "", rerun.text, ""]
    out += _pins(bump) + _evidence(bump) + _status(bump) + _upstream(bump)
    for result in bump.of("merged"):
        out += [f"## Merged: {result.old.name}", "", *_fenced(_hunks(result), "diff")]
    for result in (*bump.of("left out"), *bump.of("pending")):
        if result.detail:
            title = f"## {result.decision.capitalize()}: {result.old.name}"
            out += [title, "", *_fenced(result.detail)]
    text = "\n".join(out).rstrip("\n") + "\n"
    return (
        text
        if len(text) <= _LIMIT
        else text[:_LIMIT] + "\n\n```\n(cut; run the bump again to read it all)\n"
    )


def title(line: Line) -> str:
    """Return the pull request's title."""
    return f"Follow vLLM {line.version}"
