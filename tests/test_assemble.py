"""From a series and a tree to the set of produced files, each compared with the lock."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec
import pytest

from imagebuild.digest import sha256_bytes
from imagebuild.errors import (
    ChecksumError,
    ConflictError,
    DriftedError,
    PartialError,
    UpstreamedError,
)
from imagebuild.fetch.tree import DirTree, MemoryTree
from imagebuild.patching import apply, assemble, identity
from tests.support import patching, tiny
from tests.support.tiny import BOUNDS, CLEAR, KERNELS, REPORT, WARNING, WORKER, Change, Edit
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.patching.produced import Patchset

FINAL = CLEAR.put_in(WARNING.put_in(BOUNDS.put_in(TREE)))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "project")


def built(project: tiny.Tiny, contents: dict[str, bytes] | None = None) -> Patchset:
    tree = project.source if contents is None else MemoryTree(contents)
    return assemble.build_patchset(project.line, project.series, project.pins, tree, project.source)


def test_a_series_produces_patched_overlay_and_generated_files(project: tiny.Tiny) -> None:
    files = built(project).files
    assert {file.path: file.origin for file in files} == {
        "vllm/_overlay.py": "generated",
        "vllm/_version.py": "generated",
        tiny.SCALES: "patched",
        KERNELS: "patched",
        REPORT: "overlay",
        WORKER: "patched",
    }
    assert [file.path for file in files] == sorted(file.path for file in files)


def test_every_produced_file_has_its_content_and_upstreams_digest(project: tiny.Tiny) -> None:
    for file in built(project).files:
        if file.origin == "patched":
            assert file.data == FINAL[file.path]
        before = project.tree.get(file.path)
        assert file.before == (None if before is None else sha256_bytes(before))


def test_the_patch_set_names_its_patches_in_order(project: tiny.Tiny) -> None:
    assert list(built(project).patches) == [change.name for change in tiny.CHANGES]


def test_the_lock_holds_what_is_produced(project: tiny.Tiny) -> None:
    patchset = built(project)
    assert project.pins.produced == {file.path: file.after for file in patchset.files}
    assert project.pins.patchset == patchset.sha256


def test_deriving_twice_gives_the_same(project: tiny.Tiny) -> None:
    derived = assemble.derive(project.line, project.series, project.source)
    assert derived == project.pins


def test_a_tree_that_is_patched_already_gives_the_same_patch_set(project: tiny.Tiny) -> None:
    done = project.tree | {path: FINAL[path] for path in project.series.targets}
    assert built(project, done) == built(project)


def test_a_tree_that_is_patched_to_the_middle_gives_the_same_patch_set(project: tiny.Tiny) -> None:
    assert built(project, BOUNDS.put_in(project.tree)) == built(project)


def test_a_folder_gives_the_same_patch_set_and_is_not_written_to(
    project: tiny.Tiny, tmp_path: Path
) -> None:
    tiny.write_tree(tmp_path, project.tree)
    found = assemble.build_patchset(
        project.line, project.series, project.pins, DirTree(tmp_path), project.source
    )
    assert found == built(project)
    assert {path: (tmp_path / path).read_bytes() for path in project.tree} == project.tree


def test_a_half_patched_tree_is_an_error_with_the_way_out(project: tiny.Tiny) -> None:
    half = project.tree | {WORKER: FINAL[WORKER]}
    with pytest.raises(PartialError) as caught:
        built(project, half)
    assert caught.value.next_command is not None
    assert "from the sdist" in caught.value.next_command


def test_a_tree_with_other_content_around_the_hunks_is_refused(project: tiny.Tiny) -> None:
    other = project.tree | {WORKER: b"# touched\n" + project.tree[WORKER]}
    with pytest.raises(ChecksumError, match="not the one in the lock") as caught:
        built(project, other)
    assert caught.value.file == WORKER
    assert str(caught.value.detail).startswith("The tree was memory")


def refused(project: tiny.Tiny, **changed: object) -> ChecksumError:
    pins = msgspec.structs.replace(project.pins, **changed)
    with pytest.raises(ChecksumError) as caught:
        assemble.build_patchset(project.line, project.series, pins, project.source, project.source)
    return caught.value


def test_a_produced_file_with_another_digest_is_refused(project: tiny.Tiny) -> None:
    produced = project.pins.produced | {"vllm/_overlay.py": "0" * 64}
    assert refused(project, produced=produced).file == "vllm/_overlay.py"


def test_a_produced_file_that_the_lock_does_not_know_is_refused(project: tiny.Tiny) -> None:
    produced = {path: d for path, d in project.pins.produced.items() if path != REPORT}
    assert refused(project, produced=produced).file == REPORT


def test_a_produced_file_that_is_in_the_lock_only_is_refused(project: tiny.Tiny) -> None:
    produced = project.pins.produced | {"vllm/zzz.py": "0" * 64}
    assert refused(project, produced=produced).file == "vllm/zzz.py"


def test_checksums_of_another_revision_are_refused_by_name(project: tiny.Tiny) -> None:
    error = refused(project, version="1.2.3+sm120.2")
    assert error.summary == "the checksums of line v1.2.3 were made for another version"
    assert error.next_command == "python build.py lock v1.2.3 --write"


def overlaid(project: tiny.Tiny, overlay: dict[str, bytes]) -> None:
    series = dataclasses.replace(project.series, overlay=overlay)
    plan = apply.plan(series, project.source)
    assemble.assemble(project.line, series, plan, project.source)


def test_an_overlay_file_that_exists_upstream_is_a_conflict(project: tiny.Tiny) -> None:
    with pytest.raises(ConflictError, match="exists upstream with other content") as caught:
        overlaid(project, {"vllm/envs.py": b"other"})
    assert caught.value.file == f"vllm/envs.py in {tiny.SDIST_NAME}"


def test_an_overlay_file_that_is_upstreams_own_is_none(project: tiny.Tiny) -> None:
    overlaid(project, {"vllm/envs.py": TREE["vllm/envs.py"]})


@pytest.mark.parametrize("path", [identity.OVERLAY_MODULE, identity.VERSION_MODULE])
def test_an_overlay_file_in_a_generated_ones_place_is_a_conflict(
    project: tiny.Tiny, path: str
) -> None:
    with pytest.raises(ConflictError, match="that the build generates") as caught:
        overlaid(project, {path: b"mine"})
    assert (caught.value.file, caught.value.found) == (path, "an overlay file")


def test_a_patch_on_a_generated_file_is_a_conflict(project: tiny.Tiny) -> None:
    change = Change("v", "V", (Edit(identity.VERSION_MODULE, "'1.2.3'", "'1.2.9'"),))
    series = patching.series(change)
    with pytest.raises(ConflictError, match="that the build generates") as caught:
        assemble.derive(project.line, series, project.source)
    assert caught.value.found == "a patch that changes it"


def test_an_upstream_that_has_our_generated_module_is_a_conflict(project: tiny.Tiny) -> None:
    tree = MemoryTree(project.tree | {identity.OVERLAY_MODULE: b"theirs"})
    with pytest.raises(ConflictError, match="exists upstream"):
        assemble.derive(project.line, project.series, tree)


def test_a_drop_when_that_is_true_on_its_own_line_cannot_be_locked(project: tiny.Tiny) -> None:
    always = [{"file": KERNELS, "symbol": "read_state"}]
    series = patching.series(BOUNDS, drop_when=always)
    with pytest.raises(UpstreamedError) as caught:
        assemble.derive(project.line, series, project.source)
    assert "patches/v1.2.3/state-index-bounds.toml" in str(caught.value.next_command)


def test_a_patch_that_is_in_its_own_release_cannot_be_locked(project: tiny.Tiny) -> None:
    tree = MemoryTree(BOUNDS.put_in(project.tree))
    with pytest.raises(ConflictError, match="changes nothing on its own line"):
        assemble.derive(project.line, patching.series(BOUNDS), tree)


def test_a_patch_that_does_not_apply_cannot_be_locked(project: tiny.Tiny) -> None:
    tree = MemoryTree(project.tree | {WORKER: b"other\n"})
    with pytest.raises(DriftedError, match="state-index-bounds: drifted") as caught:
        assemble.derive(project.line, project.series, tree)
    assert "wants to make this change" in str(caught.value.detail)


def test_nothing_is_raised_for_a_plan_that_succeeds(project: tiny.Tiny) -> None:
    plan = apply.plan(project.series, project.source)
    assert plan.success
    assemble.raise_first_failure(plan, project.source)
