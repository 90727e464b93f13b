"""`build.py bump`: a line of a new release, what it carries, and what waits for a person."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild import upstream
from imagebuild.cli import main
from imagebuild.errors import SourceError
from imagebuild.fetch.git import environment
from imagebuild.fetch.sources import Sources
from imagebuild.following import bump, newline, pending, rerun
from imagebuild.patching import series
from tests.support import following, simple_index, tiny
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.following import Following

NEW = following.NEW_LINE
BESIDE = {tiny.WORKER: TREE[tiny.WORKER].replace(b"self.copies = 0", b"self.copies: int = 0")}
CONFLICT = {tiny.WORKER: TREE[tiny.WORKER].replace(b"accepted - 1\n", b"accepted - 2\n")}
FIXED = {
    path: data
    for path, data in tiny.BOUNDS.put_in(TREE).items()
    if path in (tiny.KERNELS, tiny.WORKER)
}


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    with simple_index.serving(kind=simple_index.JSON) as index:
        yield following.start(tmp_path, index, monkeypatch)


def run(made: Following, *arguments: str) -> int:
    return main([*arguments], made.project.root)


def facts(made: Following, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:  # noqa: ANN401
    capsys.readouterr()
    assert run(made, *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def snapshot(made: Following) -> dict[str, bytes]:
    root = made.project.root
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def decisions(found: Any) -> dict[str, str]:  # noqa: ANN401
    return {name: entry["decision"] for name, entry in found["patches"].items()}


def test_a_release_that_changed_nothing_gets_the_same_series(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    found = facts(followed, capsys, "bump")
    assert set(decisions(found).values()) == {"carried"}
    assert run(followed, "check", NEW) == 0
    old, new = (series.load(followed.project, line) for line in (tiny.LINE, NEW))
    assert [p.text.files for p in old.patches] == [p.text.files for p in new.patches]
    assert new.overlay == old.overlay


def test_the_new_line_pins_what_the_release_says(followed: Following) -> None:
    followed.publish({})
    assert run(followed, "bump") == 0
    line = upstream.load(followed.project.upstream_lock).lines[NEW]
    assert (line.torch, line.flashinfer, line.cuda) == ("2.15.0", "0.8.0", "13.1.0")
    assert line.released == dt.datetime(2026, 11, 2, 10, 12, 56, tzinfo=dt.UTC)
    assert set(line.wheels) == {"linux/amd64", "linux/arm64"}
    assert line.commit is None
    assert line.image is not None
    assert (line.image.ref, line.image.digest) == (f"docker.io/vllm/vllm-openai:{NEW}", None)


def test_the_lock_keeps_every_byte_that_it_had(followed: Following) -> None:
    followed.publish({})
    before = followed.project.upstream_lock.read_text()
    assert run(followed, "bump") == 0
    assert followed.project.upstream_lock.read_text().startswith(before)


def test_export_after_a_bump_is_the_identity(followed: Following) -> None:
    followed.publish(BESIDE)
    assert run(followed, "bump") == 0
    assert run(followed, "edit", NEW) == 0
    assert run(followed, "export", NEW, "--check") == 0


def test_what_drifted_beside_the_change_is_merged(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish(BESIDE)
    found = facts(followed, capsys, "bump")
    assert decisions(found)[tiny.BOUNDS.name] == "merged"
    assert run(followed, "check", NEW) == 0
    assert "it changes the same lines as before" in found["report"]
    assert f"## Merged: {tiny.BOUNDS.name}" in found["report"]


def test_what_upstream_has_is_left_out_with_the_reason(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish(FIXED)
    found = facts(followed, capsys, "bump")
    assert decisions(found)[tiny.BOUNDS.name] == "left out"
    assert f"## Left out: {tiny.BOUNDS.name}" in found["report"]
    assert f"NO   {tiny.KERNELS} defines 'fixed_state_index_bounds'" in found["report"]
    listed = (followed.project.patches(NEW) / "series").read_text()
    assert "# left out: state-index-bounds: already applied in 1.3.0: every hunk is in" in listed
    assert series.load(followed.project, NEW).patch(tiny.BOUNDS.name) is None


def test_a_conflict_waits_in_a_scratch_repository_and_comes_back_by_export(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish(CONFLICT)
    found = facts(followed, capsys, "bump")
    assert decisions(found)[tiny.BOUNDS.name] == "pending"
    assert series.load(followed.project, NEW).patch(tiny.BOUNDS.name) is None
    assert run(followed, "check", NEW) == 0  # the others stand without it
    folder = Path(found["scratch"])
    assert b"<<<<<<< " in (folder / tiny.WORKER).read_bytes()

    assert run(followed, "export", NEW) == 2  # not as long as nobody has resolved it
    assert "changes in no commit" in capsys.readouterr().err

    resolved = TREE[tiny.WORKER].replace(b"accepted - 1\n", b"max(accepted - 2, 0)\n")
    (folder / tiny.WORKER).write_bytes(resolved)
    (finish,) = [x for x in found["report"].splitlines() if x.startswith("git") and "-C refs" in x]
    subprocess.run(finish, shell=True, check=True, env=environment())  # noqa: S602  (as reported)
    assert run(followed, "export", NEW) == 0
    assert run(followed, "check", NEW) == 0
    patch = series.load(followed.project, NEW).patch(tiny.BOUNDS.name)
    assert patch is not None
    assert patch.text.subject == tiny.BOUNDS.subject
    assert pending.pending_of(followed.project, NEW) == ()


def test_a_second_bump_opens_what_is_pending_again(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish(CONFLICT)
    folder = Path(facts(followed, capsys, "bump")["scratch"])
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    found = facts(followed, capsys, "bump", "1.3.0")
    assert found["pending"] == [tiny.BOUNDS.name]
    assert b"<<<<<<< " in (folder / tiny.WORKER).read_bytes()


def test_a_bump_of_a_finished_line_says_that_it_is_there(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(followed, "bump", "1.2.3") == 2
    assert "there is a line of vLLM 1.2.3 already" in capsys.readouterr().err


def test_a_dry_run_writes_nothing_but_the_report(followed: Following, tmp_path: Path) -> None:
    followed.publish(CONFLICT)
    before = snapshot(followed)
    report = tmp_path / "report.md"
    assert run(followed, "bump", "--dry-run", "--report", str(report)) == 0
    assert snapshot(followed) == before
    assert not (followed.cache / "edit").exists()
    text = report.read_text()
    assert "Patches: 2 carried, 0 merged, 0 left out, 1 pending." in text
    assert "Not run: --dry-run writes no line to test." in text


def test_nothing_new_is_quiet_and_says_what_was_passed_over(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({}, "1.3.0rc1")
    before = snapshot(followed)
    assert facts(followed, capsys, "bump") == {
        "release": None,
        "skipped": {"1.3.0rc1": "a pre-release"},
    }
    assert snapshot(followed) == before


def test_a_young_release_waits(followed: Following, capsys: pytest.CaptureFixture[str]) -> None:
    followed.publish({})
    found = facts(followed, capsys, "bump", "--older-than", "100000")
    assert found["release"] is None
    assert "followed from 100000 on" in found["skipped"]["1.3.0"]


def test_the_report_says_what_could_not_be_had(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    text = facts(followed, capsys, "bump", "--dry-run")["report"]
    assert "- commit: out of reach (a test)" in text
    assert "Not reachable: GitHub cannot be asked" in text
    assert "| torch | 2.14.0 | 2.15.0 |" in text
    assert "| state-index-bounds | cpu | 2026-11-04 | cuda 13.0.3 -> 13.1.0, " in text


def test_what_is_pending_in_the_old_line_is_not_lost_silently(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish(CONFLICT)
    followed.publish(CONFLICT, "1.4.0")
    assert run(followed, "bump", "1.3.0") == 0
    found = facts(followed, capsys, "bump", "1.4.0")
    assert found["from"] == NEW
    assert f"`{tiny.BOUNDS.name}` is pending in {NEW} and could not come along" in found["report"]
    listed = (followed.project.patches("v1.4.0") / "series").read_text()
    assert f"# missing: {tiny.BOUNDS.name}: pending in {NEW}" in listed


def test_a_base_image_that_another_line_pins_by_the_same_tag_keeps_its_digest(
    followed: Following,
) -> None:
    digest = f"sha256:{'a' * 64}"
    ref = "docker.io/nvidia/cuda:13.1.0-base-ubuntu24.04"
    lock = tiny.upstream_lock(bases={"FINAL_BASE_IMAGE": {"ref": ref, "digest": digest}})
    followed.project.upstream_lock.write_bytes(lock)
    followed.publish({})
    assert run(followed, "bump") == 0
    line = upstream.load(followed.project.upstream_lock).lines[NEW]
    assert line.bases["FINAL_BASE_IMAGE"].digest == digest


def test_evidence_does_not_come_along(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    assert run(followed, "bump") == 0
    patch = series.load(followed.project, NEW).patch(tiny.BOUNDS.name)
    assert patch is not None
    assert set(patch.meta.hardware.values()) == {"unverified"}
    (entry,) = patch.meta.evidence
    assert entry.inputs is not None
    assert (entry.inputs.vllm, entry.inputs.torch) == ("1.2.3", "2.14.0")
    capsys.readouterr()
    assert run(followed, "show", NEW) == 0
    assert "cpu unverified since 1.2.3" in capsys.readouterr().out


def test_passed_tests_are_recorded_as_evidence_on_the_new_line(
    followed: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.publish({})
    monkeypatch.setattr(rerun, "run", lambda *_: rerun.Rerun("Passed", True, "torch 2.13.0 CPU"))
    assert run(followed, "bump") == 0
    patch = series.load(followed.project, NEW).patch(tiny.BOUNDS.name)
    assert patch is not None
    assert patch.meta.hardware == {"cpu": "verified", "sm90": "unverified", "sm120": "unverified"}
    assert [entry.inputs is None for entry in patch.meta.evidence] == [False, True]
    assert run(followed, "check", NEW) == 0  # and the lock knows


def test_tests_that_did_not_run_are_said_with_the_command(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    text = facts(followed, capsys, "bump")["report"]
    assert "Not run: this checkout has no tests/test_patches_red_green.py" in text
    assert f"-m engine -k {NEW}" in text


def test_an_overlay_file_that_upstream_has_now_makes_its_patch_wait(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({tiny.REPORT: b"def other():\n    return None\n"})
    found = facts(followed, capsys, "bump", "--dry-run")
    assert decisions(found)[tiny.WARNING.name] == "pending"
    assert tiny.REPORT in found["patches"][tiny.WARNING.name]["reason"]


def test_a_run_that_was_killed_before_the_lock_is_simply_run_again(
    followed: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.publish({})
    with monkeypatch.context() as patched:
        patched.setattr(newline, "as_toml", _killed)
        with pytest.raises(RuntimeError):
            run(followed, "bump")
    assert NEW not in upstream.load(followed.project.upstream_lock).lines
    assert run(followed, "check") == 0
    assert run(followed, "bump") == 0
    assert run(followed, "check", NEW) == 0


def _killed(*_: object) -> str:
    raise RuntimeError


def test_the_nearest_line_is_the_newest_before() -> None:
    lines = {
        name: upstream.parse(
            tiny.upstream_lock().replace(b"1.2.3", name[1:].encode()), Path("upstream.lock")
        ).lines[name]
        for name in ("v1.2.3", "v1.10.0", "v2.0.0")
    }
    lock = upstream.UpstreamLock(schema=1, default="v1.2.3", lines=lines)
    assert newline.nearest(lock, "1.9.0") == "v1.2.3"
    assert newline.nearest(lock, "1.11.0") == "v1.10.0"
    assert newline.nearest(lock, "1.0.0") == "v1.2.3"
    assert newline.nearest(lock, "2.0.0") == "v1.10.0"


def test_a_series_that_somebody_has_begun_by_hand_is_not_written_over(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    mine = followed.project.patches(NEW) / "mine.patch"
    mine.parent.mkdir()
    mine.write_text("work of a week\n")
    assert run(followed, "bump") == 2
    assert "mine.patch" in capsys.readouterr().err
    assert mine.read_text() == "work of a week\n"


def test_status_shows_what_is_pending(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish(CONFLICT)
    assert run(followed, "bump") == 0
    capsys.readouterr()
    assert run(followed, "status") == 0
    wanted = f"pending: {tiny.BOUNDS.name}: not carried over yet: python build.py bump 1.3.0"
    assert wanted in capsys.readouterr().out


def test_an_unknown_release_is_an_error_of_the_source(
    followed: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(followed, "bump", "9.9.9") == SourceError.exit_code
    assert "vllm-9.9.9.tar.gz" in capsys.readouterr().err


def test_a_tag_that_is_another_commit_than_the_sdist_s_stops_the_bump(
    followed: Following, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.publish({})
    monkeypatch.setattr(Sources, "remote_tag", lambda *_: "f" * 40)
    before = snapshot(followed)
    assert run(followed, "bump") == 11
    assert "not the commit that the sdist was made from" in capsys.readouterr().err
    assert snapshot(followed) == before


def test_what_answers_is_pinned(followed: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    followed.publish({})
    monkeypatch.setattr(Sources, "remote_tag", lambda *_: "0123456ab" + "0" * 31)
    assert run(followed, "bump") == 0
    line = upstream.load(followed.project.upstream_lock).lines[NEW]
    assert line.commit == "0123456ab" + "0" * 31


def test_the_page_of_patches_follows(followed: Following) -> None:
    page = followed.project.root / bump.PAGE
    page.parent.mkdir()
    page.write_text("old\n")
    followed.publish({})
    assert run(followed, "bump") == 0
    assert f"## {NEW}" in page.read_text()
    assert "unverified since 1.2.3" in page.read_text()
