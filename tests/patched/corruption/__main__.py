"""The gate on this machine: engines side by side, a JSON file and a table.

usage: python -m tests.patched.corruption OUT [--device cuda|cpu] [--part cover|faults|all]
           [--jobs 8] [--budget 540]

Each engine is a process of its own. What the budget (in seconds) does not reach is "not run".
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.patched.corruption import report
from tests.patched.corruption.engine import Job, Sizes
from tests.patched.corruption.plan import CASES, Case, Setting, cover

FAULT_NAMES = (
    "state is not rolled back",
    "stale accepted count",
    "block table off by one",
    "prefill as decode",
    "V scales swizzled",
    "scales of another layer",
)
ON_A_GPU = Sizes(pools={"off": 2.0, "on": 2.2, "evicted": 1.6})
FAULTY = Setting(drafts=3, kv="nvfp4")
ASKED_OF_FAULTS = (Case("one", "plain"), Case("staggered", "plain"), Case("staggered", "json"))


def jobs(model: str, part: str, device: str) -> list[Job]:
    """Return what to run, the longest first."""
    made: list[Job] = []
    if part in {"cover", "all"}:
        made += [Job(model, s, CASES, None, ON_A_GPU, device) for s in cover()]
    if part in {"faults", "all"}:
        faulty = (None, *FAULT_NAMES)
        made += [Job(model, FAULTY, ASKED_OF_FAULTS, f, Sizes(), device, "faults") for f in faulty]
    return made


def run(job: Job, folder: Path, number: int, ends: float) -> dict[str, Any]:
    """Return what became of a job; a process that is not done in time is ended."""
    name = f"{number:02}-{job.setting.name}"
    files = [folder / f"{name}.{kind}" for kind in ("job", "json", "log")]
    asked, result, log = files
    asked.write_text(json.dumps(asdict(job)))
    head: dict[str, Any] = {
        "setting": asdict(job.setting), "fault": job.fault, "part": job.part, "cases": [],
    }  # fmt: skip
    left = ends - time.monotonic()
    if left < 30:
        return {**head, "not_run": "the time was used up"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.patched.corruption.engine", str(asked), str(result)],
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(left)
        except subprocess.TimeoutExpired:
            return {**head, "not_run": "not done when the time was used up"}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not result.is_file():
        tail = log.read_text(errors="replace").splitlines()[-25:]
        return {**head, "died": "\n".join(tail)}
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def main() -> None:
    """Run the gate; the exit status is 1 if it is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--part", choices=("cover", "faults", "all"), default="all")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--budget", type=float, default=540)
    options = parser.parse_args()
    ends = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    from tests.patched.corruption import weights

    work = options.out / "work"
    work.mkdir(exist_ok=True)
    model = str(weights.write(work / "model"))
    results: list[dict[str, Any]] = []
    lock = threading.Lock()

    def one(numbered: tuple[int, Job]) -> None:
        number, job = numbered
        found = run(job, work, number, ends)
        with lock:
            results.append(found)
            (options.out / "gate.json").write_text(json.dumps(results, indent=1) + "\n")
            print(report.line(found), flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, enumerate(jobs(model, options.part, options.device))))
    (options.out / "gate.md").write_text(report.table(results))
    sys.exit(0 if report.is_as_it_should_be(results) else 1)


if __name__ == "__main__":
    main()
