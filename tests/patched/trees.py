"""A line's Python as upstream released it, and with the line's series in it, as folders."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from imagebuild import upstream
from imagebuild.fetch.sources import Sources
from imagebuild.patching import apply, assemble, series
from imagebuild.progress import Silent

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.fetch.sdist import SdistTree
    from imagebuild.project import Project
    from imagebuild.upstream import Line


def lines(project: Project) -> tuple[str, ...]:
    """Return the names of the project's lines."""
    return tuple(upstream.load(project.upstream_lock).lines)


def _release(project: Project, name: str) -> tuple[Line, SdistTree]:
    _, line = upstream.load(project.upstream_lock).line(name)
    return line, Sources.for_run(Silent(), offline=False).sdist(line)


def stock_tree(project: Project, name: str, root: Path) -> Path:
    """Write the release's `vllm/` below the new folder `root`; return `root`."""
    _, sdist = _release(project, name)
    for path in sdist.files():
        if path.startswith("vllm/"):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(sdist.read(path) or b"")
    return root


def patched_tree(project: Project, name: str, stock: Path, root: Path) -> Path:
    """Write `stock` with the line's series and all that the build lays over it; return `root`.

    The files that stay as they are, are hard links.

    Raises:
        BuildError: if a patch does not apply.
    """
    line, sdist = _release(project, name)
    found = series.load(project, name)
    plan = apply.plan(found, sdist)
    assemble.raise_first_failure(plan, sdist)
    shutil.copytree(stock, root, copy_function=os.link)
    for file in assemble.assemble(line, found, plan, sdist).files:
        target = root / file.path
        target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
    return root
