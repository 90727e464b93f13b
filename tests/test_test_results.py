"""Test results beside an artifact: shown if they are about it, expired if not, bad if failed."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild.verifying import test_results
from imagebuild.verifying.verify import Report, Verdict

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
DIGEST = "a" * 64


def statement(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    predicate = {
        "result": "WARNED",
        "configuration": [
            {
                "name": "profile p",
                "annotations": {"device": "RTX 5090", "made": "2026-11-20T00:00:00+00:00"},
            }
        ],
        "passedTests": ["chat", "model"],
        "warnedTests": ["vision"],
        "failedTests": [],
        **more,
    }
    subject = [{"name": "vllm", "digest": {"sha256": DIGEST}}]
    return {"subject": subject, "predicateType": test_results.PREDICATE, "predicate": predicate}


def found(folder: Path, text: str, digest: str = DIGEST) -> list[tuple[Verdict, str, str]]:
    (folder / "one.intoto.json").write_text(text)
    report = Report("artifact")
    test_results.add(report, folder, {digest}, NOW)
    return [(check.verdict, check.name, check.found) for check in report.checks]


def test_a_result_of_this_artifact_is_shown_with_its_age(tmp_path: Path) -> None:
    assert found(tmp_path, json.dumps(statement())) == [
        (
            Verdict.OK,
            "tested: profile p on RTX 5090",
            "2 passed, 0 failed, 1 not run, 11 days old",
        )
    ]


def test_a_result_of_another_artifact_has_expired(tmp_path: Path) -> None:
    ((verdict, _, told),) = found(tmp_path, json.dumps(statement()), "b" * 64)
    assert verdict is Verdict.NOT_CHECKED
    assert told == "expired, 11 days old: of another"


def test_a_failed_result_is_a_failed_check(tmp_path: Path) -> None:
    failed = statement(result="FAILED", failedTests=["needle-cold"])
    ((verdict, _, told),) = found(tmp_path, json.dumps(failed))
    assert verdict is Verdict.BAD
    assert told.endswith("needle-cold")


@pytest.mark.parametrize("text", ["", "[]", "{}", "{"])
def test_a_file_that_is_no_statement_is_named_and_not_trusted(tmp_path: Path, text: str) -> None:
    ((verdict, name, _),) = found(tmp_path, text)
    assert verdict is Verdict.NOT_CHECKED
    assert name == "test result one.intoto.json"


def test_no_result_at_all_is_said(tmp_path: Path) -> None:
    report = Report("artifact")
    test_results.add(report, tmp_path, {DIGEST}, NOW)
    assert [check.found for check in report.checks] == ["none"]
