"""`build.py drop`: a patch goes with all that is its own, and never without a reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from imagebuild.cli import main
from imagebuild.patching import series
from tests.support import following, simple_index, tiny
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.following import Following

FIXED = {
    path: data
    for path, data in tiny.BOUNDS.put_in(TREE).items()
    if path in (tiny.KERNELS, tiny.WORKER)
}
NAME = tiny.BOUNDS.name
OTHER = tiny.Change(
    "other",
    "Change the fixed line's neighbour",
    (tiny.Edit(tiny.WORKER, "return self.table[row][offset]", "return self.table[row, offset]"),),
)


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    with simple_index.serving(kind=simple_index.JSON) as index:
        yield following.start(tmp_path, index, monkeypatch)


def run(made: Following, *arguments: str) -> int:
    return main(["drop", *arguments], made.project.root)


def names(made: Following) -> list[str]:
    return [patch.name for patch in series.load(made.project, tiny.LINE).patches]


def test_a_patch_that_a_release_has_goes_and_the_series_says_why(followed: Following) -> None:
    followed.publish(FIXED)
    assert run(followed, NAME, "--release", "1.3.0") == 0
    assert names(followed) == [tiny.WARNING.name, tiny.CLEAR.name]
    folder = followed.project.patches(tiny.LINE)
    assert not list(folder.glob(f"{NAME}.*"))
    assert f"# dropped: {NAME}: upstream in 1.3.0: " in (folder / "series").read_text()
    assert main(["check"], followed.project.root) == 0


def test_overlay_files_and_tests_that_nobody_else_needs_go_too(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    test = followed.project.root / "tests" / "patched" / "test_kv_scale_warning.py"
    test.parent.mkdir(parents=True)
    test.write_text("")
    assert run(followed, tiny.WARNING.name, "--because", "nobody uses it", "--json") == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [
        f"patches/{tiny.LINE}/kv-scale-warning.patch",
        f"patches/{tiny.LINE}/kv-scale-warning.toml",
        f"overlay/{tiny.LINE}/{tiny.REPORT}",
        "tests/patched/test_kv_scale_warning.py",
    ]
    assert not test.exists()
    assert series.load(followed.project, tiny.LINE).overlay == {}


def test_a_patch_that_is_still_needed_stays(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    assert run(followed, NAME, "--release", "1.3.0") == 2
    err = capsys.readouterr().err
    assert "no release at hand has what state-index-bounds does" in err
    assert "1.3.0: applies" in err
    assert "--because TEXT" in err
    assert NAME in names(followed)


def test_without_a_release_those_at_hand_are_asked(followed: Following) -> None:
    followed.publish(FIXED)
    assert run(followed, NAME) == 2  # none was used yet
    assert main(["status"], followed.project.root) == 0
    assert run(followed, NAME) == 0


def test_a_patch_that_others_stand_on_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with simple_index.serving(kind=simple_index.JSON) as index:
        made = following.start(tmp_path, index, monkeypatch, (tiny.BOUNDS, tiny.WARNING, OTHER))
        assert run(made, NAME, "--because", "no need") == 21
        assert "other" in capsys.readouterr().err
        assert names(made) == [NAME, tiny.WARNING.name, "other"]
        assert main(["check"], made.project.root) == 0


def test_a_dry_run_only_says_what_would_go(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(followed, NAME, "--because", "no need", "--dry-run") == 0
    assert "would be retired: no need" in capsys.readouterr().out
    assert NAME in names(followed)


def test_an_unknown_patch_names_the_known_ones(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(followed, "nothing", "--because", "x") == 2
    assert NAME in capsys.readouterr().err


def test_a_drop_when_that_holds_where_nothing_was_fixed_drops_nothing(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    touched = TREE[tiny.KERNELS] + b"\n\ndef fixed_state_index_bounds():\n    return None\n"
    followed.publish({tiny.KERNELS: touched})
    assert run(followed, NAME, "--release", "1.3.0") == 2
    assert "the drop-when is wrong" in capsys.readouterr().err
