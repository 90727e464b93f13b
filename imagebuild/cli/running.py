"""Running one command of a command line: its result, or its error, and what the shell is told."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from imagebuild.errors import BuildError, InterruptError
from imagebuild.files import storage_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Let `finally` blocks run when the system ends the process."""
    del number, frame
    raise KeyboardInterrupt


def _called(run: Callable[[], int], program: str, left: str) -> int:
    try:
        return run()
    except KeyboardInterrupt as interrupt:
        raise InterruptError(
            "the run was ended",
            expected="time to finish",
            found=f"an interrupt; {left}",
            next_command=f"{program} {' '.join(sys.argv[1:])}".rstrip(),
        ) from interrupt
    except BrokenPipeError:
        raise
    except OSError as error:
        raise storage_error(error, Path(error.filename or ".")) from error


def call(run: Callable[[], int], program: str, *, left: str, as_json: bool) -> int:
    """Run a command and return the process's exit status; docs/exit-codes.md lists them.

    Args:
        run: the command.
        program: how the program is called, for the next command.
        left: what an interrupted run leaves behind.
        as_json: whether an error is printed as JSON.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return _called(run, program, left)
    except BuildError as error:
        if as_json:
            print(json.dumps(error.facts(), indent=2))
        else:
            print(error.diagnostics(), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
