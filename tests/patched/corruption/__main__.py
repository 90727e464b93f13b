"""The gate on this GPU: engines side by side, a JSON file and a table.

usage: python -m tests.patched.corruption OUT [--part cover|faults|all] [--jobs 8] [--budget 540]

Each engine is a process of its own. What the budget (in seconds) does not reach is "not run".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.patched.corruption import process, report, weights
from tests.patched.corruption.engine import Job, Sizes
from tests.patched.corruption.faults import FAULTS
from tests.patched.corruption.plan import CASES, Case, Setting, cover

ON_A_GPU = Sizes(pools={"off": 2.0, "on": 2.2, "evicted": 1.6})
FAULTY = Setting(drafts=3, kv="nvfp4")
ASKED_OF_FAULTS = (Case("one", "plain"), Case("staggered", "plain"), Case("staggered", "json"))


def jobs(model: str, part: str) -> list[Job]:
    """Return what to run, the longest first."""
    made: list[Job] = []
    if part in {"cover", "all"}:
        made += [Job(model, setting, CASES, None, ON_A_GPU) for setting in cover()]
    if part in {"faults", "all"}:
        made += [
            Job(model, FAULTY, ASKED_OF_FAULTS, fault, part="faults") for fault in (None, *FAULTS)
        ]
    return made


def main() -> None:
    """Run the gate; the exit status is 1 if it is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", choices=("cover", "faults", "all"), default="all")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--budget", type=float, default=540)
    options = parser.parse_args()
    ends = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    work = options.out / "work"
    work.mkdir(exist_ok=True)
    model = str(weights.write(work / "model"))
    results: list[dict[str, Any]] = []
    lock = threading.Lock()

    def one(numbered: tuple[int, Job]) -> None:
        number, job = numbered
        left = ends - time.monotonic()
        stem = work / f"{number:02}-{job.setting.name}"
        found = process.run(job, stem, max(left, 0.0), sys.executable, os.environ)
        with lock:
            results.append(found)
            (options.out / "gate.json").write_text(json.dumps(results, indent=1) + "\n")
            print(report.line(found), flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, enumerate(jobs(model, options.part))))
    (options.out / "gate.md").write_text(report.table(results))
    sys.exit(0 if report.is_as_it_should_be(results) else 1)


if __name__ == "__main__":
    main()
