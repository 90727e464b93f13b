"""What all tests share: which of them can run on this machine, and said so at the top."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


@cache
def docker_problem() -> str | None:
    """Return why the docker tests cannot run here, or None if they can."""
    if shutil.which("docker") is None:
        return "no docker on PATH"
    for command in (("docker", "info"), ("docker", "buildx", "version")):
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        if done.returncode:
            return f"`{' '.join(command)}` fails"
    return None


def pytest_report_header() -> str | None:
    """Say at the top what is left out, so that nobody takes it for passed."""
    problem = docker_problem()
    return f"docker tests: not run, {problem} (see .ci/run)" if problem else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the docker tests where there is no Docker with buildx."""
    left_out = [item for item in items if item.get_closest_marker("docker")]
    if left_out and docker_problem():
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
