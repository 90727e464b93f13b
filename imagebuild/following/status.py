"""Every patch of every line on every release: what it meets there, computed once.

The outcomes are those of `apply.plan`, the code that builds; nothing here decides on its own. A
line's results on a release are kept in the cache by the digests of everything that they depend on:
the release's sdist, each patch and its metadata in order, the overlay, the lock, and this tool.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imagebuild import files
from imagebuild.errors import BuildError, ConflictError, SourceError
from imagebuild.fetch import release_facts
from imagebuild.following import overlaps, proofs, skew
from imagebuild.following.overlaps import Overlap
from imagebuild.following.proofs import Proof
from imagebuild.patching import apply, checksums, dropwhen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from imagebuild.digest import Sha256
    from imagebuild.fetch.cache import Cache
    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.checksums import LineChecksums
    from imagebuild.patching.series import Series
    from imagebuild.upstream import Line

CONFLICT = "conflict"


class Cell(msgspec.Struct, frozen=True):
    """One patch on one release.

    Attributes:
        outcome: one of the six, or `conflict` where two patches of the series write the same lines.
        reason: why, in one line.
        drop_when: whether the drop-when holds there, whatever the outcome.
    """

    outcome: str
    reason: str
    drop_when: bool


class Column(msgspec.Struct, frozen=True):
    """A line's series on one release.

    Attributes:
        cells: by patch, in series order.
        overlaps: what lies over one another there.
        skew: the pins that the release has otherwise, as text.
        unread: why the release's pins could not be read; empty if they could.
        proofs: on the line's own release, what each drop-when says.
    """

    cells: dict[str, Cell]
    overlaps: tuple[Overlap, ...] = ()
    skew: tuple[str, ...] = ()
    unread: str = ""
    proofs: tuple[Proof, ...] = ()


class Row(msgspec.Struct, frozen=True):
    """A line on all releases.

    Attributes:
        line: its name.
        columns: by release, oldest first.
        expired: for each patch, evidence that stands no more: hardware class and what changed.
        waiting: patches that a bump could not carry over, and that nobody has finished yet.
    """

    line: str
    columns: dict[str, Column]
    expired: dict[str, dict[str, tuple[str, ...]]] = {}
    waiting: tuple[str, ...] = ()


@functools.cache
def tool_digest() -> str:
    """Return one digest over this package's source: another tool, other results."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def key(line: Line, series: Series, pins: LineChecksums, sdist: Sha256) -> str:
    """Return the name under which a line's results on a release are kept."""
    parts: list[object] = [tool_digest(), sdist, series.line, msgspec.to_builtins(line)]
    parts += [(patch.name, patch.text.sha256, patch.meta_sha256) for patch in series.patches]
    parts += [checksums.patchset_sha256(series), msgspec.to_builtins(pins)]
    encoded = msgspec.json.encode(parts, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()


def _conflicted(
    error: ConflictError, series: Series, own: Tree, tree: Tree
) -> tuple[dict[str, Cell], Overlap]:
    """Return the cells of a series that cannot be planned as a whole: each patch on its own."""
    found = overlaps.clash(error, series)
    cells = {}
    for patch in series.patches:
        alone = type(series)(series.line, (patch,), series.overlay)
        report = apply.plan(alone, tree, None, None if tree is own else own).reports[0]
        clashes = patch.name == found.patch
        cells[patch.name] = Cell(
            CONFLICT if clashes else report.outcome.value,
            found.text if clashes else report.reason,
            dropwhen.upstreamed(patch.meta.drop_when, tree),
        )
    return cells, found


def _skew(line: Line, tree: Tree) -> tuple[tuple[str, ...], str]:
    try:
        return tuple(map(str, skew.pins(line, release_facts.read(tree)))), ""
    except SourceError as error:
        return (), f"{error.summary}: {error.file}"


def compute(
    line: Line, series: Series, pins: LineChecksums, own: Tree, tree: Tree, *, newer: bool = True
) -> Column:
    """Return what a line's series meets in a release.

    Args:
        line: the line.
        series: its series.
        pins: its digests, which decide where a file is one that the line knows.
        own: its own release.
        tree: the release; the same object as `own` for the line's own one.
        newer: whether the release came after the line's own one. Where things went and which pins
            changed is asked only there: nothing is carried backwards.
    """
    found = list(overlaps.created_upstream(series, tree))
    try:
        plan = apply.plan(series, tree, pins, None if tree is own else own)
    except ConflictError as error:
        cells, clash = _conflicted(error, series, own, tree)
        found.append(clash)
    else:
        cells = {
            report.patch.name: Cell(
                report.outcome.value,
                report.reason,
                dropwhen.upstreamed(report.patch.meta.drop_when, tree),
            )
            for report in plan.reports
        }
        for report in plan.failures() if newer else ():
            found += overlaps.moved_symbols(report, own, tree)
    if tree is not own:
        pins_there = _skew(line, tree) if newer else ((), "")
        return Column(cells, tuple(found), *pins_there)
    found += overlaps.standing_on(series, tree)
    proven = tuple(proofs.prove(patch, tree) for patch in series.patches)
    return Column(cells, tuple(found), proofs=proven)


def column(cache: Cache, name: str, make: Callable[[], Column], *, refresh: bool = False) -> Column:
    """Return the results kept under `name`, or make and keep them.

    Raises:
        StorageError: if the cache cannot be written.
    """
    path = cache.folder("status") / f"{name}.json"
    if not refresh:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Column)
        except (OSError, msgspec.DecodeError):
            pass  # none yet, or half of one: it is made anew
    made = make()
    files.write_atomic(path, msgspec.json.encode(made))
    return made


def problems(
    rows: Iterable[Row], found: dict[str, Series], labels: dict[str, str]
) -> list[BuildError]:
    """Return what is wrong with the series themselves, whatever upstream does.

    Args:
        rows: the results.
        found: each line's series.
        labels: what each line's own release is called.
    """
    errors: list[BuildError] = []
    for row in rows:
        own = row.columns.get(row.line.removeprefix("v"))
        for proof in () if own is None else own.proofs:
            error = proofs.problem(proof, row.line, labels[row.line])
            if error is not None:
                errors.append(error)
        for patch in found[row.line].patches:
            held = {
                release: column.cells[patch.name].drop_when
                for release, column in row.columns.items()
            }
            errors += proofs.known_fix(patch, row.line, held)
    return errors
