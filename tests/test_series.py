"""The series: order, patches, metadata and overlay are one, or an error names the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagebuild.errors import LockError, PatchFormatError
from imagebuild.patching import series
from imagebuild.project import Project
from tests.support import tiny


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path / "project")
    tiny.write_series(found)
    return found


def refused(project: Project, kind: type[LockError | PatchFormatError] = LockError) -> LockError:
    with pytest.raises(kind) as caught:
        series.load(project, tiny.LINE)
    assert caught.value.file
    assert caught.value.expected
    assert caught.value.found
    assert caught.value.next_command
    assert isinstance(caught.value, LockError | PatchFormatError)
    return caught.value  # type: ignore[return-value]


def names(text: str) -> tuple[str, ...]:
    return series.parse_names(text.encode(), Path("series"))


def test_a_whole_series_is_read_in_order(project: Project) -> None:
    found = series.load(project, tiny.LINE)
    assert [patch.name for patch in found.patches] == [change.name for change in tiny.CHANGES]
    assert found.overlay == tiny.OVERLAY
    assert found.targets == (tiny.KERNELS, tiny.SCALES, tiny.WORKER)
    assert found.patch("clear-null-block") is found.patches[2]
    assert found.patch("other") is None


def test_comments_spaces_and_empty_lines_are_no_names() -> None:
    assert names("# a\n\n  one  # why\n\ttwo\n") == ("one", "two")


def test_an_empty_series_is_a_series() -> None:
    assert names("# nothing yet\n") == ()


@pytest.mark.parametrize(
    "name", ["One", "1one", "a_b", "a--b", "-a", "a-", "a.patch", "../a", "a b", "\ufeffa", "ä"]
)
def test_a_name_of_another_form_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(LockError, match="bad name") as caught:
        names(f"one\n{name}\n")
    assert caught.value.file == "series:2"
    assert caught.value.found == name


def test_a_patch_listed_twice_is_refused_with_its_second_line() -> None:
    with pytest.raises(LockError, match="'one' stands twice") as caught:
        names("one\ntwo\none\n")
    assert caught.value.file == "series:3"


def test_a_series_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(LockError, match="cannot be read"):
        series.parse_names(b"one\n\xff\n", Path("series"))


def test_a_patch_without_its_file_is_refused(project: Project) -> None:
    (project.patches(tiny.LINE) / "clear-null-block.patch").unlink()
    error = refused(project)
    assert error.summary == "patch clear-null-block has no patch file"
    assert str(error.file).endswith("patches/v1.2.3/clear-null-block.patch")


def test_a_patch_without_metadata_is_refused(project: Project) -> None:
    (project.patches(tiny.LINE) / "clear-null-block.toml").unlink()
    error = refused(project)
    assert error.summary == "patch clear-null-block has no metadata"


@pytest.mark.parametrize("name", ["other.patch", "other.toml", "README.md", "0001-x.patch~"])
def test_a_file_that_the_series_does_not_list_is_refused(project: Project, name: str) -> None:
    (project.patches(tiny.LINE) / name).write_bytes(b"x")
    error = refused(project)
    assert error.summary == "a file stands beside the series but not in it"
    assert str(error.file).endswith(name)


def test_metadata_of_a_patch_to_be_added_may_wait_for_the_export(project: Project) -> None:
    (project.patches(tiny.LINE) / "other.toml").write_bytes(tiny.metadata("other"))
    refused(project)
    assert len(series.load(project, tiny.LINE, adding=True).patches) == 3


def test_a_stray_patch_is_refused_even_while_adding(project: Project) -> None:
    (project.patches(tiny.LINE) / "other.patch").write_bytes(b"x")
    with pytest.raises(LockError, match="not in it"):
        series.load(project, tiny.LINE, adding=True)


def test_an_unreadable_patch_is_refused(project: Project) -> None:
    (project.patches(tiny.LINE) / "clear-null-block.patch").write_bytes(b"diff --git a/x b/x\n")
    refused(project, PatchFormatError)


def test_bad_metadata_are_refused(project: Project) -> None:
    (project.patches(tiny.LINE) / "clear-null-block.toml").write_bytes(tiny.metadata(why=""))
    assert "form it must have" in refused(project).summary


def test_a_line_without_a_series_is_refused(tmp_path: Path) -> None:
    error = refused(Project(tmp_path))
    assert error.summary == "the series cannot be read"
    assert error.found == "No such file or directory"


def test_a_folder_in_the_seriess_place_is_refused(project: Project) -> None:
    file = project.patches(tiny.LINE) / "series"
    file.unlink()
    file.mkdir()
    assert refused(project).found == "a folder"


@pytest.mark.parametrize("name", ["series", "clear-null-block.patch", "clear-null-block.toml"])
def test_a_link_in_the_series_is_refused(project: Project, tmp_path: Path, name: str) -> None:
    file = project.patches(tiny.LINE) / name
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert refused(project).found == "a link"


def test_a_pipe_in_a_patchs_place_does_not_hang(project: Project) -> None:
    file = project.patches(tiny.LINE) / "clear-null-block.patch"
    file.unlink()
    os.mkfifo(file)
    assert refused(project).found == "a pipe"


def test_a_huge_patch_is_not_read(project: Project) -> None:
    with (project.patches(tiny.LINE) / "clear-null-block.patch").open("wb") as file:
        file.truncate(1 << 40)
    assert str(refused(project).found).endswith(" bytes")


def test_a_file_name_that_is_not_utf_8_can_be_named_in_the_message(project: Project) -> None:
    folder = os.fsencode(project.patches(tiny.LINE))
    os.close(os.open(folder + b"/\xff.patch", os.O_CREAT))
    assert r"\udcff.patch" in refused(project).diagnostics().encode().decode()


@pytest.mark.parametrize("path", ["setup.py", "docker/Dockerfile", "vllm"])
def test_an_overlay_file_outside_vllm_is_refused(project: Project, path: str) -> None:
    overlay = Project(project.root / "other").overlay(tiny.LINE)
    overlay.parent.mkdir(parents=True)
    project.overlay(tiny.LINE).rename(project.root / "away")
    tiny.write_tree(project.overlay(tiny.LINE), {path: b"x"})
    assert refused(project).summary == "not an overlay file"


def test_an_overlay_link_is_refused(project: Project) -> None:
    (project.overlay(tiny.LINE) / "vllm/link.py").symlink_to("/etc/hostname")
    assert refused(project).found == "a link"


def test_an_overlay_folder_that_is_a_link_is_refused(project: Project, tmp_path: Path) -> None:
    project.overlay(tiny.LINE).rename(tmp_path / "elsewhere")
    project.overlay(tiny.LINE).symlink_to(tmp_path / "elsewhere")
    assert refused(project).summary == "the overlay is not a folder"


def test_a_file_in_the_overlay_folders_place_is_refused(project: Project, tmp_path: Path) -> None:
    project.overlay(tiny.LINE).rename(tmp_path / "elsewhere")
    project.overlay(tiny.LINE).write_bytes(b"")
    assert refused(project).found == "a file"


@pytest.mark.parametrize("name", [b"\xff.py", b"a\n.py", b"a\\b.py"])
def test_an_overlay_file_with_an_odd_name_is_refused(project: Project, name: bytes) -> None:
    folder = os.fsencode(project.overlay(tiny.LINE))
    os.close(os.open(folder + b"/vllm/" + name, os.O_CREAT))
    assert refused(project).summary == "not an overlay file"


def test_bytecode_in_the_overlay_is_left_out(project: Project) -> None:
    tiny.write_tree(project.overlay(tiny.LINE), {"vllm/__pycache__/a.pyc": b"x"})
    assert series.load(project, tiny.LINE).overlay == tiny.OVERLAY


def test_an_overlay_file_of_no_patch_is_refused(project: Project) -> None:
    tiny.write_tree(project.overlay(tiny.LINE), {"vllm/other.py": b"x"})
    error = refused(project)
    assert error.summary == "an overlay file belongs to no patch"
    assert str(error.file).endswith("vllm/other.py")


def test_an_overlay_file_of_two_patches_is_refused(project: Project) -> None:
    sidecar = tiny.metadata("clear-null-block", overlay=[tiny.REPORT])
    (project.patches(tiny.LINE) / "clear-null-block.toml").write_bytes(sidecar)
    assert refused(project).found == "claimed by kv-scale-warning, too"


def test_an_overlay_file_that_is_named_and_not_there_is_refused(project: Project) -> None:
    (project.overlay(tiny.LINE) / tiny.REPORT).unlink()
    assert refused(project).found == "no such file"
