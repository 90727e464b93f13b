"""The two bumps that docs/examples shows, on copies of this project, with real releases.

`python -m tests.support.examples` writes the reports anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from imagebuild import upstream
from imagebuild.project import cache_root
from tests.support.command import ROOT

FOLDER = ROOT / "docs" / "examples"
FROM_0_31 = "bump-0.32.0.md"
FROM_0_27 = "bump-0.33.0.md"
_SHARED = ("blobs", "verified", "sdists", "releases", "locks", "status")


def project(folder: Path, *without: str) -> Path:
    """Return a copy of this project without some of its lines."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / "build.py", folder / "build.py")
    for name in ("patches", "overlay"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
    lines = upstream.load(ROOT / "upstream.lock").lines
    default = next(name for name in lines if name not in without)
    for name in ("upstream.lock", "checksums.lock"):
        text = (ROOT / name).read_text()
        for line in without:
            tables = rf'^\[+lines\."{re.escape(line)}"[^\n]*\n(?:(?!^\[).*\n?)*'
            text = re.sub(tables, "", text, flags=re.MULTILINE)
        text = re.sub(r'^default = ".*"', f'default = "{default}"', text, flags=re.MULTILINE)
        (folder / name).write_text(text)
    for line in without:
        shutil.rmtree(folder / "patches" / line)
        shutil.rmtree(folder / "overlay" / line, ignore_errors=True)
    return folder


def cache(folder: Path) -> Path:
    """Return a cache with the user's downloads and none of the user's scratch repositories."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _SHARED:
        shared = cache_root() / name
        shared.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(shared)
    return folder


def build(home: Path, store: Path, *arguments: str) -> Any:  # noqa: ANN401
    """Run a command of a project's `build.py`; return its document."""
    done = subprocess.run(
        [sys.executable, str(home / "build.py"), *arguments, "--json"],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "VLLM_SM120_CACHE": str(store)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def from_0_31(home: Path, store: Path) -> tuple[Any, Any]:
    """Make line v0.31.0, then v0.32.0 from it; return what the two bumps said."""
    first = build(home, store, "bump", "0.31.0", "--no-tests")
    return first, build(home, store, "bump", "0.32.0", "--no-tests")


def from_0_27(home: Path, store: Path) -> Any:  # noqa: ANN401
    """Make line v0.33.0 from v0.27.1's series; return what the bump said."""
    return build(home, store, "bump", "0.33.0", "--no-tests")


def main() -> None:
    """Write the reports."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        store = cache(Path(made, "cache"))
        home = project(Path(made, "a"))
        reports = {FROM_0_31: from_0_31(home, store)[1]}
        reports[FROM_0_27] = from_0_27(project(Path(made, "b"), "v0.33.0"), store)
        for name, said in reports.items():
            text = said["report"].replace(str(said["scratch"]), "SCRATCH")
            (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
