"""The corruption gate: what it asks has one right answer, and a wrong state does not pass it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild.project import Project
from tests.patched import environment, trees
from tests.patched.corruption import language, process, report
from tests.patched.corruption.engine import Asked, Job, Sizes, end_on_a_draft
from tests.patched.corruption.judge import acceptance_is_as_built, judge
from tests.patched.corruption.plan import PRODUCT, Case, Setting, cover

if TYPE_CHECKING:
    from tests.patched.corruption.plan import Form
    from tests.patched.environment import Site

ROOT = Path(__file__).parents[1]
PROJECT = Project(ROOT)
DATA = ROOT / "tests/patched/corruption/data"
LIMIT_S = 300


def test_the_counters_go_on_by_their_steps() -> None:
    request = language.Request((), (1, *[0] * 15), (14, *[3] * 15))
    said = request.right(33)
    assert [language.text_of(said[turn]) for turn in (0, 16, 32)] == ["Gf", "G0", "G1"]
    assert language.text_of(said[17]) == "H3"


def test_a_prompt_tells_all_steps_first_and_each_counter_once_at_the_end() -> None:
    request = language.Speaker(3, filler=50).request()
    told = request.prompt[:16]
    assert sorted(told) == sorted(language.step(c, request.steps[c]) for c in range(16))
    assert request.prompt[-16:] == tuple(language.reading(c, request.first[c]) for c in range(16))
    assert request.prompt[-17] == ord(language.QUOTE)


def test_shared_prompts_begin_alike_and_end_differently() -> None:
    speaker = language.Speaker(3, filler=50)
    one, other = speaker.request(shared=True), speaker.request(shared=True)
    assert one.prompt[:67] == other.prompt[:67]
    assert one.right(16) != other.right(16)


def test_every_token_has_its_own_text_and_no_word_of_an_answer_holds_a_reading() -> None:
    texts = [language.text_of(token) for token in range(language.FIRST_SPECIAL)]
    assert len(set(texts)) == len(texts)
    tool = Asked("tool", language.Speaker(1, 20).request(), 32)
    assert isinstance(tool.right, str)
    assert len(language.readings(tool.right)) == 16


def test_the_last_chunk_of_a_prompt_is_as_long_as_a_decode() -> None:
    request = language.Speaker(5, filler=60).request()
    longer = end_on_a_draft(request, 64, 3)
    assert len(longer.prompt) % 64 == 4
    assert longer.prompt[:16] == request.prompt[:16]
    assert longer.right(40) == request.right(40)


def test_every_pair_of_values_of_two_axes_is_covered() -> None:
    chosen = cover()
    assert len(chosen) < 20
    assert len(PRODUCT) == 72
    for drafts in (0, 1, 3, 5):
        for kv in ("auto", "fp8", "nvfp4"):
            assert any(s.drafts == drafts and s.kv == kv for s in chosen)


def test_one_wrong_token_is_a_wrong_answer() -> None:
    found = judge([1, 2, 9, 4], [1, 2, 3, 4], None)
    assert not found.passed
    assert found.agreed == 2


def test_a_right_token_that_was_hardly_chosen_does_not_pass() -> None:
    assert judge([1], [1], [-0.02]).passed
    assert not judge([1], [1], [-0.9]).passed


def test_drafts_that_are_never_or_always_accepted_are_not_as_built() -> None:
    assert acceptance_is_as_built(59, 108)
    assert not acceptance_is_as_built(0, 108)
    assert not acceptance_is_as_built(108, 108)
    assert not acceptance_is_as_built(0, 0)


def outcome(status: str, *, fault: str | None = None, part: str = "faults") -> dict[str, Any]:
    return {"setting": asdict(Setting()), "fault": fault, "part": part,
            "cases": [{"case": "one-plain", "status": status}]}  # fmt: skip


def test_what_did_not_run_is_no_success() -> None:
    assert not report.is_as_it_should_be([])
    assert not report.is_as_it_should_be([outcome("not run")])
    assert not report.is_as_it_should_be([outcome("passed"), outcome("not run", fault="x")])
    assert not report.is_as_it_should_be([outcome("passed", fault="x")])
    assert report.is_as_it_should_be([outcome("passed"), outcome("failed", fault="x")])


def test_an_engine_that_dies_is_known_by_its_exception_and_by_no_path() -> None:
    log = (
        '  File "/home/me/engine.py", line 3\n[rank0]: RuntimeError: shape is invalid\nWARNING: bye'
    )
    assert process.last_error(log) == "RuntimeError: shape is invalid"
    assert "see its log" in process.last_error("killed")


def test_an_engine_that_takes_too_long_is_not_run(tmp_path: Path) -> None:
    job = Job("nowhere", Setting())
    found = process.run(job, tmp_path / "job", 0.0, sys.executable, {})
    assert report.verdict(found) == "not run"


def test_the_tables_in_the_docs_are_those_of_the_recorded_runs() -> None:
    page = (ROOT / "docs/corruption-gate.md").read_text()
    recorded = [r for f in sorted(DATA.glob("*.json")) for r in json.loads(f.read_text())]
    assert report.table(recorded) in page
    assert report.product(recorded) in page


def test_every_setting_was_run_and_every_fault_was_caught() -> None:
    recorded = [r for f in sorted(DATA.glob("*.json")) for r in json.loads(f.read_text())]
    product = [r for r in recorded if r["part"] == "product"]
    faults = [r for r in recorded if r["part"] == "faults"]
    assert len({str(r["setting"]) for r in product}) == 72
    assert len({r["fault"] for r in faults} - {None}) == len(faults) - 1 == 6
    assert report.is_as_it_should_be(product)
    assert report.is_as_it_should_be(faults)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("gate")
    stock = trees.stock_tree(PROJECT, "v0.33.0", folder / "stock")
    tree = trees.patched_tree(PROJECT, "v0.33.0", stock, folder / "patched")
    return environment.overlay(environment.install(), tree, folder / "site")


def written(site: Site, folder: Path) -> Path:
    script = "import sys; from pathlib import Path; from tests.patched.corruption import weights; "
    script += "weights.write(Path(sys.argv[1]))"
    python, environ = str(site.environment.python), site.environ()
    environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], str(ROOT)])
    subprocess.run([python, "-c", script, str(folder)], env=environ, check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def model(patched: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(patched, tmp_path_factory.mktemp("model"))


def asked(
    site: Site, model: Path, folder: Path, *, drafts: int, fault: str | None, form: Form
) -> dict[str, Any]:
    """Run one engine on a CPU and return what became of its case."""
    sizes = Sizes(filler=60, answer=32, requests=2, chunk=64, stagger=2, context=512)
    job = Job(str(model), Setting(drafts), (Case("staggered", form),), fault, sizes, "cpu")
    python, environ = str(site.environment.python), site.environ()
    result = process.run(job, folder / "job", LIMIT_S, python, environ)
    assert result["cases"], (result, (folder / "job.log").read_text(errors="replace")[-3000:])
    (found,) = result["cases"]
    return dict(found)


@pytest.mark.engine
@pytest.mark.upstream
def test_the_model_is_the_same_bytes_every_time(patched: Site, model: Path, tmp_path: Path) -> None:
    again = written(patched, tmp_path / "again")
    names = sorted(path.name for path in model.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    assert all((model / name).read_bytes() == (again / name).read_bytes() for name in names)


@pytest.mark.engine
@pytest.mark.upstream
@pytest.mark.parametrize(("drafts", "form"), [(0, "json"), (2, "plain"), (2, "tool")])
def test_the_patched_engine_gives_the_right_answer(
    drafts: int, form: Form, patched: Site, model: Path, tmp_path: Path
) -> None:
    found = asked(patched, model, tmp_path, drafts=drafts, fault=None, form=form)
    assert found["status"] == "passed", found
    if drafts:
        assert 0 < found["accepted"] < found["drafted"], "no draft was rejected, or all were"


@pytest.mark.engine
@pytest.mark.upstream
@pytest.mark.parametrize(
    "fault",
    [
        "state is not rolled back",
        "stale accepted count",
        "block table off by one",
        "prefill as decode",
    ],
)
def test_a_fault_is_caught(fault: str, patched: Site, model: Path, tmp_path: Path) -> None:
    found = asked(patched, model, tmp_path, drafts=2, fault=fault, form="plain")
    assert found["status"] == "failed", found
    assert found["right"] < found["requests"], "the text must show it"
