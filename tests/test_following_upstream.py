"""Following upstream on the real releases: the status, the bumps, the drop-whens."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild import upstream
from imagebuild.fetch.sources import Sources
from imagebuild.following import heatmap, matrix, proofs, statustable
from imagebuild.patching import apply, series
from imagebuild.patching.apply import Outcome
from imagebuild.patching.series import Series
from imagebuild.progress import Silent
from imagebuild.project import Project
from tests.support import examples, mutations
from tests.support.command import ROOT

if TYPE_CHECKING:
    from imagebuild.following.matrix import Matrix

pytestmark = pytest.mark.upstream

WANTED = "0.27.1..0.33.0"
PROJECT = Project(ROOT)
LOCK = upstream.load(PROJECT.upstream_lock)
EXPECTED: dict[str, Any] = tomllib.loads((ROOT / "tests" / "data" / "outcomes.toml").read_text())
PATCHES = [
    pytest.param(line, patch.name, id=f"{line}-{patch.name}")
    for line in LOCK.lines
    for patch in series.load(PROJECT, line).patches
]


def known_pins() -> dict[str, str]:
    """Return the digests of sdists that no line pins, as the index said on the day of the table."""
    return dict(EXPECTED["sdists"])


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources.for_run(Silent(), offline=False)


@pytest.fixture(scope="module")
def found(sources: Sources) -> Matrix:
    chosen = matrix.subjects(PROJECT, LOCK, ())
    wanted = matrix.columns(chosen, LOCK, sources, WANTED)
    return matrix.gather(chosen, wanted, LOCK, sources)


def test_the_releases_are_those_of_the_table(found: Matrix) -> None:
    assert list(found.releases) == EXPECTED["releases"]


def test_the_sdists_are_those_of_the_table(sources: Sources) -> None:
    for version, digest in known_pins().items():
        assert sources.release(version, LOCK).sha256 == digest, version


@pytest.mark.parametrize(("line", "name"), PATCHES)
def test_a_patch_meets_what_was_found_by_hand(line: str, name: str, found: Matrix) -> None:
    row = next(row for row in found.rows if row.line == line)
    now = [row.columns[release].cells[name].outcome for release in found.releases]
    listed = EXPECTED["lines"].get(line, {}).get(name)
    wanted = f"look at each, then put it into tests/data/outcomes.toml: {name} = {json.dumps(now)}"
    assert listed == now, wanted


def test_every_drop_when_is_proven(found: Matrix) -> None:
    assert [error.diagnostics() for error in found.problems] == []


@pytest.mark.parametrize(("line", "name"), PATCHES)
def test_no_mutation_of_a_release_looks_like_the_fix(
    line: str, name: str, sources: Sources
) -> None:
    patch = series.load(PROJECT, line).patch(name)
    assert patch is not None
    own = sources.sdist(LOCK.lines[line])
    survivors = [
        mutant.label
        for kind in mutations.NAMES
        for mutant in mutations.of(patch, own, kind)
        if apply.plan(Series(line, (patch,), {}), mutant).reports[0].outcome is Outcome.UPSTREAMED
    ]
    assert survivors == []


@pytest.mark.parametrize(("line", "name"), PATCHES)
def test_no_single_check_stands_between_a_patch_and_its_end(
    line: str, name: str, sources: Sources
) -> None:
    """With any one check taken for granted, the rest of the drop-when is still false."""
    patch = series.load(PROJECT, line).patch(name)
    assert patch is not None
    checks = proofs.prove(patch, sources.sdist(LOCK.lines[line])).checks
    assert sum(not check.holds for check in checks) > 1


def test_the_page_and_the_picture_are_current(found: Matrix) -> None:
    again = (
        f"python build.py status --releases {WANTED} "
        "--markdown docs/status.md --svg docs/status.svg"
    )
    docs = ROOT / "docs"
    assert (docs / "status.md").read_text() == statustable.markdown(found, WANTED), again
    assert (docs / "status.svg").read_text() == heatmap.render(found), again


def outcome(report: str) -> list[str]:
    """Return the lines of a report that do not depend on what answers on the network."""
    table = report.partition("## To do")[0]
    return [line for line in table.splitlines() if line.startswith(("|", "#", "Released"))]


def check_example(name: str, report: str) -> None:
    shown = (ROOT / "docs" / "examples" / name).read_text()
    assert outcome(shown) == outcome(report), "python -m tests.support.examples"


def test_bump_0_32_from_the_facts_of_0_31(tmp_path: Path) -> None:
    home, store = examples.project(tmp_path / "project"), examples.cache(tmp_path / "cache")
    first, second = examples.from_0_31(home, store)
    line = upstream.load(home / "upstream.lock").lines["v0.31.0"]
    assert (first["from"], second["from"]) == ("v0.27.1", "v0.31.0")
    assert line.sdist.sha256 == known_pins()["0.31.0"]
    assert line.commit_prefix == "db9527a46"
    assert {entry["decision"] for entry in second["patches"].values()} == {"carried"}
    checked = examples.build(home, store, "check", "v0.32.0")
    assert [entry["exit_code"] for entry in checked["lines"]] == [0]
    check_example(examples.FROM_0_31, second["report"])


def test_bump_0_33_from_the_series_of_0_27(tmp_path: Path) -> None:
    home = examples.project(tmp_path / "project", "v0.33.0")
    store = examples.cache(tmp_path / "cache")
    made = examples.from_0_27(home, store)
    line, known = (upstream.load(p / "upstream.lock").lines["v0.33.0"] for p in (home, ROOT))
    assert made["from"] == "v0.27.1"
    for pin in ("sdist", "wheels", "dockerfile", "released", "torch", "flashinfer", "cuda"):
        assert getattr(line, pin) == getattr(known, pin), pin
    assert made["patches"]["state-index-bounds"]["decision"] == "pending"
    conflicted = (Path(made["scratch"]) / "vllm/v1/worker/mamba_utils.py").read_bytes()
    assert b"<<<<<<< " in conflicted
    checked = examples.build(home, store, "check", "v0.33.0")
    assert [entry["exit_code"] for entry in checked["lines"]] == [0]
    check_example(examples.FROM_0_27, made["report"])
