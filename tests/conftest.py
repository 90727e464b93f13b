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
    needed = ("docker", "skopeo", "cosign", "oras")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} on PATH"
    for command in (("docker", "info"), ("docker", "buildx", "version")):
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        if done.returncode:
            return f"`{' '.join(command)}` fails"
    return None


@cache
def containers_problem() -> str | None:
    """Return why the containers tests cannot run here, or None if they can."""
    missing = [name for name in ("skopeo", "docker-registry") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} on PATH" if missing else None


PROBLEMS = {"docker": docker_problem, "containers": containers_problem}


def pytest_report_header() -> list[str]:
    """Say at the top what is left out, so that nobody takes it for passed."""
    found = {marker: problem() for marker, problem in PROBLEMS.items()}
    return [
        f"{m} tests: not run, {problem} (see .ci/run)" for m, problem in found.items() if problem
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests for which this machine lacks something."""
    for marker, problem in PROBLEMS.items():
        left_out = [item for item in items if item.get_closest_marker(marker)]
        if left_out and problem():
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]
