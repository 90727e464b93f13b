"""A job of the gate in a process of its own, with an end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.patched.corruption.engine import Job

ROOT = Path(__file__).parents[3]
_ERROR = re.compile(r"^(?:\[\w+\]: )?(\w+(?:Error|Exception|Interrupt)\b.*)$")


def run(
    job: Job, stem: Path, limit_s: float, python: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return what became of a job.

    Args:
        job: what to do.
        stem: beside it lie the job, its result and its log, by their suffixes.
        limit_s: after so many seconds the process and all that it started are ended.
        python: the interpreter.
        environ: its environment; vLLM is on its `PYTHONPATH`.

    Returns:
        What the engine wrote, or the job with `not_run` or `died` and why.
    """
    asked, result, log = (stem.with_suffix(suffix) for suffix in (".job", ".json", ".log"))
    asked.write_text(json.dumps(asdict(job)))
    result.unlink(missing_ok=True)
    path = os.pathsep.join([environ.get("PYTHONPATH", ""), str(ROOT)])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-m", "tests.patched.corruption.engine", str(asked), str(result)],
            env={**environ, "PYTHONPATH": path}, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        why = {}
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            why = {"not_run": "not done when the time was used up"}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not why and not result.is_file():
        why = {"died": last_error(log.read_text(errors="replace"))}
    if why:
        told = {"setting": asdict(job.setting), "fault": job.fault, "part": job.part}
        return {**told, "cases": [], **why}
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def last_error(log: str) -> str:
    """Return the last exception that a log names; the rest of the log is for this machine alone."""
    found = [match[1] for line in log.splitlines() if (match := _ERROR.match(line))]
    return found[-1] if found else "it ended without an exception; see its log"
