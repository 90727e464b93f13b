"""`python -m bench.following`: the status of all releases, cold and warm, from cached downloads.

Processor seconds stand beside wall seconds, since a machine that others use makes the latter long.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from imagebuild import upstream
from imagebuild.fetch.sources import Sources
from imagebuild.following import releases
from imagebuild.progress import Silent
from imagebuild.project import CACHE_VARIABLE, Project, cache_root

ROOT = Path(__file__).resolve().parent.parent
_KEPT = ("blobs", "verified", "releases")  # downloads; what is made of them is what is measured


def measure(cache: Path, wanted: str) -> tuple[float, float, float]:
    """Return the wall and processor seconds and the peak memory in MB of one status.

    Raises:
        subprocess.CalledProcessError: if it fails.
    """
    command = [sys.executable, "build.py", "status", "--offline", "--releases", wanted]
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {CACHE_VARIABLE: str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.following", description=__doc__)
    parser.add_argument("--releases", default="0.27.1..0.33.0", metavar="A..B")
    wanted = parser.parse_args().releases
    lock = upstream.load(Project(ROOT).upstream_lock)
    sources = Sources.for_run(Silent(), offline=False)
    versions = releases.between(releases.listed(sources), wanted)
    for version in versions:
        sources.release(version, lock)
    for line in lock.lines.values():
        sources.sdist(line)
    with tempfile.TemporaryDirectory() as scratch:
        for name in _KEPT:
            Path(scratch, name).symlink_to(cache_root() / name)
        cold = measure(Path(scratch), wanted)
        warm = min(measure(Path(scratch), wanted) for _ in range(3))
    count = len({*versions, *(line.version for line in lock.lines.values())})
    print(
        f"{count} releases, {len(lock.lines)} lines; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, {platform.machine()}"
    )
    print(f"{'status':<8} {'wall s':>8} {'cpu s':>8} {'peak MB':>8}  bound")
    for name, row, bound in (("cold", cold, "30 s, 400 MB"), ("warm", warm, "2 s")):
        print(f"{name:<8} " + " ".join(f"{value:>8.2f}" for value in row) + f"  {bound}")


if __name__ == "__main__":
    main()
