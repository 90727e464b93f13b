"""Running test files inside the CPU environment, and reading what became of each test."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.patched.environment import Site

ROOT = Path(__file__).parents[2]
# What pytest writes of a test that did not get as far as what it is about.
_NEVER_RAN = re.compile(
    r"^(ImportError|ModuleNotFoundError|NameError|SyntaxError)\b"
    r"|^AttributeError: (module|<module|type object) .* has no attribute"
)

Outcome = Literal["passed", "failed", "error", "skipped"]


@dataclass(frozen=True)
class Result:
    """What became of one test.

    Attributes:
        node: its node id, with its parameters.
        outcome: `failed` is a failed assertion, or what the code under test raised; what kept the
            test from reaching that code, such as a failed import or fixture, is an `error`.
        message: the first line of the reason.
        properties: what the test recorded.
    """

    node: str
    outcome: Outcome
    message: str = ""
    properties: dict[str, str] = field(default_factory=dict)

    def is_of(self, node: str) -> bool:
        """Return whether this is the test `node`, or one of its parameter sets."""
        return self.node == node or self.node.startswith(f"{node}[")


class RunFailedError(AssertionError):
    """The test process gave no report: it did not end in time, crashed, or could not collect."""


def _result(case: ET.Element) -> Result:
    node = f"{case.get('file')}::{case.get('name')}"
    properties = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
    for tag in ("error", "failure", "skipped"):
        child = case.find(tag)
        if child is None:
            continue
        message = child.get("message", "")
        outcome: Outcome = "skipped" if tag == "skipped" else "error"
        if tag == "failure" and not _NEVER_RAN.match(message):
            outcome = "failed"
        return Result(node, outcome, message, properties)
    return Result(node, "passed", "", properties)


def parse(report: bytes) -> list[Result]:
    """Return the results that a JUnit report of pytest (xunit1) holds."""
    return [_result(case) for case in ET.fromstring(report).iter("testcase")]  # noqa: S314


def run(site: Site, tests: Sequence[str], limit_s: int) -> list[Result]:
    """Run tests in one process of their own, with `site` as vLLM.

    Args:
        site: the tree.
        tests: paths from the project's root, or node ids.
        limit_s: after so many seconds the process and all that it started are killed.

    Raises:
        RunFailedError: if there is no report; the message has the end of the output.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report, log = Path(scratch) / "report.xml", Path(scratch) / "log"
        command = [
            str(site.environment.python), "-m", "pytest", "-q", "-c", "tests/patched/pytest.ini",
            "--rootdir", str(ROOT), "-o", "junit_family=xunit1", f"--junit-xml={report}",
            *tests,
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=site.environ(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                why = f"not done within {limit_s} s"
            else:
                why = f"ended with {process.returncode}"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if not report.is_file():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise RunFailedError(f"{' '.join(tests)}: {why}\n{tail}")
        return parse(report.read_bytes())
