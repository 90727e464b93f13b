"""Carrying a series over to another release, patch by patch, in a scratch git repository.

A patch that applies is carried as it is; only its line numbers and blob ids are written anew, as
`export` would. One that upstream has is left out. One whose context changed is merged three ways
with the true base, the file of the release that it was written for. What has a conflict is never
committed: it waits under `refs/pending/` for a person.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from imagebuild import files
from imagebuild.errors import ConflictError
from imagebuild.following import proofs, threeway
from imagebuild.following.threeway import Side
from imagebuild.patching import apply, diff, explain, scratch
from imagebuild.patching.apply import FileState, Outcome
from imagebuild.patching.series import Patch, Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagebuild.fetch.git import Git
    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.apply import Plan, Report
    from imagebuild.patching.diff import PatchText

Decision = Literal["carried", "merged", "left out", "pending"]


@dataclass(frozen=True)
class Carried:
    """What became of one patch.

    Attributes:
        old: the patch on its line.
        outcome: what it meets in the release.
        decision: what was done.
        reason: why, in one line.
        detail: more, for a person who has to act.
        new: the patch for the new line, if it has one.
    """

    old: Patch
    outcome: str
    decision: Decision
    reason: str
    detail: str = ""
    new: Patch | None = None

    @property
    def same_change(self) -> bool:
        """Whether the new patch takes out and puts in the very lines that the old one does."""
        return self.new is not None and _changes(self.new.text) == _changes(self.old.text)


def _changes(text: PatchText) -> list[tuple[str, list[tuple[bytes, bytes]]]]:
    return [
        (file.path, [line for hunk in file.hunks for line in hunk.lines if line[0] != b" "])
        for file in text.files
    ]


@dataclass
class Carrier:
    """A series on its way from one release to another.

    Attributes:
        git: the scratch repository; the new line's commits stand on its tag `upstream`.
        old: the series.
        base: the release that it was written for.
        tree: the release that it goes to.
        line: the new line's name.
        done: patches of the new line that are there already, by name.
        results: one for each patch so far.
    """

    git: Git
    old: Series
    base: Tree
    tree: Tree
    line: str
    done: dict[str, Patch] = field(default_factory=dict)
    results: list[Carried] = field(default_factory=list)
    _commits: dict[str, str] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        folder: Path,
        old: Series,
        base: Tree,
        tree: Tree,
        line: str,
        *,
        whole: bool = False,
        done: dict[str, Patch] | None = None,
    ) -> Carrier:
        """Make the repository: the old series on its release, then the new release bare.

        Args:
            folder: where; must not exist, or be empty.
            old: the series.
            base: its own release.
            tree: the new release.
            line: the new line's name.
            whole: whether all of the new release is laid out, or only what the series touches.
            done: patches of the new line that are there already.

        Raises:
            UsageError: if the folder holds something.
            DriftedError: if the series does not apply to its own release.
        """
        git = scratch.create(folder, old, base, whole=False)
        commits = git.text("rev-list", "--reverse", "upstream..HEAD").split()
        named = dict(zip([p.name for p in old.patches], commits[-len(old.patches) :], strict=True))
        overlay = {path: data for path, data in old.overlay.items() if tree.read(path) is None}
        _restart(git, tree, old.targets, overlay, line, whole=whole)
        carrier = cls(git, old, base, tree, line, done or {})
        carrier._commits = named
        return carrier

    @property
    def accepted(self) -> tuple[Patch, ...]:
        """The new line's patches so far."""
        return tuple(result.new for result in self.results if result.new is not None)

    def series(self, *more: Patch) -> Series:
        """Return the new line's series so far, with `more` behind it."""
        patches = (*self.accepted, *more)
        owned = {path for patch in patches for path in patch.meta.overlay}
        overlay = {path: data for path, data in self.old.overlay.items() if path in owned}
        return Series(self.line, patches, overlay)

    def run(self) -> list[Carried]:
        """Carry every patch over, in order, and return what became of each."""
        for patch in self.old.patches:
            result = self._one(patch)
            if result.decision == "pending":
                self.git.run("update-ref", scratch.PENDING + patch.name, self._commits[patch.name])
            self.results.append(result)
        return self.results

    def _one(self, patch: Patch) -> Carried:
        candidate = self.done.get(patch.name, patch)
        taken = [path for path in patch.meta.overlay if self.tree.read(path) is not None]
        try:
            plan = apply.plan(self.series(candidate), self.tree, base=self.base)
        except ConflictError as error:
            return Carried(patch, "conflict", "pending", f"{error.summary}: {error.found}")
        if taken:
            reason = f"upstream has a file in place of its overlay file {', '.join(taken)}"
            return Carried(patch, plan.reports[-1].outcome.value, "pending", reason)
        return self._decide(patch, candidate, plan)

    def _decide(self, patch: Patch, candidate: Patch, plan: Plan) -> Carried:
        report = plan.reports[-1]
        outcome, reason = report.outcome.value, report.reason
        match report.outcome:
            case Outcome.APPLIES:
                after = {path: plan.after[path] for path in candidate.targets}
                return Carried(patch, outcome, "carried", reason, new=self._commit(patch, after))
            case Outcome.UPSTREAMED if _untouched(report):
                return Carried(patch, outcome, "pending", f"{reason}: one of the two is wrong")
            case Outcome.ALREADY_APPLIED | Outcome.UPSTREAMED:
                checks = proofs.prove(patch, self.tree).checks
                detail = "".join(f"{'yes' if c.holds else 'NO '}  {c.text}\n" for c in checks)
                return Carried(patch, outcome, "left out", reason, detail)
            case Outcome.DRIFTED | Outcome.PARTIAL:
                return self._merge(patch, report)
            case Outcome.TARGET_GONE:
                detail = explain.explain(report, self.tree, self.base)
                return Carried(patch, outcome, "pending", reason, detail)

    def _merge(self, patch: Patch, report: Report) -> Carried:
        """Merge with the true base: the old release's file, with the old series up to here."""
        commit = self._commits[patch.name]
        now = apply.plan(self.series(), self.tree).after
        after, conflicts = {}, []
        for path in patch.targets:
            ours = now.get(path, self.tree.read(path) or b"")
            merged = threeway.merge(
                Side(self.base.label, self.git.run("show", f"{commit}^:{path}")),
                Side(self.tree.label, ours),
                Side(patch.name, self.git.run("show", f"{commit}:{path}")),
            )
            if merged.conflicts:
                conflicts.append(f"{path}: {merged.conflicts}")
            elif threeway.is_broken(path, ours, merged.data):
                conflicts.append(f"{path}: the merge is no Python any more")
            elif merged.data != ours:
                after[path] = merged.data
        outcome = report.outcome.value
        detail = explain.explain(report, self.tree, self.base)
        if conflicts:
            reason = f"conflicts in {', '.join(conflicts)}"
            return Carried(patch, outcome, "pending", reason, detail)
        if not after:
            reason = "the merge changes nothing, and yet its drop-when does not hold"
            return Carried(patch, outcome, "pending", reason, detail)
        new = self._commit(patch, after)
        result = Carried(patch, outcome, "merged", "three-way merge, no conflict", detail, new)
        if result.same_change:
            return result
        reason = "three-way merge, no conflict, but other lines than before: read it"
        return Carried(patch, outcome, "merged", reason, detail, new)

    def _commit(self, patch: Patch, contents: dict[str, bytes]) -> Patch:
        """Commit new contents with the old commit's message and author; return the new patch."""
        for path, data in contents.items():
            with files.storing(self.git.folder / path):
                (self.git.folder / path).write_bytes(data)
        self.git.run("add", "--force", "--", *contents)
        self.git.run("commit", "--quiet", "--no-verify", "-C", self._commits[patch.name])
        self.git.run("notes", "add", "-f", "-m", scratch.NOTE + patch.name, "HEAD")
        mail = scratch.mail(self.git, "HEAD")
        text = diff.parse(mail, Path(f"{patch.name}.patch"))
        return Patch(patch.name, text, patch.meta, patch.meta_sha256)


def _restart(
    git: Git,
    tree: Tree,
    targets: Iterable[str],
    overlay: dict[str, bytes],
    line: str,
    *,
    whole: bool,
) -> None:
    """Make branch `series` and tag `upstream` anew on another release; the old commits stay.

    Args:
        git: the repository that `create` made.
        tree: the other release.
        targets: the files that the series touches.
        overlay: the new line's overlay files.
        line: the new line's name.
        whole: whether all of the release is laid out, or only the targets.
    """
    git.run("branch", "--move", "series", "before")
    git.run("tag", "base", "upstream")
    git.run("checkout", "--quiet", "--orphan", "series")
    git.run("rm", "-r", "--quiet", "--force", ".")
    names = tree.files() if whole else iter(targets)
    contents = ((name, tree.read(name)) for name in names)
    with files.storing(git.folder):
        scratch.write(git.folder, ((name, data) for name, data in contents if data is not None))
    scratch.commit_all(git, f"{tree.label}, as released")
    git.run("tag", "--force", "upstream")
    git.run("config", "vllm-sm120.line", line)
    if overlay:
        with files.storing(git.folder):
            scratch.write(git.folder, overlay.items())
        scratch.commit_all(git, scratch.OVERLAY)


def _untouched(report: Report) -> bool:
    """Return whether every line that a patch replaces still stands, so that nothing was fixed."""
    return all(file.state is FileState.PENDING for file in report.files)


def open_conflict(carrier: Carrier, pending: Sequence[str]) -> None:
    """Leave the first pending patch as conflict files in the work tree, committed nowhere.

    `export` refuses to write a repository with changes in no commit.
    """
    git = carrier.git
    git.run("config", "merge.conflictStyle", "diff3")
    if pending:
        git.run("cherry-pick", "--no-commit", scratch.PENDING + pending[0], check=False)


def next_commands(folder: Path, pending: Sequence[str], line: str) -> tuple[str, ...]:
    """Return the commands by which a person finishes the pending patches, in order."""
    git = f"git -C {folder}"
    commands = []
    for number, name in enumerate(pending):
        ref = scratch.PENDING + name
        if number:
            commands.append(f"{git} cherry-pick --no-commit {ref}")
        commands += [
            f"$EDITOR $({git} diff --name-only --diff-filter=U)",
            f"{git} add --all && {git} commit -C {ref}",
        ]
    return (*commands, f"python build.py export {line}")
