"""The generated files say what the build is, and Python can run them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild import upstream
from imagebuild.errors import DriftedError
from imagebuild.fetch.tree import MemoryTree
from imagebuild.patching import checksums, identity
from tests.support import patching, tiny
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from imagebuild.upstream import Line

RELEASES = {
    "plain": TREE[identity.VERSION_MODULE],
    "v0.16.0": b"version_tuple: VERSION_TUPLE\n\n__version__ = version = '1.2.3'\n"
    b"__version_tuple__ = version_tuple = (1, 2, 3)\n\n__commit_id__ = commit_id = 'g89a77b108'\n",
}


def line(**changed: object) -> Line:
    return upstream.parse(tiny.upstream_lock(**changed), Path("upstream.lock")).lines[tiny.LINE]


def run(source: bytes, name: str = "module") -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), found)  # noqa: S102  (what the build generates)
    return found


def version_module(content: bytes) -> bytes:
    return identity.version_module(line(), MemoryTree({identity.VERSION_MODULE: content}, "a tree"))


def test_the_overlay_module_says_what_it_is() -> None:
    series = patching.series(*tiny.CHANGES)
    digest = checksums.patchset_sha256(series)
    module = run(identity.overlay_module(line(), series, digest))
    assert module["UPSTREAM_VERSION"] == "1.2.3"
    assert module["UPSTREAM_COMMIT"] == "0123456ab"
    assert module["VERSION"] == "1.2.3+sm120.1"
    assert module["PATCHSET_SHA256"] == digest
    assert module["PATCHES"] == {patch.name: patch.text.sha256 for patch in series.patches}
    assert list(module["PATCHES"]) == [patch.name for patch in series.patches]
    assert module["describe"]() == (
        "vLLM 1.2.3+sm120.1 (upstream 1.2.3, commit 0123456ab; "
        f"patch set {digest[:12]}: state-index-bounds, kv-scale-warning, clear-null-block)"
    )


def test_the_whole_commit_is_named_where_it_is_pinned() -> None:
    commit = "0123456ab" + "f" * 31
    series = patching.series()
    source = identity.overlay_module(line(commit=commit), series, checksums.patchset_sha256(series))
    assert run(source)["UPSTREAM_COMMIT"] == commit


def test_an_empty_series_is_described_too() -> None:
    series = patching.series()
    source = identity.overlay_module(line(), series, checksums.patchset_sha256(series))
    assert run(source)["describe"]().endswith(": none)")


def test_the_overlay_module_has_lines_of_at_most_a_hundred_characters() -> None:
    series = patching.series(*tiny.CHANGES)
    source = identity.overlay_module(line(), series, checksums.patchset_sha256(series))
    assert max(map(len, source.splitlines())) <= 100


@pytest.mark.parametrize("release", RELEASES)
def test_the_version_module_carries_the_local_version(release: str) -> None:
    new = version_module(RELEASES[release])
    assert b"\n__version__ = version = '1.2.3+sm120.1'\n" in new
    assert b"\n__version_tuple__ = version_tuple = (1, 2, 3, 'sm120.1')\n" in new


def test_the_version_module_runs_and_agrees_with_itself() -> None:
    module = run(version_module(RELEASES["plain"]))
    assert module["__version__"] == module["version"] == "1.2.3+sm120.1"
    assert module["__version_tuple__"] == module["version_tuple"] == (1, 2, 3, "sm120.1")
    assert module["__commit_id__"] == "g0123456ab"


def test_all_else_in_the_version_module_stays_as_it_is() -> None:
    old, new = RELEASES["plain"], version_module(RELEASES["plain"])
    back = new.replace(b"+sm120.1", b"").replace(b", 'sm120.1'", b"")
    assert back == old


def test_the_tiny_package_reports_the_local_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = version_module(TREE[identity.VERSION_MODULE])
    tiny.write_tree(tmp_path, TREE | {identity.VERSION_MODULE: new})
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    import vllm  # noqa: PLC0415

    try:
        assert vllm.__version__ == "1.2.3+sm120.1"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]


UNKNOWN = {
    "another-version": TREE[identity.VERSION_MODULE].replace(b"1.2.3", b"1.2.4"),
    "twice": TREE[identity.VERSION_MODULE] * 2,
    "double-quotes": TREE[identity.VERSION_MODULE].replace(b"'", b'"'),
    "no-tuple": TREE[identity.VERSION_MODULE].replace(b"__version_tuple__ = version", b"# gone"),
    "another-tuple": TREE[identity.VERSION_MODULE].replace(b"(1, 2, 3)", b"(1, 2, 4)"),
    "empty": b"",
}


@pytest.mark.parametrize("form", UNKNOWN)
def test_a_version_module_of_another_form_is_drift(form: str) -> None:
    assert UNKNOWN[form] != TREE[identity.VERSION_MODULE]
    with pytest.raises(DriftedError, match="does not have the form") as caught:
        version_module(UNKNOWN[form])
    assert caught.value.file == "vllm/_version.py in a tree"
    assert caught.value.next_command


def test_a_release_without_a_version_module_is_drift() -> None:
    with pytest.raises(DriftedError) as caught:
        identity.version_module(line(), MemoryTree({}))
    assert caught.value.found == "no such file"
