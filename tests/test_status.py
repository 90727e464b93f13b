"""`build.py status`: every patch on every release, by the plan that builds, cached by digests."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from imagebuild import upstream
from imagebuild.cli import main
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.fetch.sources import Sources
from imagebuild.fetch.tree import MemoryTree
from imagebuild.following import heatmap, matrix, overlaps, status, statustable
from imagebuild.patching import apply, identity
from imagebuild.patching.checksums import LineChecksums
from imagebuild.patching.series import Series
from imagebuild.progress import Silent
from tests.support import following, patching, simple_index, tiny
from tests.support.command import ROOT
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagebuild.following.matrix import Matrix
    from tests.support.following import Following

DRIFT = {tiny.WORKER: TREE[tiny.WORKER].replace(b"offset = accepted - 1", b"offset = accepted - 2")}


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    with simple_index.serving(kind=simple_index.JSON) as index:
        yield following.start(tmp_path, index, monkeypatch)


def gathered(made: Following, wanted: str | None = None) -> Matrix:
    lock = made.tiny.lock
    sources = Sources.for_run(Silent(), offline=False)
    chosen = matrix.subjects(made.project, lock, ())
    return matrix.gather(chosen, matrix.columns(chosen, lock, sources, wanted), lock, sources)


def run(made: Following, *arguments: str) -> int:
    return main(["status", *arguments], made.project.root)


def facts(made: Following, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:  # noqa: ANN401
    capsys.readouterr()
    run(made, "--json", *arguments)
    return json.loads(capsys.readouterr().out)


def test_a_new_release_is_looked_at_without_being_asked_for(followed: Following) -> None:
    followed.publish(DRIFT)
    found = gathered(followed)
    assert found.releases == ("1.2.3", "1.3.0")
    (row,) = found.rows
    assert {name: cell.outcome for name, cell in row.columns["1.3.0"].cells.items()} == {
        "state-index-bounds": "drifted",
        "kv-scale-warning": "applies",
        "clear-null-block": "applies",
    }


def test_the_outcome_is_the_plan_s(followed: Following) -> None:
    followed.publish(DRIFT)
    tree = MemoryTree(following.release_tree("1.3.0", DRIFT), "vllm-1.3.0.tar.gz")
    planned = {r.patch.name: r.reason for r in apply.plan(followed.tiny.series, tree).reports}
    cells = gathered(followed).rows[0].columns["1.3.0"].cells
    assert {name: cell.reason for name, cell in cells.items()} == planned


def test_a_second_run_computes_nothing(
    followed: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = gathered(followed)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(status, "compute", fail)
    monkeypatch.setattr(Sources, "release", fail)
    monkeypatch.setattr(Sources, "sdist", fail)
    assert gathered(followed) == first


@pytest.mark.parametrize("what", ["patch", "metadata", "sdist", "tool", "lock"])
def test_results_are_kept_by_the_digests_of_all_that_they_depend_on(
    what: str, followed: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(sdist: str = "0" * 64) -> str:
        made = followed.tiny
        return status.key(made.line, made.series, made.pins, Sha256(sdist))

    before = key()
    folder = followed.project.patches(tiny.LINE)
    if what == "sdist":
        assert key("1" * 64) != before
    elif what == "tool":
        monkeypatch.setattr(status, "tool_digest", lambda: "another")
        assert key() != before
    elif what == "lock":
        text = followed.project.upstream_lock.read_text().replace('"2.14.0"', '"2.15.0"')
        followed.project.upstream_lock.write_text(text)
        assert key() != before
    else:
        file = folder / (f"{tiny.BOUNDS.name}.{'patch' if what == 'patch' else 'toml'}")
        text = file.read_text()
        changed = text.replace("A stale count", "An old count") if what == "patch" else text + "\n"
        file.write_text(changed)
        assert key() != before


def test_half_a_cached_result_is_made_anew(followed: Following) -> None:
    first = gathered(followed)
    for file in (followed.cache / "status").iterdir():
        file.write_bytes(file.read_bytes()[:20])
    assert gathered(followed) == first


def test_only_stable_releases_are_columns(followed: Following) -> None:
    followed.publish({}, "1.3.0rc1")
    followed.publish({}, "1.3.1")
    followed.index.yanked.add("vllm-1.3.1.tar.gz")
    assert gathered(followed).releases == ("1.2.3",)


def test_offline_only_what_was_used_before_is_looked_at(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    run(followed)
    followed.publish({}, "1.4.0")
    assert facts(followed, capsys, "--offline", "--releases", "1.2.3..")["releases"] == [
        "1.2.3",
        "1.3.0",
    ]


def test_a_drop_when_that_holds_on_its_own_line_fails_the_command(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    made = followed.tiny
    file = made.project.patches(tiny.LINE) / f"{tiny.CLEAR.name}.toml"
    wrong = tiny.metadata(tiny.CLEAR.name, drop_when=[{"file": tiny.KERNELS, "symbol": "clear"}])
    text = made.project.checksums_lock.read_text()
    old = sha256_bytes(file.read_bytes())
    file.write_bytes(wrong)
    made.project.checksums_lock.write_text(text.replace(old, sha256_bytes(wrong)))
    assert run(followed) == 20
    out = capsys.readouterr().out
    assert "the drop-when of clear-null-block holds on its own line" in out
    assert "NOT PROVEN" in out


def test_why_shows_hunk_upstream_s_lines_and_what_changed_them(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish(DRIFT)
    assert run(followed, "--why", tiny.BOUNDS.name, "1.3.0") == 0
    out = capsys.readouterr().out
    assert "drifted" in out
    assert "+        offset = max(accepted - 1, 0)" in out
    assert "Upstream changed between vllm-1.2.3.tar.gz and vllm-1.3.0.tar.gz:" in out
    assert "drop-when no : vllm/model_executor/kernels.py defines" in out
    assert f"next: python build.py edit {tiny.LINE}" in out


def test_why_of_an_unknown_patch_names_the_known_ones(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(followed, "--why", "other", "1.2.3") == 2
    assert "clear-null-block, kv-scale-warning, state-index-bounds" in capsys.readouterr().err


def test_pins_that_a_release_has_otherwise_are_shown(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    run(followed)
    assert (
        "1.3.0: other pins than v1.2.3: torch 2.14.0 -> 2.15.0, "
        "flashinfer 0.7.2.post1 -> 0.8.0, cuda 13.0.3 -> 13.1.0"
    ) in capsys.readouterr().out


def test_an_overlay_file_that_upstream_has_created_is_found(followed: Following) -> None:
    followed.publish({tiny.REPORT: b"def other():\n    return None\n"})
    (found,) = gathered(followed).rows[0].columns["1.3.0"].overlaps
    assert (found.kind, found.patch, found.path) == (
        "overlay file",
        tiny.WARNING.name,
        tiny.REPORT,
    )


def test_the_build_s_own_module_in_upstream_s_tree_is_found() -> None:
    tree = MemoryTree(TREE | {identity.OVERLAY_MODULE: b"x = 1\n"})
    (found,) = overlaps.created_upstream(patching.series(tiny.BOUNDS), tree)
    assert found.kind == "overlay file"


SECOND = tiny.Change(
    "second",
    "Write the same line",
    (tiny.Edit(tiny.WORKER, "offset = max(accepted - 1, 0)", "offset = min(accepted, 0)"),),
)
BESIDE = tiny.Change(
    "beside",
    "Write a neighbouring line",
    (tiny.Edit(tiny.WORKER, "return self.table[row][offset]", "return self.table[row, offset]"),),
)


def test_two_patches_on_the_same_lines_are_named() -> None:
    series = patching.series(tiny.BOUNDS, SECOND)
    tree = MemoryTree(TREE)
    column = status.compute(tiny_line(), series, pins(), tree, tree)
    assert column.cells["second"].outcome == "conflict"
    assert column.cells[tiny.BOUNDS.name].outcome == "applies"
    (found,) = [o for o in column.overlaps if o.kind == "same lines"]
    assert (found.patch, found.path.partition(":")[0]) == ("second", tiny.WORKER)
    assert tiny.BOUNDS.name in found.text


def test_a_patch_that_stands_on_another_one_s_lines_is_named() -> None:
    found = list(overlaps.standing_on(patching.series(tiny.BOUNDS, BESIDE), MemoryTree(TREE)))
    assert [(o.kind, o.patch, o.path) for o in found] == [("stands on", "beside", tiny.WORKER)]
    apart = patching.series(tiny.BOUNDS, tiny.CLEAR)
    assert list(overlaps.standing_on(apart, MemoryTree(TREE))) == []


def test_the_lines_of_a_twin_are_not_taken_for_those_that_are_gone() -> None:
    """Two methods with the same body: upstream mends one, and the other one is no place for it."""
    body = "".join(f"        self.step({number})\n" for number in range(9))
    text = f"class Twins:\n    def one(self):\n{body}\n    def two(self):\n{body}"
    first = text.replace("self.step(4)", "self.step(44)", 1)
    path = "vllm/twins.py"
    mail = patching.HEAD + patching.difference(text.encode(), first.encode(), path)
    series = Series(tiny.LINE, (patching.patch("twin", mail),), {})
    own = MemoryTree(TREE | {path: text.encode()})
    mended = text.replace("self.step(4)", "self.step(45)", 1).encode()
    tree = MemoryTree(TREE | {path: mended})
    cells = status.compute(tiny_line(), series, pins(), own, tree).cells
    assert cells["twin"].outcome == "drifted"
    assert apply.plan(series, tree).reports[0].outcome is apply.Outcome.APPLIES  # what base is for


def test_changed_lines_belong_to_the_innermost_function() -> None:
    change = patching.series(tiny.BOUNDS).patches[0].text.files
    by_path = {file.path: overlaps.enclosing(TREE[file.path], file) for file in change}
    assert by_path == {
        tiny.KERNELS: ("read_state", "write_state"),
        tiny.WORKER: ("StateCopier.source",),
    }


def test_the_heat_map_is_one_document_with_a_field_for_each_cell(followed: Following) -> None:
    followed.publish(DRIFT)
    found = gathered(followed)
    picture = heatmap.render(found)
    root = ET.fromstring(picture)  # noqa: S314  (our own)
    fields = [e for e in root.iter() if e.tag.endswith("rect") and e.find("{*}title") is not None]
    assert len(fields) == 6
    assert "drifted" in picture
    assert heatmap.render(found) == picture
    assert "http://" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_every_outcome_has_a_word_and_a_colour() -> None:
    known = {outcome.value for outcome in apply.Outcome} | {status.CONFLICT}
    assert set(statustable.SHORT) == known == set(heatmap.COLOURS)
    assert len(set(heatmap.COLOURS.values())) == len(known)


def test_page_and_picture_are_written_beside_the_table(
    followed: Following, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish(DRIFT)
    page, picture = tmp_path / "out" / "status.md", tmp_path / "out" / "status.svg"
    wanted = ("--releases", "1.2.3..1.3.0", "--markdown", str(page), "--svg", str(picture))
    assert run(followed, *wanted) == 0
    assert "| state-index-bounds | **applies** | drifted |" in page.read_text()
    assert picture.read_text().startswith("<svg")
    assert "state-index-bounds" in capsys.readouterr().out


def test_status_starts_light() -> None:
    code = (
        "import sys, contextlib; from pathlib import Path; from imagebuild.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['status', '--help'], Path.cwd())\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert not loaded & {"requests", "packaging", "difflib", "tomlkit", "imagebuild.status"}


def tiny_line() -> upstream.Line:
    return upstream.parse(tiny.upstream_lock(), ROOT / "upstream.lock").lines[tiny.LINE]


def pins() -> LineChecksums:
    return LineChecksums(
        version="1.2.3+sm120.1",
        sdist="0" * 64,
        patchset="0" * 64,
        patches={},
        overlay={},
        targets=(),
        produced={},
    )


def test_a_series_without_patches_has_a_row() -> None:
    empty = Series(tiny.LINE, (), {})
    tree = MemoryTree(TREE)
    assert status.compute(tiny_line(), empty, pins(), tree, tree).cells == {}
