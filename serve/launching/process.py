"""A server as a process of a Python environment, in a group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from serve.errors import EngineError
from serve.launching.state import alive, ticks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GRACE_S = 30.0


def start(command: Sequence[str], environ: Mapping[str, str], log: Path) -> tuple[int, int]:
    """Start a command whose output goes to a file, and return its pid and when it began.

    Raises:
        EngineError: if it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                list(command),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise EngineError(
            "the server cannot be started",
            file=command[0],
            expected="a program that runs here",
            found=error.strerror,
            next_command="python -m serve start --dry-run shows the whole command",
        ) from error
    return process.pid, ticks(process.pid)


def stop(pid: int, began: int, grace_s: float = GRACE_S) -> None:
    """End a process and all that it started: first it is asked to, then it is made to."""
    if not alive(pid, began):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
        end = time.monotonic() + grace_s
        while alive(pid, began) and time.monotonic() < end:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.05)
        if not alive(pid, began):
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # workers that outlived it
