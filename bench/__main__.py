"""`python -m bench`: the build next to the naive way, in one run on one machine.

Seconds on a shared machine say little; the ratios of one run say more. Every row has the bound that
this project holds itself to.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from imagebuild import upstream
from imagebuild.fetch.sources import Sources
from imagebuild.patching import assemble, checksums, series
from imagebuild.progress import Silent
from imagebuild.project import Project

ROOT = Path(__file__).resolve().parent.parent
_REPEATS = 5


@dataclass(frozen=True)
class Run:
    """One process.

    Attributes:
        seconds: wall time.
        peak: the largest resident size of the process and its children, in bytes.
    """

    seconds: float
    peak: int


def run(*arguments: str) -> Run:
    """Run a Python process and return what it took.

    Raises:
        subprocess.CalledProcessError: if it fails.
    """
    command = [sys.executable, *arguments]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return Run(seconds, usage.ru_maxrss * 1024)


def best(*arguments: str) -> Run:
    """Return the fastest of several runs of a short command."""
    return min((run(*arguments) for _ in range(_REPEATS)), key=lambda result: result.seconds)


def _patched_files(name: str, line: upstream.Line, sources: Sources, folder: Path) -> None:
    project = Project(ROOT)
    tree = sources.sdist(line)
    pins = checksums.load(project.checksums_lock).line(name)
    made = assemble.build_patchset(line, series.load(project, name), pins, tree, tree)
    for file in made.files:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--line", help="default: the lock's default line")
    parser.add_argument("--work", type=Path, help="a folder with room for 2 GB")
    arguments = parser.parse_args()
    name, line = upstream.load(Project(ROOT).upstream_lock).line(arguments.line)
    sources = Sources.for_run(Silent(), offline=False)
    wheel = sources.wheel(line, "linux/amd64")
    for other in upstream.load(Project(ROOT).upstream_lock).lines.values():
        sources.sdist(other)
    with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
        work = Path(scratch)
        _patched_files(name, line, sources, work / "patched")
        build = ["build.py", name, "--offline", "--dist", str(work / "dist")]
        build += ["--target", "wheel", "--target", "layer"]
        ours = run(*build)
        again = best(*build)
        naive = run("-m", "bench.naive", str(wheel), str(work / "patched"), str(work))
    check = best("build.py", "check", "--offline")
    show = best("build.py", "show", name)
    usage = best("build.py", "--help")
    bare = best("-c", "pass")
    rows = [
        ("wheel and layer, cached downloads / naive", ours.seconds / naive.seconds, "<= 0.25"),
        ("peak memory of that build, MB", ours.peak / 1e6, "<= 300"),
        ("peak memory of the naive way, MB", naive.peak / 1e6, ""),
        ("second build, nothing changed / first", again.seconds / ours.seconds, ""),
        ("second build, s", again.seconds, "<= 1"),
        ("check of all lines, warm cache, s", check.seconds, "<= 5"),
        ("show, s", show.seconds, "<= 0.3"),
        ("--help, s", usage.seconds, "<= 0.3"),
        ("a Python that does nothing, s", bare.seconds, ""),
    ]
    print(
        f"{name}; Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"
    )
    for text, value, bound in rows:
        print(f"{text:<44} {value:>8.3f}  {bound}".rstrip())


if __name__ == "__main__":
    main()
