"""A verification's report: as JSON, for people as Markdown, and as an in-toto statement."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import msgspec

from imagebuild.files import write_atomic
from imagebuild.schema import Text
from serve import documents
from serve.errors import GateError
from serve.gates.run import Texts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from serve.gates.gates import Timed

SCHEMA = 1
STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
"""The predicate's type, in-toto attestation framework, predicate "Test Result"."""


class Inputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """What a report holds for; if one of them changes, it holds no longer.

    Attributes:
        artefact: the image by digest, or the name of the served wheel's version.
        artefact_sha256: the image's digest; empty for a Python environment.
        profile: the profile's name.
        profile_sha256: its file's digest.
        model: the model's id.
        revision: its commit, or the digest of a generated model.
        drafts: tokens drafted for each step.
        device: the card's name, or `CPU`.
        driver: the driver's version; empty on a CPU.
        vllm: what the server says of its version.
    """

    artefact: Text
    artefact_sha256: str
    profile: Text
    profile_sha256: Text
    model: Text
    revision: str
    drafts: int
    device: Text
    driver: str
    vllm: str


class Judged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One gate's result, as `serve.gates.result.Result` has it."""

    gate: Text
    status: str
    measured: str
    bound: str
    evidence: tuple[str, ...]
    seconds: float


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The document.

    Attributes:
        schema: the format's number.
        made: when, in UTC.
        full: whether every gate was asked for.
        inputs: what it holds for.
        results: every gate that was asked for, in order.
        answers: the model's answers to the questions that `mtp-agreement` compares.
    """

    schema: int
    made: dt.datetime
    full: bool
    inputs: Inputs
    results: tuple[Judged, ...]
    answers: dict[str, str]

    def of_status(self, status: str) -> list[str]:
        """Return the gates with a status, in order."""
        return [each.gate for each in self.results if each.status == status]

    def summary(self) -> str:
        """Return how many passed, failed and did not run."""
        return ", ".join(
            f"{len(self.of_status(status))} {status}" for status in ("passed", "failed", "not run")
        )

    def texts(self) -> Texts:
        """Return the answers, for another run to be compared with."""
        return Texts(self.inputs.drafts, dict(self.answers))


def of_results(
    inputs: Inputs, results: Sequence[Timed], answers: dict[str, str], *, full: bool
) -> Report:
    """Return the report of a run that ends now."""
    judged = tuple(
        Judged(
            each.gate,
            each.result.status,
            each.result.measured,
            each.result.bound,
            each.result.evidence,
            round(each.seconds, 1),
        )
        for each in results
    )
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return Report(SCHEMA, now, full, inputs, judged, dict(sorted(answers.items())))


def load(path: Path) -> Report:
    """Return the report in a file.

    Raises:
        GateError: if it is not one of this format.
    """
    return documents.load(path, Report, SCHEMA, lambda found: _unreadable(path, found))


def _unreadable(path: Path, found: str) -> GateError:
    return GateError(
        "the report cannot be read",
        file=path,
        expected=f"a report of schema {SCHEMA}",
        found=found,
        next_command="python -m serve verify",
    )


def markdown(report: Report) -> str:
    """Return the report for people."""
    inputs = report.inputs
    lines = [
        f"# {inputs.profile} on {inputs.device}",
        "",
        (
            f"{report.summary()}; {'all gates' if report.full else 'the quick gates'}, "
            f"{report.made:%Y-%m-%d %H:%M} UTC."
        ),
        "",
        "| what | |",
        "| --- | --- |",
        f"| served by | `{inputs.artefact}` |",
        f"| vLLM | {inputs.vllm} |",
        f"| model | `{inputs.model}` at `{inputs.revision}` |",
        f"| profile | `sha256:{inputs.profile_sha256}` |",
        f"| drafted tokens | {inputs.drafts} |",
        f"| driver | {inputs.driver or 'none'} |",
        "",
        "| gate | status | measured | bound | s |",
        "| --- | --- | --- | --- | ---: |",
    ]
    lines += [
        f"| {each.gate} | {each.status} | {_cell(each.measured)} | {_cell(each.bound)} "
        f"| {each.seconds:.1f} |"
        for each in report.results
    ]
    lines += ["", "## Evidence", ""]
    lines += [
        f"- **{each.gate}**: {_cell('; '.join(each.evidence))}"
        for each in report.results
        if each.evidence
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def statement(report: Report) -> dict[str, Any]:
    """Return the report as an in-toto statement about the image, or else about the model.

    A gate that did not run is among neither the passed nor the failed ones; the result is then at
    best a warning.
    """
    inputs = report.inputs
    subject: list[dict[str, Any]] = []
    if inputs.artefact_sha256:
        name = inputs.artefact.partition("@")[0]
        subject.append({"name": name, "digest": {"sha256": inputs.artefact_sha256}})
    kind = "gitCommit" if len(inputs.revision) == len("0" * 40) else "sha256"
    if inputs.revision:
        subject.append({"name": inputs.model, "digest": {kind: inputs.revision}})
    failed, not_run = report.of_status("failed"), report.of_status("not run")
    return {
        "_type": STATEMENT,
        "subject": subject,
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": "FAILED" if failed else "WARNED" if not_run else "PASSED",
            "configuration": [
                {
                    "name": f"profile {inputs.profile}",
                    "digest": {"sha256": inputs.profile_sha256},
                    "annotations": {
                        "device": inputs.device,
                        "driver": inputs.driver,
                        "drafts": inputs.drafts,
                        "vllm": inputs.vllm,
                        "made": report.made.isoformat(),
                    },
                }
            ],
            "passedTests": report.of_status("passed"),
            "warnedTests": not_run,
            "failedTests": failed,
        },
    }


def write(report: Report, folder: Path) -> Path:
    """Write a report in its three forms and return the JSON file's path.

    Raises:
        StorageError: if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{report.inputs.profile}-{report.made:%Y%m%dT%H%M%SZ}"
    path = folder / f"{stem}.json"
    write_atomic(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    write_atomic(folder / f"{stem}.md", markdown(report).encode())
    text = json.dumps(statement(report), indent=1) + "\n"
    write_atomic(folder / f"{stem}.intoto.json", text.encode())
    return path


def changed(report: Report, now: Inputs) -> list[str]:
    """Return which inputs are others now than when a report was made; it has expired if any."""
    return [
        name.replace("_", " ")
        for name in report.inputs.__struct_fields__
        if getattr(report.inputs, name) != getattr(now, name)
    ]
