"""The one way in which a series meets a tree: plan, check and apply are this code.

Nothing here writes. A plan says for every patch which of the six outcomes it has on a tree, and
holds the content of every changed file. `check` prints it; a build raises its first failure,
compares every result with the lock and hands the content on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import (
    BuildError,
    ChecksumError,
    ConflictError,
    DriftedError,
    PartialError,
    TargetGoneError,
    UpstreamedError,
)
from imagebuild.patching import dropwhen, hunks

if TYPE_CHECKING:
    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.checksums import LineChecksums, TargetPin
    from imagebuild.patching.diff import FileDiff
    from imagebuild.patching.hunks import Lines, Match
    from imagebuild.patching.series import Patch, Series


class Outcome(Enum):
    """What a patch meets in a tree. Only the first two are success."""

    APPLIES = "applies"
    ALREADY_APPLIED = "already applied"
    UPSTREAMED = "upstreamed"
    DRIFTED = "drifted"
    TARGET_GONE = "target gone"
    PARTIAL = "partial"

    @property
    def success(self) -> bool:
        """Whether a build may go on."""
        return self in (Outcome.APPLIES, Outcome.ALREADY_APPLIED)

    @property
    def error(self) -> type[BuildError] | None:
        """The error of a failing outcome; its exit code is the outcome's."""
        return _ERRORS.get(self)


_ERRORS: dict[Outcome, type[BuildError]] = {
    Outcome.UPSTREAMED: UpstreamedError,
    Outcome.DRIFTED: DriftedError,
    Outcome.TARGET_GONE: TargetGoneError,
    Outcome.PARTIAL: PartialError,
}


class FileState(Enum):
    """What one file of a patch is in a tree."""

    PENDING = "not patched"
    DONE = "patched"
    HALF = "half patched"
    FOREIGN = "changed"
    MISSING = "missing"


_LOST = {FileState.FOREIGN, FileState.MISSING}


@dataclass(frozen=True)
class FileReport:
    """One file of one patch.

    Attributes:
        path: the file.
        state: what it is in the tree.
        matches: where each hunk stands; empty where the digest decided or the file is missing.
    """

    path: str
    state: FileState
    matches: tuple[Match, ...] = ()

    @property
    def failed(self) -> tuple[Match, ...]:
        """The hunks that are in neither state."""
        return tuple(match for match in self.matches if match.state == "neither")

    @property
    def moved(self) -> int:
        """How many hunks were found away from their expected lines."""
        return sum(match.offset != 0 for match in self.matches)


@dataclass(frozen=True)
class Report:
    """One patch on one tree.

    Attributes:
        patch: the patch.
        outcome: which of the six.
        reason: why, in one line.
        files: the patch's files.
    """

    patch: Patch
    outcome: Outcome
    reason: str
    files: tuple[FileReport, ...]


@dataclass
class Plan:
    """A series on a tree.

    Attributes:
        series: the series.
        label: the tree, for messages.
        reports: one for each patch, in order.
        before: the tree's own content of every file that a patch changes and the tree has.
        after: the content of every file that the series changed.
        steps: for every patch that applied, its files' digests before and after it.
    """

    series: Series
    label: str
    reports: list[Report] = field(default_factory=list)
    before: dict[str, bytes] = field(default_factory=dict)
    after: dict[str, bytes] = field(default_factory=dict)
    steps: list[tuple[str, str, Sha256, Sha256]] = field(default_factory=list)

    @property
    def success(self) -> bool:
        """Whether every patch applies or is in already."""
        return all(report.outcome.success for report in self.reports)

    def failures(self) -> list[Report]:
        """Return the reports that stop a build, in order."""
        return [report for report in self.reports if not report.outcome.success]


class _Planner:
    """The state of one plan while it is made."""

    def __init__(
        self, series: Series, tree: Tree, pins: LineChecksums | None, base: Tree | None
    ) -> None:
        self.plan = Plan(series, tree.label)
        self.tree = tree
        self.base = base
        self.work: dict[str, Lines | None] = {}
        self.pins: dict[tuple[str, str], TargetPin] = {}
        self.chain: dict[str, list[str]] = {}
        for pin in () if pins is None else pins.targets:
            self.pins[pin.patch, pin.path] = pin
            self.chain.setdefault(pin.path, [pin.before]).append(pin.after)

    def current(self, path: str) -> Lines | None:
        if path not in self.work:
            content = self.tree.read(path)
            if content is not None:
                self.plan.before[path] = content
            self.work[path] = None if content is None else hunks.Lines(hunks.split(content))
        return self.work[path]

    def by_digest(self, patch: Patch, path: str, lines: Lines) -> FileState | None:
        """Decide by content, where it is one of the states that the lock names for the file."""
        pin = self.pins.get((patch.name, path))
        digest = sha256_bytes(lines.data)
        if pin is None or digest not in self.chain[path]:
            return None
        chain = self.chain[path]
        return (
            FileState.DONE if chain.index(digest) >= chain.index(pin.after) else FileState.PENDING
        )

    def file(self, patch: Patch, change: FileDiff) -> FileReport:
        lines = self.current(change.path)
        if lines is None:
            return FileReport(change.path, FileState.MISSING)
        state = self.by_digest(patch, change.path, lines)
        if state is FileState.DONE:
            return FileReport(change.path, state)
        matches = hunks.locate(lines.lines, change.hunks)
        written_for = None if self.base is None else self.base.read(change.path)
        if written_for is not None:
            old = hunks.split(written_for)
            matches = tuple(hunks.doubtful(match, old) for match in matches)
        found = {match.state for match in matches}
        if "neither" in found:
            state = FileState.FOREIGN
        elif found == {"before"}:
            state = FileState.PENDING
        else:
            state = FileState.DONE if found == {"after"} else FileState.HALF
        return FileReport(change.path, state, matches)

    def outcome(self, patch: Patch, files: tuple[FileReport, ...]) -> tuple[Outcome, str]:
        states = {file.state for file in files}
        if states == {FileState.DONE} and not any(file.matches for file in files):
            return Outcome.ALREADY_APPLIED, "every file has the patch's content"
        if not states & _LOST and (FileState.HALF in states or len(states) > 1):
            return Outcome.PARTIAL, _halves(files)
        if not dropwhen.upstreamed(patch.meta.drop_when, self.tree):
            return self.needed(files)
        # A part that was merged must not speak for a part that only changed.
        proven = {check.file for check in patch.meta.drop_when}
        unproven = [f.path for f in files if f.state in _LOST and f.path not in proven]
        if unproven:
            outcome, reason = self.needed(files)
            return outcome, f"{reason}; drop-when holds, but not a word on {', '.join(unproven)}"
        return Outcome.UPSTREAMED, f"drop-when holds{_beside_drop_when(states)}"

    def needed(self, files: tuple[FileReport, ...]) -> tuple[Outcome, str]:
        states = {file.state for file in files}
        if FileState.MISSING in states:
            gone = [file.path for file in files if file.state is FileState.MISSING]
            return Outcome.TARGET_GONE, f"no {', '.join(gone)} in {self.plan.label}"
        if FileState.FOREIGN in states:
            return Outcome.DRIFTED, _drift(files)
        if states == {FileState.DONE}:
            return Outcome.ALREADY_APPLIED, "every hunk is in, word for word"
        match sum(file.moved for file in files):
            case 0:
                return Outcome.APPLIES, "at the exact lines"
            case 1:
                return Outcome.APPLIES, "1 hunk at other lines"
            case moved:
                return Outcome.APPLIES, f"{moved} hunks at other lines"

    def put_in(self, patch: Patch, files: tuple[FileReport, ...]) -> None:
        for file in files:
            lines = self.work[file.path]
            if lines is None:
                continue
            clash = hunks.overwritten(lines, file.matches)
            if clash is not None:
                raise ConflictError(
                    f"patches {clash[0]} and {patch.name} write the same lines",
                    file=f"{file.path}:{clash[1]}",
                    expected="one patch, one fix: no patch changes what another one wrote",
                    found=f"{patch.name} takes out a line that {clash[0]} put in",
                    next_command=f"python build.py edit {self.plan.series.line}",
                )
            changed = hunks.replace(lines, file.matches, patch.name)
            before, after = sha256_bytes(lines.data), sha256_bytes(changed.data)
            self.plan.steps.append((patch.name, file.path, before, after))
            self.work[file.path] = changed
            self.plan.after[file.path] = changed.data

    def run(self) -> Plan:
        for patch in self.plan.series.patches:
            taken = sorted(set(patch.targets) & set(self.plan.series.overlay))
            if taken:
                raise ConflictError(
                    f"patch {patch.name} changes an overlay file",
                    file=taken[0],
                    expected="patches change upstream's files only",
                    found="a file from the overlay",
                    next_command=f"python build.py edit {self.plan.series.line}",
                )
            files = tuple(self.file(patch, change) for change in patch.text.files)
            outcome, reason = self.outcome(patch, files)
            self.plan.reports.append(Report(patch, outcome, reason, files))
            if outcome is Outcome.APPLIES:
                self.put_in(patch, files)
            elif outcome is Outcome.ALREADY_APPLIED:
                for file in files:
                    self.plan.after.setdefault(file.path, self.plan.before[file.path])
        return self.plan


def _halves(files: tuple[FileReport, ...]) -> str:
    return "; ".join(f"{file.path} is {file.state.value}" for file in files)


def _beside_drop_when(states: set[FileState]) -> str:
    if states == {FileState.PENDING}:
        return ", though its hunks still apply"
    return ", and every hunk is in, word for word" if states == {FileState.DONE} else ""


def no_place(match: Match) -> str:
    """Return why a hunk has no place, to go behind "its lines"."""
    match match.cause:
        case "many":
            return f"stand in {match.places} places"
        case "both":
            return "stand there as they were and as they shall be: they repeat too much to tell"
        case "section":
            return f"stand at line {match.at + 1} only, not in the part that the patch names"
        case _:
            return "are not there"


def _drift(files: tuple[FileReport, ...]) -> str:
    parts = []
    for file in files:
        lost = [str(n) for n, match in enumerate(file.matches, 1) if match.state == "neither"]
        if lost:
            many = f"hunks {', '.join(lost)}" if len(lost) > 1 else f"hunk {lost[0]}"
            parts.append(f"{file.path}, {many} of {len(file.matches)}")
    return f"no exact place for {'; '.join(parts)}"


def plan(
    series: Series, tree: Tree, pins: LineChecksums | None = None, base: Tree | None = None
) -> Plan:
    """Return what every patch of `series` meets in `tree`, and what the files become.

    Args:
        series: the patches; applied in order, each on the result of those before.
        tree: the tree; only read, and only the files that the patches name.
        pins: the lock's digests for this line, where the tree is the line's own release.
        base: the line's own release, where `tree` is another one: lines that stood there more than
            once are not followed to another place.

    Raises:
        ConflictError: if two patches write the same lines or one changes an overlay file.
    """
    return _Planner(series, tree, pins, base).run()


def check_results(done: Plan, pins: LineChecksums) -> None:
    """Compare a successful plan's files with the lock.

    Raises:
        ChecksumError: naming the first file whose content is not the pinned one.
    """
    final = {pin.path: pin.after for pin in pins.targets}
    for path in sorted({*final, *done.after}):
        found = sha256_bytes(done.after[path]) if path in done.after else None
        if final.get(path) == found:
            continue
        raise ChecksumError(
            "a patched file is not the one in the lock",
            file=path,
            expected=f"sha256 {final[path]}" if path in final else "no patch to change it",
            found=f"sha256 {found}" if found else "unchanged",
            next_command=f"python build.py check {done.series.line}",
            detail=f"The tree was {done.label}; its file has other content than the release's.",
        )
