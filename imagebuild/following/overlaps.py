"""Members of a series, or a series and upstream, that lay hands on the same thing."""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, Literal

import msgspec

from imagebuild.errors import ConflictError
from imagebuild.patching import apply, dropwhen, hunks, identity
from imagebuild.patching.apply import FileState, Outcome
from imagebuild.patching.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.apply import Report
    from imagebuild.patching.diff import FileDiff
    from imagebuild.patching.series import Patch

Kind = Literal["same lines", "stands on", "overlay file", "symbol moved"]


class Overlap(msgspec.Struct, frozen=True):
    """One overlap.

    Attributes:
        kind: two patches that write the same lines; a patch whose context another one writes; an
            overlay file that upstream has, too; a function or class that a patch changes and that
            upstream has put into another file.
        patch: the patch, or the owner of the overlay file.
        path: the file.
        text: what was found, for people.
    """

    kind: Kind
    patch: str
    path: str
    text: str


def created_upstream(series: Series, tree: Tree) -> Iterator[Overlap]:
    """Yield the overlay files that upstream has with other content."""
    owners = {path: patch.name for patch in series.patches for path in patch.meta.overlay}
    for path, ours in sorted({**series.overlay, identity.OVERLAY_MODULE: b""}.items()):
        theirs = tree.read(path)
        if theirs is None or theirs == ours:
            continue
        if ours:
            similar = "the same but for white space" if ours.split() == theirs.split() else "other"
            text = f"{tree.label} has {similar} content in {path}"
        else:
            text = f"{tree.label} has a file where the build puts its own module: {path}"
        yield Overlap("overlay file", owners.get(path, ""), path, text)


def standing_on(series: Series, tree: Tree) -> Iterator[Overlap]:
    """Yield the patches that apply to `tree` only behind an earlier one of the series."""
    earlier: list[Patch] = []
    for patch in series.patches:
        shared = [p for p in earlier if set(p.targets) & set(patch.targets)]
        for other in shared:
            rest = tuple(p for p in (*earlier, patch) if p is not other)
            try:
                plan = apply.plan(Series(series.line, rest, series.overlay), tree)
            except ConflictError:
                continue
            if not plan.reports[-1].outcome.success and all(
                report.outcome.success for report in plan.reports[:-1]
            ):
                path = min(set(other.targets) & set(patch.targets))
                text = f"{patch.name} applies only behind {other.name}: neighbouring lines"
                yield Overlap("stands on", patch.name, path, text)
        earlier.append(patch)


def clash(error: ConflictError, series: Series) -> Overlap:
    """Return the overlap that stopped a plan."""
    named = [p.name for p in series.patches if f" {p.name} " in f" {error.summary} "]
    patch = named[-1] if named else series.patches[-1].name
    return Overlap(
        "same lines", patch, error.file or "", f"{error.summary}: {error.found or 'both change it'}"
    )


def _scopes(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, int, int]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield name, first, node.end_lineno or node.lineno
            yield from _scopes(node.body, f"{name}.")


def enclosing(source: bytes, change: FileDiff) -> tuple[str, ...]:
    """Return the functions, methods and classes in which a patch changes lines, innermost only."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scopes = list(_scopes(ast.parse(source).body, ""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found: dict[str, None] = {}
    for match in hunks.locate(hunks.split(source), change.hunks):
        if match.state != "before":
            continue
        at = match.at + 1
        for mark, _ in match.hunk.lines:
            inside = [scope for scope in scopes if scope[1] <= at <= scope[2]]
            if mark != b" " and inside:
                found[max(inside, key=lambda scope: scope[1])[0]] = None
            at += mark != b"+"
    return tuple(found)


def _homes(symbols: Mapping[str, str], tree: Tree) -> dict[str, str]:
    """Return where `tree` defines symbols that one other Python file has; one pass over the tree.

    Args:
        symbols: the file that each dotted name was in.
        tree: the tree.
    """
    wanted = {
        symbol: re.compile(rb"\b(?:def|class) " + symbol.rpartition(".")[2].encode() + rb"\b")
        for symbol in symbols
    }
    found: dict[str, list[str]] = {symbol: [] for symbol in symbols}
    tops = tuple({path.partition("/")[0] + "/" for path in symbols.values()})
    for path in tree.files():
        if not (path.startswith(tops) and path.endswith(".py")):
            continue
        content = tree.read(path) or b""
        for symbol, pattern in wanted.items():
            if path != symbols[symbol] and pattern.search(content):
                found[symbol] += [path] if dropwhen.defines(content, symbol) else []
    return {symbol: paths[0] for symbol, paths in found.items() if len(paths) == 1}


def moved_symbols(report: Report, own: Tree, tree: Tree) -> Iterator[Overlap]:
    """Yield what a failing patch changes on its own line and `tree` does not define there."""
    if report.outcome not in (Outcome.DRIFTED, Outcome.TARGET_GONE):
        return
    changes = {change.path: change for change in report.patch.text.files}
    missing: dict[str, str] = {}
    for file in report.files:
        before = own.read(file.path)
        if file.state not in (FileState.FOREIGN, FileState.MISSING) or before is None:
            continue
        now = tree.read(file.path) or b""
        for symbol in enclosing(before, changes[file.path]):
            if not dropwhen.defines(now, symbol):
                missing[symbol] = file.path
    homes = _homes(missing, tree) if missing else {}
    for symbol, path in missing.items():
        where = f"is in {homes[symbol]} now" if symbol in homes else "is not to be found by name"
        yield Overlap("symbol moved", report.patch.name, path, f"{symbol} {where}")
