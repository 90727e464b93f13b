"""A line's series as commits in a scratch git repository, and back.

The commits stand on the tag `upstream`, the release as it is; then, if the line has overlay files,
one commit with those; then one commit a patch. Notes carry the patches' names, and follow a commit
through amend and rebase. Export writes the commits as mail again: for an untouched repository byte
for byte what was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild import files
from imagebuild.errors import ConflictError, DriftedError, LockError, PatchFormatError, UsageError
from imagebuild.fetch.git import Git, GitFailedError
from imagebuild.patching import diff
from imagebuild.patching.metadata import is_tree_path
from imagebuild.patching.series import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.series import Series

_IDENTITY = ("vllm-sm120 maintainers", "maintainers@users.noreply.github.com")
_DATE = "2000-01-01T00:00:00+0000"
OVERLAY = "Overlay files"
PENDING = "refs/pending/"
"""Where a patch waits, as the commit on its old release, that could not be carried to a new one."""
NOTE = "Patch-Name: "
"""What a commit's note says before the patch's name."""
_NO_ATTRIBUTES = "!diff !text !eol !crlf !filter !ident !whitespace !working-tree-encoding"
_FORMAT = (
    "format-patch", "--stdout", "-1", "--zero-commit", "--no-signature", "--full-index",
    "--no-stat", "--no-numbered", "--no-renames", "--no-encode-email-headers", "--unified=3",
    "--diff-algorithm=myers", "--no-ext-diff", "--no-textconv", "--no-notes", "--no-base",
    "--subject-prefix=PATCH", "--src-prefix=a/", "--dst-prefix=b/", "--no-signoff", "--no-attach",
    "--no-thread", "--no-cover-letter", "--no-relative", "--no-color", "--inter-hunk-context=0",
    "--indent-heuristic", "--no-from", "--no-to", "--no-cc", "--no-add-header",
)  # fmt: skip
# Brackets of the subject that are not [PATCH], such as [Bugfix], are the subject's own.
_AM = ("am", "--quiet", "--keep-cr", "--keep-non-patch", "--no-scissors", "--no-3way", "-")


@dataclass(frozen=True)
class Exported:
    """What a scratch repository holds.

    Attributes:
        patches: each patch's mail by its name, in order.
        overlay: each overlay file by its path in the tree.
        overlay_changes: what was done to overlay files since `create`, by path: the new content, or
            None for a file that was taken out.
    """

    patches: dict[str, bytes]
    overlay: dict[str, bytes]
    overlay_changes: dict[str, bytes | None] = field(default_factory=dict)

    def series(self, previous: bytes) -> bytes:
        """Return the series file: the previous one if the order is the same, else a new one."""
        names = [line.partition(b"#")[0].strip() for line in previous.split(b"\n")]
        if [name.decode() for name in names if name] == list(self.patches):
            return previous
        head = [line for line in previous.split(b"\n") if line.startswith(b"#")]
        return b"".join(line + b"\n" for line in [*head, *(n.encode() for n in self.patches)])


def slug(subject: str) -> str:
    """Return a patch name made of a commit's subject."""
    words = re.findall(r"[a-z0-9]+", subject.lower())
    return "-".join(words[:6]) or "patch"


def write(folder: Path, contents: Iterable[tuple[str, bytes]]) -> None:
    """Write files of a tree below `folder`; paths that leave it are left out."""
    for path, data in contents:
        if not is_tree_path(path):  # above all, nothing into .git
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _init(folder: Path) -> Git:
    git = Git(folder)
    folder.mkdir(parents=True, exist_ok=True)
    git.run("init", "--quiet", "--initial-branch=series", str(folder))
    settings = {
        "user.name": _IDENTITY[0],
        "user.email": _IDENTITY[1],
        "notes.rewriteRef": "refs/notes/commits",
        "core.autocrlf": "false",
        "core.attributesFile": "/dev/null",
        "gc.auto": "0",
    }
    for name, value in settings.items():
        git.run("config", name, value)
    # Hunk headings must not depend on attributes that a release ships.
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text(f"* {_NO_ATTRIBUTES}\n")
    return git


def commit_all(git: Git, subject: str) -> None:
    """Commit the whole work tree."""
    git.run("add", "--all", "--force", ".")
    git.run(
        "commit", "--quiet", "--allow-empty", "--no-verify", "--date", _DATE, "-m", subject,
    )  # fmt: skip


def create(folder: Path, series: Series, tree: Tree, *, whole: bool) -> Git:
    """Make the scratch repository.

    Args:
        folder: where; must not exist, or be empty.
        series: the line's series.
        tree: the line's release.
        whole: whether all of the release is laid out, or only the files that the series touches.

    Returns:
        The repository, its branch `series` at the last patch.

    Raises:
        UsageError: if the folder holds something.
        DriftedError: if a patch does not apply to the release.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(
            "the scratch repository's folder is not empty",
            file=folder,
            expected="no such folder, or an empty one",
            found="files" if folder.is_dir() else "a file",
            next_command=f"python build.py export {series.line} --dir {folder}   (or remove it)",
        )
    git = _init(folder)
    names = tree.files() if whole else iter(series.targets)
    with files.storing(folder):
        write(folder, ((name, tree.read(name) or b"") for name in names))
    commit_all(git, f"{tree.label}, as released")
    git.run("tag", "upstream")
    git.run("config", "vllm-sm120.line", series.line)
    if series.overlay:
        with files.storing(folder):
            write(folder, series.overlay.items())
        commit_all(git, OVERLAY)
        git.run("tag", "overlay")
    for patch in series.patches:
        try:
            git.run(*_AM, data=patch.text.data)
        except GitFailedError as error:
            git.run("am", "--abort", check=False)
            raise DriftedError(
                f"patch {patch.name} does not apply to {tree.label}",
                file=f"patches/{series.line}/{patch.name}.patch",
                expected="a patch that applies",
                found="git am refused it",
                next_command=f"python build.py check {series.line}",
                detail=error.detail,
            ) from error
        git.run("notes", "add", "-f", "-m", NOTE + patch.name, "HEAD")
    return git


def mail(git: Git, commit: str) -> bytes:
    """Return a commit as a patch file."""
    return git.run(*_FORMAT, commit)


def _names(git: Git, commits: list[str], series: Series) -> dict[str, str]:
    """Return each commit's patch name: by its note, else by its subject."""
    by_subject = {patch.text.subject: patch.name for patch in series.patches}
    waiting = git.text("for-each-ref", "--format=%(refname) %(subject)", PENDING).splitlines()
    for ref, _, subject in (line.partition(" ") for line in waiting):
        by_subject[subject] = ref.removeprefix(PENDING)
    found: dict[str, str] = {}
    for commit in commits:
        note = git.text("notes", "show", commit, check=False)
        subject = git.text("show", "--no-patch", "--format=%s", commit)
        match = re.search(rf"^{NOTE}(\S+)$", note, re.MULTILINE)
        found[commit] = match[1] if match else by_subject.get(subject, slug(subject))
    for commit, name in found.items():
        rename = (
            f"git -C {git.folder} notes add -f -m '{NOTE}a-better-name' {commit[:12]}   "
            "(or reword its subject)"
        )
        if NAME.fullmatch(name) is None:
            raise LockError(
                "a commit's name cannot be a patch's",
                file=f"{git.folder}, commit {commit[:12]}",
                expected="lower-case words joined by hyphens, the first with a letter in front",
                found=name,
                next_command=rename,
            )
        same = [other for other in found if found[other] == name]
        if same != [commit]:
            raise ConflictError(
                f"two commits are patch {name}",
                file=git.folder,
                expected="one commit a patch",
                found=f"commits {', '.join(other[:12] for other in same)}",
                next_command=f"git -C {git.folder} rebase -i upstream   (or: {rename})",
            )
    return found


def _overlay(git: Git, commit: str) -> dict[str, bytes]:
    listed = git.run("diff", "--name-status", "--no-renames", "-z", f"{commit}^", commit)
    parts = listed.decode("utf-8", "surrogateescape").split("\0")[:-1]
    changes = list(zip(parts[0::2], parts[1::2], strict=True))
    for status, path in changes:
        if status != "A" or not is_tree_path(path):
            raise ConflictError(
                "the overlay commit does more than adding files",
                file=path,
                expected="new files with plain UTF-8 names only",
                found=f"status {status} of {path!r}",
                next_command=f"git -C {git.folder} rebase -i upstream",
            )
    return {path: git.run("show", f"{commit}:{path}") for _, path in changes}


_UNDER_WAY = ("rebase-merge", "rebase-apply", "CHERRY_PICK_HEAD", "REVERT_HEAD", "MERGE_HEAD")


def _open(folder: Path, line: str) -> Git:
    git = Git(folder)
    if not (folder / ".git").is_dir() or (
        git.text("config", "vllm-sm120.line", check=False) != line
    ):
        raise UsageError(
            f"no scratch repository of line {line}",
            file=folder,
            expected=f"what `build.py edit {line}` made",
            found="something else" if folder.exists() else "no such folder",
            next_command=f"python build.py edit {line}",
        )
    under_way = [name for name in _UNDER_WAY if (folder / ".git" / name).exists()]
    if under_way:
        raise UsageError(
            "a rebase, merge or the like is under way in the scratch repository",
            file=folder / ".git" / under_way[0],
            expected="all commits in place",
            found=under_way[0],
            next_command=f"git -C {folder} status",
        )
    unsaved = git.text("status", "--porcelain", "--untracked-files=normal")
    if unsaved:
        raise UsageError(
            "the scratch repository has changes in no commit",
            file=folder,
            expected="a clean work tree",
            found=unsaved.splitlines()[0],
            next_command=f"git -C {folder} status",
        )
    return git


def _commits(git: Git) -> list[str]:
    """Return the commits on top of upstream, oldest first."""
    merges = git.text("rev-list", "--merges", "upstream..HEAD").split()
    based = git.text("merge-base", "upstream", "HEAD", check=False)
    if merges or based != git.text("rev-parse", "upstream^{commit}"):
        raise ConflictError(
            "the commits are not one line on top of upstream",
            file=git.folder,
            expected="commits on the tag upstream, no merges",
            found=f"merge {merges[0]}" if merges else "a branch that does not hold upstream",
            next_command=f"git -C {git.folder} rebase upstream",
        )
    return git.text("rev-list", "--reverse", "upstream..HEAD").split()


def export(folder: Path, series: Series) -> Exported:
    """Return what a scratch repository's commits are as patches and overlay files.

    Args:
        folder: the repository that `create` made.
        series: the line's present series, for names.

    Raises:
        UsageError: if the folder is no scratch repository of this line, has uncommitted changes, or
            a rebase is under way there.
        ConflictError: if two commits claim one patch, or a commit is a merge or empty.
        PatchFormatError: if a commit does what a patch may not, such as creating a file.
        LockError: if a name cannot be a patch's.
    """
    git = _open(folder, series.line)
    commits = _commits(git)
    overlay: dict[str, bytes] = {}
    if commits and git.text("show", "--no-patch", "--format=%s", commits[0]) == OVERLAY:
        overlay = _overlay(git, commits.pop(0))
    patches = {name: mail(git, commit) for commit, name in _names(git, commits, series).items()}
    for name, data in patches.items():
        if not data:
            raise ConflictError(
                f"the commit of patch {name} changes nothing",
                file=folder,
                expected="a change",
                found="an empty commit",
                next_command=f"git -C {folder} rebase -i upstream   (drop it)",
            )
        try:
            diff.parse(data, Path(f"{name}.patch"))
        except PatchFormatError as error:
            error.next_command = (
                f"git -C {folder} rebase -i upstream   (new files: copy them to "
                f"overlay/{series.line}/ and name them in the metadata)"
            )
            raise
    read = _overlay(git, "overlay") if git.text("tag", "--list", "overlay") else {}
    changes = {p: overlay.get(p) for p in {*overlay, *read} if overlay.get(p) != read.get(p)}
    return Exported(patches, overlay, changes)


def check_metadata(exported: Exported, patches: Path) -> None:
    """Check that every exported patch has metadata beside it.

    Raises:
        LockError: naming the file that has to be written first.
    """
    for name in exported.patches:
        if not (patches / f"{name}.toml").is_file():
            raise LockError(
                f"patch {name} has no metadata",
                file=patches / f"{name}.toml",
                expected="the patch's reasons, tests and drop-when (docs/formats.md)",
                found="no such file",
                next_command=f"$EDITOR {patches / f'{name}.toml'}",
            )
