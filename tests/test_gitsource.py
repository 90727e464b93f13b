"""The source `git`: a commit is accepted only if its files are the sdist's."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from imagebuild.errors import ChecksumError, SourceError
from imagebuild.fetch import equality
from imagebuild.fetch.cache import Cache
from imagebuild.fetch.gitsource import GitTree, check_equals
from imagebuild.fetch.sdist import SdistTree
from imagebuild.fetch.tree import DirTree
from tests.support.simple_index import closed_port
from tests.support.tarballs import TOP, entry, pack, tar
from tests.support.watching import Watching

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    ".agents/skills/debug/SKILL.md": b"debug\n",
    "README.md": b"# vLLM\n",
    "CLAUDE.md": b"# vLLM\n",
    "setup.py": b"print()\r\n",
    "vllm/__init__.py": b"",
    "vllm/caf\xc3\xa9.py".encode("latin-1").decode("utf-8"): b"1\n",
}
MADE = {
    "PKG-INFO": b"Name: vllm\n",
    "setup.cfg": b"[egg_info]\n",
    "vllm/_version.py": b"version = '1.2.3'\n",
    "vllm.egg-info/SOURCES.txt": b"setup.py\n",
}
LINK = ".claude/skills/debug"


def run(repository: Path, *arguments: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = {
        f"GIT_{role}_{what}": "a@b"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    when = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    done = subprocess.run(
        ["git", "-C", str(repository), "-c", "core.autocrlf=false", *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=kept | who | when | {"GIT_CONFIG_GLOBAL": "/dev/null"},
    )
    return done.stdout.strip()


def write(root: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def commit(repository: Path) -> str:
    run(repository, "add", "--all", "--force")
    run(repository, "commit", "--quiet", "--message=files")
    return run(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout as upstream's is, with a link to a file and one to a folder."""
    root = tmp_path / "checkout"
    root.mkdir()
    run(root, "init", "--quiet", "--initial-branch=main")
    write(root, {path: data for path, data in FILES.items() if path != "CLAUDE.md"})
    (root / "CLAUDE.md").symlink_to("README.md")
    (root / ".claude" / "skills").mkdir(parents=True)
    (root / LINK).symlink_to("../../.agents/skills/debug")
    commit(root)
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def sdist(tmp_path: Path, cache: Cache) -> SdistTree:
    data = pack(tar(entry(f"{TOP}/{path}", content) for path, content in (FILES | MADE).items()))
    (tmp_path / "sdist.tar.gz").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    return SdistTree.open(tmp_path / "sdist.tar.gz", sha256, cache, Watching())


def head(repository: Path) -> str:
    return run(repository, "rev-parse", "HEAD")


def open_tree(repository: Path | str, cache: Cache, which: str | None = None) -> GitTree:
    if which is None:
        assert not isinstance(repository, str)
        which = head(repository)
    return GitTree.open(str(repository), which, cache, Watching())


def test_a_commit_whose_files_are_the_sdists_is_accepted_and_what_one_lacks_is_listed(
    repository: Path, cache: Cache, sdist: SdistTree
) -> None:
    found = check_equals(open_tree(repository, cache), sdist.manifest())
    assert found.equal == len(FILES)
    assert found.sdist_only == tuple(sorted(MADE))
    assert found.tree_only == (LINK,)


def test_a_commit_gives_its_files_and_a_link_to_one_of_them_as_one(
    repository: Path, cache: Cache
) -> None:
    tree = open_tree(repository, cache)
    assert {path: tree.read(path) for path in tree.files()} == FILES
    assert tree.label == f"commit {head(repository)[:12]} in {repository}"
    for absent in (LINK, "vllm", "nothing", "../checkout/setup.py", "/etc/passwd"):
        assert tree.read(absent) is None


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "../outside"])
def test_a_link_out_of_the_commit_is_not_followed(
    repository: Path, cache: Cache, target: str
) -> None:
    (repository.parent / "outside").write_text("outside")
    (repository / "odd").symlink_to(target)
    commit(repository)
    assert open_tree(repository, cache).read("odd") is None


def test_a_bare_mirror_is_a_source(repository: Path, cache: Cache, tmp_path: Path) -> None:
    run(tmp_path, "clone", "--quiet", "--mirror", str(repository), "mirror.git")
    tree = open_tree(tmp_path / "mirror.git", cache)
    assert tree.read("setup.py") == FILES["setup.py"]


def test_what_is_not_committed_does_not_count(repository: Path, cache: Cache) -> None:
    (repository / "setup.py").write_bytes(b"edited")
    (repository / "new.py").write_bytes(b"new")
    run(repository, "add", "new.py")
    tree = open_tree(repository, cache)
    assert tree.read("setup.py") == FILES["setup.py"]
    assert tree.read("new.py") is None


def test_a_commit_with_another_content_is_refused_and_the_file_named(
    repository: Path, cache: Cache, sdist: SdistTree
) -> None:
    (repository / "setup.py").write_bytes(b"print()\n")
    commit(repository)
    with pytest.raises(ChecksumError, match="not what the sdist was made of") as caught:
        check_equals(open_tree(repository, cache), sdist.manifest())
    assert caught.value.detail == "setup.py: differs"
    assert head(repository)[:12] in str(caught.value.file)


def test_a_file_that_only_one_of_the_two_should_have_is_refused_and_named(
    repository: Path, cache: Cache, sdist: SdistTree
) -> None:
    write(repository, {"vllm/extra.py": b""})
    (repository / "README.md").rename(repository / "READ.ME")
    commit(repository)
    with pytest.raises(ChecksumError) as caught:
        check_equals(open_tree(repository, cache), sdist.manifest())
    assert caught.value.detail is not None
    assert caught.value.detail.splitlines() == [
        "CLAUDE.md: only in the sdist",  # in git a link to a file that is gone
        "README.md: only in the sdist",
        "READ.ME: not in the sdist",
        "vllm/extra.py: not in the sdist",
    ]


def test_only_the_first_differences_are_named(
    repository: Path, cache: Cache, sdist: SdistTree
) -> None:
    write(repository, {f"extra{number:02}.py": b"" for number in range(30)})
    commit(repository)
    with pytest.raises(ChecksumError) as caught:
        check_equals(open_tree(repository, cache), sdist.manifest())
    assert caught.value.found == "30 that are not the same"
    assert len(str(caught.value.detail).splitlines()) == 11


def test_a_submodule_is_refused(repository: Path, cache: Cache, sdist: SdistTree) -> None:
    run(repository, "update-index", "--add", "--cacheinfo", f"160000,{head(repository)},third")
    run(repository, "commit", "--quiet", "--message=submodule")
    with pytest.raises(ChecksumError) as caught:
        check_equals(open_tree(repository, cache), sdist.manifest())
    assert caught.value.detail == "third: not in the sdist"


def test_a_folder_is_held_against_the_sdist_in_the_same_way(
    repository: Path, sdist: SdistTree
) -> None:
    (repository / "CLAUDE.md").unlink()
    write(repository, {"CLAUDE.md": FILES["CLAUDE.md"]})
    assert equality.check_equals(DirTree(repository), sdist.manifest()).equal == len(FILES)
    (repository / "setup.py").write_bytes(b"edited")
    with pytest.raises(ChecksumError):
        equality.check_equals(DirTree(repository), sdist.manifest())


def test_a_repository_inside_another_one_is_read_itself(
    repository: Path, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repository / "inner"
    shutil.copytree(repository, inner, symlinks=True, ignore=shutil.ignore_patterns("inner"))
    write(inner, {"setup.py": b"inner\n"})
    commit(inner)
    monkeypatch.chdir(repository / "vllm")
    assert open_tree(inner, cache).read("setup.py") == b"inner\n"
    assert GitTree.open("../inner", head(inner), cache, Watching()).read("setup.py") == b"inner\n"
    assert not (tmp_path / "checkout" / ".git" / "cache").exists()


def test_a_folder_inside_a_repository_is_not_taken_for_one(repository: Path, cache: Cache) -> None:
    assert run(repository / "vllm", "rev-parse", "HEAD")
    with pytest.raises(SourceError, match="no git repository") as caught:
        open_tree(repository / "vllm", cache, head(repository))
    assert caught.value.file == str(repository / "vllm")


def test_gits_own_variables_do_not_lead_to_another_repository(
    repository: Path, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    run(tmp_path / "other", "init", "--quiet")
    which = head(repository)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "other" / ".git" / "objects"))
    assert open_tree(repository, cache, which).read("setup.py") == FILES["setup.py"]


def test_no_filter_hook_or_replacement_of_the_repository_has_a_say(
    repository: Path, cache: Cache, tmp_path: Path, sdist: SdistTree
) -> None:
    fired = tmp_path / "fired"
    run(repository, "config", "filter.evil.smudge", f"touch {fired}; cat")
    run(repository, "config", "core.fsmonitor", f"touch {fired}; true")
    run(repository, "config", "core.sshCommand", f"touch {fired}; true")
    (repository / ".git/info/attributes").write_text("* filter=evil eol=crlf\n")
    other = run(repository, "hash-object", "-w", "README.md")
    run(repository, "replace", run(repository, "rev-parse", "HEAD:setup.py"), other)
    assert run(repository, "show", "HEAD:setup.py") == "# vLLM"
    fired.unlink(missing_ok=True)
    assert check_equals(open_tree(repository, cache), sdist.manifest()).equal == len(FILES)
    assert not fired.exists()


def test_a_repository_is_only_read(repository: Path, cache: Cache, sdist: SdistTree) -> None:
    which = head(repository)

    def state() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
            for path in repository.rglob("*")
        }

    for path in [repository, *repository.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    before = state()
    check_equals(open_tree(repository, cache, which), sdist.manifest())
    assert state() == before
    for path in [repository, *repository.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


@pytest.mark.parametrize("digits", [7, 9, 39])
def test_the_first_digits_of_a_commit_are_enough(
    repository: Path, cache: Cache, digits: int
) -> None:
    assert open_tree(repository, cache, head(repository)[:digits]).commit == head(repository)


def test_digits_that_two_commits_begin_with_are_refused(repository: Path, cache: Cache) -> None:
    body = run(repository, "cat-file", "commit", "HEAD")
    seen: dict[str, bytes] = {}
    number = 0
    while True:
        number += 1
        content = f"{body}\n{number}\n".encode()
        header = f"commit {len(content)}\0".encode()
        digits = hashlib.sha1(header + content).hexdigest()[:7]  # noqa: S324  (git's own)
        if digits in seen:
            break
        seen[digits] = content
    for data in (seen[digits], content):
        (repository.parent / "object").write_bytes(data)
        run(repository, "hash-object", "-w", "-t", "commit", str(repository.parent / "object"))
    with pytest.raises(SourceError) as caught:
        open_tree(repository, cache, digits)
    assert str(caught.value.found).startswith("2 commits: ")


def test_a_branch_with_a_commits_digits_for_a_name_does_not_count(
    repository: Path, cache: Cache
) -> None:
    first = head(repository)
    write(repository, {"more.py": b""})
    second = commit(repository)
    run(repository, "branch", first[:9], second)
    assert open_tree(repository, cache, first[:9]).commit == first


@pytest.mark.parametrize("which", ["0123456789", "HEAD", "main", "--all", "", "0123456"])
def test_a_commit_that_is_not_there_is_an_error(repository: Path, cache: Cache, which: str) -> None:
    with pytest.raises(SourceError, match="does not have the commit") as caught:
        open_tree(repository, cache, which)
    assert caught.value.expected == f"one commit {which}"


def test_a_tree_or_blob_is_not_a_commit(repository: Path, cache: Cache) -> None:
    with pytest.raises(SourceError, match="does not have the commit"):
        open_tree(repository, cache, run(repository, "rev-parse", "HEAD^{tree}"))


@pytest.mark.parametrize("name", ["nothing", "folder"])
def test_a_path_without_a_repository_is_an_error(cache: Cache, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match="no git repository"):
        open_tree(tmp_path / name, cache, "0" * 40)


def test_a_damaged_repository_is_an_error(repository: Path, cache: Cache) -> None:
    oid = run(repository, "rev-parse", "HEAD:setup.py")
    (repository / ".git" / "objects" / oid[:2] / oid[2:]).unlink()
    with pytest.raises(SourceError, match="does not give an object") as caught:
        open_tree(repository, cache).read("setup.py")
    assert oid in str(caught.value.expected)


def test_without_git_the_error_says_so(
    repository: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = head(repository)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SourceError):
        open_tree(repository, cache, which)


def test_a_remote_commit_is_fetched_once_without_history(repository: Path, cache: Cache) -> None:
    write(repository, {"more.py": b""})
    which = commit(repository)
    run(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    watching = Watching()
    url = repository.as_uri()
    tree = GitTree.open(url, which, cache, watching)
    assert tree.read("more.py") == b""
    assert watching.notes == [f"fetching {which} of {url}"]
    assert tree.repository.text("rev-list", "--all", "--count") == "1"
    shutil.rmtree(repository)
    again = GitTree.open(url, which, cache, watching, offline=True)
    assert again.read("setup.py") == FILES["setup.py"]
    assert len(watching.notes) == 1


def test_a_remote_commit_of_which_only_the_first_digits_are_known_comes_by_its_tag(
    repository: Path, cache: Cache
) -> None:
    run(repository, "tag", "--annotate", "--message=v1.2.3", "v1.2.3")
    which = head(repository)
    tree = GitTree.open(repository.as_uri(), which[:9], cache, Watching(), tag="v1.2.3")
    assert tree.commit == which


def test_a_remote_tag_that_was_moved_to_another_commit_is_refused(
    repository: Path, cache: Cache
) -> None:
    first = head(repository)
    write(repository, {"more.py": b""})
    commit(repository)
    run(repository, "checkout", "--quiet", "--orphan", "fresh")
    commit(repository)
    run(repository, "tag", "v1.2.3")
    with pytest.raises(SourceError, match="does not have the commit"):
        GitTree.open(repository.as_uri(), first[:9], cache, Watching(), tag="v1.2.3")


def test_what_a_killed_fetch_left_does_not_stop_the_next(repository: Path, cache: Cache) -> None:
    url, which = repository.as_uri(), head(repository)
    first = GitTree.open(url, which, cache, Watching())
    write(repository, {"more.py": b""})
    second = commit(repository)
    (first.repository.folder / "shallow.lock").touch()
    assert GitTree.open(url, second, cache, Watching()).read("more.py") == b""


def test_a_remote_that_does_not_answer_is_an_error_without_credentials(cache: Cache) -> None:
    url = closed_port().replace("//", "//someone:secret@")
    with pytest.raises(SourceError, match="does not give the commit") as caught:
        GitTree.open(url, "0" * 40, cache, Watching())
    assert "secret" not in caught.value.diagnostics()
    with pytest.raises(SourceError, match="does not have the commit"):
        GitTree.open(url, "0" * 40, cache, Watching(), offline=True)


@pytest.mark.parametrize("url", ["ext::sh -c touch% {}", "ext://sh -c touch {}"])
def test_an_address_that_is_a_command_is_not_run(cache: Cache, tmp_path: Path, url: str) -> None:
    fired = tmp_path / "fired"
    with pytest.raises(SourceError):
        GitTree.open(url.format(fired), "0" * 40, cache, Watching())
    assert not fired.exists()
