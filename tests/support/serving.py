"""Running `python -m serve` as a person does, with stand-ins for tools that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import preflight_fixtures as machines

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]


def serve(
    *arguments: str, extra: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment in which nothing of this user's is seen."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONPATH": str(ROOT),
        **(extra or {}),
    }
    return subprocess.run(
        [sys.executable, "-m", "serve", *arguments],
        env=environ, capture_output=True, text=True, check=False, timeout=timeout, cwd=ROOT,
    )  # fmt: skip


_TOOL = """\
#!{python}
import json, os, pathlib, subprocess, sys
state = pathlib.Path({state!r})
with (state / "calls").open("a") as calls:
    calls.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
told = json.loads((state / "answers.json").read_text())
line = " ".join(sys.argv[1:])
for start, answer in told[{name!r}]:
    if start in line:
        sys.stdout.write(answer.get("out", ""))
        sys.stdout.flush()
        sys.stderr.write(answer.get("err", ""))
        if answer.get("hold"):
            import time
            time.sleep(answer["hold"])
        sys.exit(answer.get("status", 0))
sys.exit(0)
"""


@dataclass
class FakeTools:
    """A fake `docker` and a fake `nvidia-smi`, for flows only: they answer what a test says.

    Attributes:
        folder: what goes first on PATH, and where calls are written down.
        answers: for each tool, what to answer to a command line that holds some text.
    """

    folder: Path
    answers: dict[str, list[tuple[str, dict[str, object]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        card = machines.RTX_5090
        self.answers = {
            "docker": [
                ("info --format", {"out": machines.docker_info()}),
                ("compose version", {"out": "2.40.3\n"}),
                ("--status running", {"out": "0123abc\n"}),
                ("logs --follow", {"out": "", "hold": 600}),
                *self.answers.get("docker", []),
            ],
            "nvidia-smi": [
                ("-q -x", {"out": machines.smi(card)}),
                ("--query-gpu", {"out": machines.csv(card)}),
            ],
        }
        for name in self.answers:
            tool = self.folder / name
            text = _TOOL.format(python=sys.executable, state=str(self.folder), name=name)
            tool.write_text(text)
            tool.chmod(0o755)
        self.say()

    def say(self, *answers: tuple[str, dict[str, object]]) -> None:
        """Let docker answer these first."""
        told = {**self.answers, "docker": [*answers, *self.answers["docker"]]}
        (self.folder / "answers.json").write_text(json.dumps(told))

    def calls(self) -> list[str]:
        """Return the command lines so far, and forget them."""
        path = self.folder / "calls"
        if not path.exists():
            return []
        found = [" ".join(json.loads(line)) for line in path.read_text().splitlines()]
        path.unlink()
        return found

    @property
    def path(self) -> str:
        """The PATH on which they stand first."""
        return os.pathsep.join([str(self.folder), os.environ["PATH"]])
