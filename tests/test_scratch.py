"""A series as commits and back: what was not touched comes back byte for byte."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from imagebuild.errors import (
    BuildError,
    ConflictError,
    DriftedError,
    LockError,
    PatchFormatError,
    UsageError,
)
from imagebuild.fetch.git import Git
from imagebuild.fetch.tree import MemoryTree
from imagebuild.patching import scratch
from tests.support import patching, tiny
from tests.support.tiny import BOUNDS, CLEAR, KERNELS, WARNING, Change, Edit
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.patching.series import Series

ODD = Change(
    "odd-words",
    "[Bugfix][Kernel] Größe — 状態の添字を範囲内に保つ; a subject so long that mail folds it",
    (Edit("vllm/envs.py", "DEBUG = False\n", "DEBUG = True  # größer\n"),),
    body="Erklärung: ein Zähler.\n\n# not a comment\nFrom here on\n>From there\n\n"
    "    indented\n\nSigned-off-by: Zoë <zoe@example.org>",
    author='"Müller, Zoë" <zoe@example.org>',
)
CARRIAGE = Change("carriage", "Dos", (Edit("vllm/dos.py", "b = 2\r\n", "b = 3\r\n"),))
OPEN_END = Change("open-end", "End", (Edit("vllm/open.py", "b = 2", "b = 3"),))
RELEASE = TREE | {
    "vllm/dos.py": b"a = 1\r\nb = 2\r\nc = 3\r\n",
    "vllm/open.py": b"a = 1\nb = 2",
    ".gitattributes": b"*.py diff=python text eol=crlf ident\n*.bin filter=lfs\n",
    ".gitignore": b"vllm/_version.py\n*.so\n",
    "vllm/ident.py": b"# $Id$\n",
    "data.bin": bytes(range(256)),
}
ALL = (BOUNDS, WARNING, CLEAR, ODD, CARRIAGE, OPEN_END)
HOSTILE = """\
[core]
	autocrlf = true
	eol = crlf
	safecrlf = true
	hooksPath = {hooks}
	attributesFile = {attributes}
	commentChar = ;
	abbrev = 4
[format]
	signature = "sent from my phone"
	signOff = true
	numbered = true
	subjectPrefix = RFC
	attach = true
	from = true
	headers = "X-Odd: yes\\n"
	notes = true
	noprefix = true
	coverLetter = auto
	outputDirectory = /nonexistent
	thread = deep
	encodeEmailHeaders = true
[diff]
	noprefix = true
	mnemonicPrefix = true
	context = 1
	algorithm = patience
	renames = copies
	external = /bin/false
	orderFile = {attributes}
	interHunkContext = 9
[commit]
	gpgSign = true
	template = /nonexistent
[gpg]
	program = /bin/false
[am]
	threeWay = true
	keepcr = false
[apply]
	whitespace = fix
[mailinfo]
	scissors = true
[i18n]
	commitEncoding = latin1
	logOutputEncoding = latin1
[user]
	useConfigOnly = true
[init]
	defaultBranch = other
	templateDir = {hooks}
[merge]
	conflictStyle = diff3
[notes]
	rewriteMode = ignore
"""


def series(*changes: Change, overlay: dict[str, bytes] | None = None) -> Series:
    return patching.series(*changes, tree=RELEASE, overlay=overlay)


def texts(of: Series) -> dict[str, bytes]:
    return {patch.name: patch.text.data for patch in of.patches}


def created(folder: Path, of: Series, *, whole: bool = True) -> Git:
    return scratch.create(folder, of, MemoryTree(RELEASE, "vllm-1.2.3.tar.gz"), whole=whole)


def assert_identity(folder: Path, of: Series) -> None:
    exported = scratch.export(folder, of)
    assert exported.patches == texts(of)
    assert list(exported.patches) == [patch.name for patch in of.patches]
    assert exported.overlay == of.overlay


def user(folder: Path, *arguments: str, **environment: str) -> None:
    """Run git as a user does, with the user's own environment."""
    subprocess.run(
        ["git", *arguments],
        cwd=folder,
        check=True,
        env=os.environ | environment,
        capture_output=True,
    )


def rebase(folder: Path, script: str) -> None:
    """Run an interactive rebase whose list of commits a sed script edits."""
    user(folder, "rebase", "-i", "upstream", GIT_SEQUENCE_EDITOR=f"sed -i -e '{script}'")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scratch") / "untouched"
    created(folder, series(*ALL, overlay=tiny.OVERLAY))
    return folder


@pytest.fixture
def repository(tmp_path: Path, untouched: Path) -> tuple[Path, Series]:
    """Return a scratch repository of the whole series, for one test to work in."""
    shutil.copytree(untouched, tmp_path / "scratch", symlinks=True)
    return tmp_path / "scratch", series(*ALL, overlay=tiny.OVERLAY)


@pytest.mark.parametrize("whole", [True, False])
def test_export_after_create_is_the_identity(tmp_path: Path, *, whole: bool) -> None:
    found = series(*ALL, overlay=tiny.OVERLAY)
    created(tmp_path / "scratch", found, whole=whole)
    assert_identity(tmp_path / "scratch", found)


SMALL = Change(
    "small",
    "[Bugfix] Größe",
    (Edit("vllm/envs.py", "DEBUG = False\n", "DEBUG = True\n"),),
    body="Warum: ein Zähler.",
    author="Zoë Müller <zoe@example.org>",
)
SMALL_MAIL = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Zoë Müller <zoe@example.org>
Date: Tue, 3 Nov 2026 09:00:00 +0100
Subject: [PATCH] [Bugfix] Größe
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: 8bit

Warum: ein Zähler.

diff --git a/vllm/envs.py b/vllm/envs.py
index ff3a52f2f454d9005cda81313c0aba07aed7f5df..2c8c9f2a095dafa055ae324c7e30d175c1a268a2 100644
--- a/vllm/envs.py
+++ b/vllm/envs.py
@@ -1,3 +1,3 @@
 # SPDX-License-Identifier: Apache-2.0
-DEBUG = False
+DEBUG = True
 CACHE = None
"""


def test_an_exported_patch_has_one_form_readable_and_without_gits_version(tmp_path: Path) -> None:
    small = patching.patch("small", SMALL_MAIL.encode())
    found = dataclasses.replace(series(), patches=(small,))
    created(tmp_path / "scratch", found)
    assert_identity(tmp_path / "scratch", found)


def test_an_empty_series_is_exported_as_one(tmp_path: Path) -> None:
    created(tmp_path / "scratch", series())
    assert_identity(tmp_path / "scratch", series())


def test_the_work_tree_is_what_the_plan_makes(repository: tuple[Path, Series]) -> None:
    folder, _ = repository
    state = RELEASE | tiny.OVERLAY
    for change in ALL:
        state = change.put_in(state)
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }
    assert found == state


def test_the_tag_upstream_is_the_release_byte_for_byte(repository: tuple[Path, Series]) -> None:
    git = Git(repository[0])
    names = git.text("ls-tree", "-r", "-z", "--name-only", "upstream").split("\0")[:-1]
    assert {name: git.run("show", f"upstream:{name}") for name in names} == RELEASE


def test_a_release_cannot_write_into_gits_own_folder(tmp_path: Path) -> None:
    evil = RELEASE | {".git/config": b"[core]\n\tfsmonitor = /bin/false\n", ".GIT/hooks/x": b""}
    scratch.create(tmp_path / "scratch", series(BOUNDS), MemoryTree(evil), whole=True)
    assert b"fsmonitor" not in (tmp_path / "scratch" / ".git" / "config").read_bytes()
    assert_identity(tmp_path / "scratch", series(BOUNDS))


def test_it_works_inside_another_git_repository(tmp_path: Path) -> None:
    user(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / ".gitattributes").write_text("* -text diff=none\n")
    created(tmp_path / "inner" / "scratch", series(*ALL))
    assert_identity(tmp_path / "inner" / "scratch", series(*ALL))


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the user's git configuration as unhelpful as it can be."""
    home, hooks = tmp_path / "home", tmp_path / "home" / "hooks"
    tiny.write_tree(home, {"attributes": b"* diff=python -diff text eol=crlf\n"})
    for hook in ("pre-commit", "commit-msg", "applypatch-msg", "pre-applypatch", "post-applypatch"):
        tiny.write_tree(hooks, {hook: b"#!/bin/sh\nexit 1\n"})
        (hooks / hook).chmod(0o755)
    config = HOSTILE.format(hooks=hooks, attributes=home / "attributes")
    tiny.write_tree(home, {".gitconfig": config.encode(), ".config/git/config": config.encode()})
    tiny.write_tree(home, {".config/git/ignore": b"*\n", ".config/git/attributes": b"* -diff\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name, value in {
        "GIT_DIR": "/nonexistent",
        "GIT_WORK_TREE": "/nonexistent",
        "GIT_INDEX_FILE": "/nonexistent",
        "GIT_EXTERNAL_DIFF": "/bin/false",
        "GIT_DIFF_OPTS": "--unified=0",
        "GIT_AUTHOR_NAME": "Somebody Else",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "format.signoff",
        "GIT_CONFIG_VALUE_0": "true",
        "LC_ALL": "de_DE.UTF-8",
        "TZ": "Asia/Kolkata",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("hostile")
def test_the_hostile_configuration_does_bite(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        user(tmp_path, "init", "--quiet")


@pytest.mark.usefixtures("hostile")
def test_no_configuration_of_the_user_changes_what_is_exported(tmp_path: Path) -> None:
    created(tmp_path / "scratch", series(*ALL, overlay=tiny.OVERLAY))
    assert_identity(tmp_path / "scratch", series(*ALL, overlay=tiny.OVERLAY))


def test_reordered_commits_are_the_same_patches_in_another_order(tmp_path: Path) -> None:
    found = series(CLEAR, ODD, CARRIAGE)
    created(tmp_path / "scratch", found)
    rebase(tmp_path / "scratch", "1{h;d};2{G}")
    exported = scratch.export(tmp_path / "scratch", found)
    assert list(exported.patches) == ["odd-words", "clear-null-block", "carriage"]
    assert exported.patches == texts(found)


def test_a_dropped_commit_is_a_dropped_patch(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    rebase(folder, "/Name the format/d")
    exported = scratch.export(folder, found)
    kept = texts(found)
    del kept["kv-scale-warning"]
    assert exported.patches == kept


def test_an_amended_commit_keeps_its_name_whatever_its_subject(
    repository: tuple[Path, Series],
) -> None:
    folder, found = repository
    path = folder / "vllm/open.py"
    path.write_bytes(path.read_bytes().replace(b"b = 3", b"b = 4"))
    user(folder, "commit", "--all", "--amend", "--message", "Another subject", "--message", "Why")
    exported = scratch.export(folder, found)
    assert list(exported.patches) == list(texts(found))
    assert b"+b = 4\n" in exported.patches["open-end"]
    assert b"Subject: [PATCH] Another subject\n" in exported.patches["open-end"]
    untouched = {name: data for name, data in exported.patches.items() if name != "open-end"}
    assert untouched == {name: data for name, data in texts(found).items() if name != "open-end"}


def test_a_commit_reworded_in_a_rebase_keeps_its_name(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    user(
        folder,
        *("rebase", "-i", "upstream"),
        GIT_SEQUENCE_EDITOR="sed -i -e '/Leave the null/s/^pick/reword/'",
        GIT_EDITOR="sed -i -e '1s/.*/Spare block 0/'",
    )
    exported = scratch.export(folder, found)
    assert list(exported.patches) == list(texts(found))
    assert b"Subject: [PATCH] Spare block 0\n" in exported.patches["clear-null-block"]


def test_a_rebase_that_changes_nothing_is_the_identity(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    user(folder, "rebase", "--force-rebase", "upstream")
    assert_identity(folder, found)


def commit(folder: Path, path: str, data: bytes, *message: str) -> None:
    tiny.write_tree(folder, {path: data})
    user(folder, "add", "--all", "--force")
    user(folder, "commit", *(part for text in message for part in ("--message", text)))


def test_a_new_commit_is_a_patch_named_after_its_subject(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    commit(folder, "vllm/envs.py", b"OTHER = 1\n", "[Bugfix] Say it once, 2 times", "Why.")
    exported = scratch.export(folder, found)
    assert list(exported.patches) == [*texts(found), "bugfix-say-it-once-2-times"]


def test_a_new_patch_without_metadata_is_refused_with_the_file_to_write(
    repository: tuple[Path, Series], tmp_path: Path
) -> None:
    folder, found = repository
    commit(folder, "vllm/envs.py", b"OTHER = 1\n", "Say it", "Why.")
    exported = scratch.export(folder, found)
    for name in texts(found):
        tiny.write_tree(tmp_path / "patches", {f"{name}.toml": b""})
    with pytest.raises(LockError, match="patch say-it has no metadata") as caught:
        scratch.check_metadata(exported, tmp_path / "patches")
    assert str(caught.value.file).endswith("patches/say-it.toml")
    tiny.write_tree(tmp_path / "patches", {"say-it.toml": b""})
    scratch.check_metadata(exported, tmp_path / "patches")


def test_a_changed_overlay_commit_changes_the_overlay(tmp_path: Path) -> None:
    found = series(overlay=tiny.OVERLAY)
    created(tmp_path / "scratch", found)
    tiny.write_tree(tmp_path / "scratch", {tiny.REPORT: b"new\n", "vllm/_version.so": b"more\n"})
    user(tmp_path / "scratch", "add", "--all", "--force")
    user(tmp_path / "scratch", "commit", "--amend", "--no-edit")
    exported = scratch.export(tmp_path / "scratch", found)
    assert exported.overlay == {tiny.REPORT: b"new\n", "vllm/_version.so": b"more\n"}


def refused(folder: Path, found: Series, kind: type[BuildError]) -> BuildError:
    with pytest.raises(kind) as caught:
        scratch.export(folder, found)
    assert caught.value.next_command
    return caught.value


def test_a_new_file_in_a_patch_is_sent_to_the_overlay(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    commit(folder, "vllm/new.py", b"", "Add a file", "Why.")
    error = refused(folder, found, PatchFormatError)
    assert "overlay/v1.2.3/" in str(error.next_command)


def test_a_commit_without_a_reason_is_refused(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    commit(folder, "vllm/envs.py", b"OTHER = 1\n", "Say it")
    assert refused(folder, found, PatchFormatError).found == "a subject only"


@pytest.mark.parametrize("subject", ["2 times faster", "大", "-"])
def test_a_subject_that_gives_no_name_is_refused_with_a_way_out(
    repository: tuple[Path, Series], subject: str
) -> None:
    folder, found = repository
    commit(folder, "vllm/envs.py", b"OTHER = 1\n", subject, "Why.")
    if subject == "2 times faster":
        assert "notes add" in str(refused(folder, found, LockError).next_command)
    else:
        assert list(scratch.export(folder, found).patches)[-1] == "patch"


def test_a_note_with_a_path_for_a_name_is_refused(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    user(folder, "notes", "add", "--force", "--message", "Patch-Name: ../../evil", "HEAD")
    assert refused(folder, found, LockError).found == "../../evil"


def test_two_commits_of_one_name_are_refused(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    user(folder, "notes", "add", "--force", "--message", "Patch-Name: carriage", "HEAD")
    assert refused(folder, found, ConflictError).summary == "two commits are patch carriage"


def test_an_empty_commit_is_refused(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    user(folder, "commit", "--allow-empty", "--message", "Nothing", "--message", "Why.")
    assert refused(folder, found, ConflictError).found == "an empty commit"


def test_a_merge_is_refused(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    user(folder, "checkout", "-b", "side", "HEAD~1")
    commit(folder, "vllm/envs.py", b"SIDE = 1\n", "Side", "Why.")
    user(folder, "merge", "series", "--message", "Merge")
    assert str(refused(folder, found, ConflictError).found).startswith("merge ")


def test_commits_that_do_not_stand_on_upstream_are_refused(
    repository: tuple[Path, Series],
) -> None:
    folder, found = repository
    user(folder, "checkout", "--orphan", "alone")
    user(folder, "commit", "--message", "Alone")
    assert refused(folder, found, ConflictError).found == "a branch that does not hold upstream"


@pytest.mark.parametrize("name", ["vllm/envs.py", "vllm/untracked.py"])
def test_changes_in_no_commit_are_refused(repository: tuple[Path, Series], name: str) -> None:
    folder, found = repository
    tiny.write_tree(folder, {name: b"changed\n"})
    assert name in str(refused(folder, found, UsageError).found)


def test_a_rebase_under_way_is_refused(repository: tuple[Path, Series]) -> None:
    """Else the patches that the rebase has not come to yet would be lost without a word."""
    folder, found = repository
    rebase(folder, "2s/^pick/edit/")
    assert "under way" in refused(folder, found, UsageError).summary
    user(folder, "rebase", "--continue")
    assert_identity(folder, found)


def test_another_lines_repository_is_refused(repository: tuple[Path, Series]) -> None:
    folder, found = repository
    user(folder, "config", "vllm-sm120.line", "v9.9.9")
    assert "no scratch repository" in refused(folder, found, UsageError).summary


@pytest.mark.parametrize("what", ["nothing", "folder", "repository"])
def test_a_folder_that_edit_did_not_make_is_refused(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "other"
    if what != "nothing":
        folder.mkdir()
    if what == "repository":
        user(folder, "init", "--quiet")
    error = refused(folder, series(BOUNDS), UsageError)
    assert error.next_command == "python build.py edit v1.2.3"


@pytest.mark.parametrize("what", ["file", "full"])
def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "scratch"
    if what == "full":
        tiny.write_tree(folder, {"a": b""})
    else:
        folder.write_bytes(b"")
    with pytest.raises(UsageError, match="not empty"):
        created(folder, series(BOUNDS))


def test_a_patch_that_does_not_apply_is_drift(tmp_path: Path) -> None:
    other = RELEASE | {KERNELS: b"nothing\n"}
    with pytest.raises(DriftedError) as caught:
        scratch.create(tmp_path / "scratch", series(BOUNDS), MemoryTree(other), whole=True)
    assert caught.value.file == "patches/v1.2.3/state-index-bounds.patch"


def test_the_series_file_stays_as_it_is_while_the_order_does() -> None:
    previous = b"# why\n\none  # first\ntwo\n"
    exported = scratch.Exported({"one": b"", "two": b""}, {})
    assert exported.series(previous) == previous


def test_the_series_file_keeps_its_head_when_the_order_changes() -> None:
    previous = b"# why\n\none  # first\ntwo\n"
    assert scratch.Exported({"two": b"", "one": b""}, {}).series(previous) == b"# why\ntwo\none\n"
