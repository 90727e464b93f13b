"""Running the command line on a project, as a person does: a process with its own environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.tiny import Tiny

ROOT = Path(__file__).resolve().parents[2]


def simple_index(files: Path, folder: Path) -> str:
    """Write a package index (PEP 503) over the files of a folder; return its address."""
    page = folder / "vllm"
    page.mkdir(parents=True, exist_ok=True)
    links = []
    for file in sorted(files.iterdir()):
        shutil.copyfile(file, page / file.name)
        links.append(f'<a href="{file.name}">{file.name}</a>')
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    return folder.as_uri()


@dataclass
class Command:
    """A project's `build.py` with an environment in which nothing of this machine's is seen.

    Attributes:
        root: the project's folder.
        home: the user's home and cache.
        index: the address of the package index.
        extra: more variables.
    """

    root: Path
    home: Path
    index: str
    extra: dict[str, str] = field(default_factory=dict)

    @classmethod
    def on(cls, tiny: Tiny, scratch: Path) -> Command:
        """Return the command line of a tiny project, its downloads in an index on this disk."""
        shutil.copyfile(ROOT / "build.py", tiny.project.root / "build.py")
        index = simple_index(tiny.index, scratch / "simple")
        return cls(tiny.project.root, scratch / "home", index)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the process sees."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "VLLM_SM120_CACHE": str(self.home / "cache"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": self.index,
            "COLUMNS": "120",
            **self.extra,
        }

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:  # noqa: ANN401
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, str(self.root / "build.py"), *arguments],
            cwd=options.pop("cwd", self.root),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
        """Run a command to its end."""
        with self.start(*arguments, **options) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def ok(self, *arguments: str, **options: Any) -> str:  # noqa: ANN401
        """Run a command that must succeed; return what it prints."""
        done = self.run(*arguments, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str, **options: Any) -> Any:  # noqa: ANN401
        """Run a command with `--json`, whatever its exit status; return the document."""
        return json.loads(self.run(*arguments, "--json", **options).stdout)
