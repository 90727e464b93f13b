"""The command line of serving: parses, runs one command, prints its result or its error."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from imagebuild.errors import BuildError, InterruptError
from imagebuild.files import storage_error
from serve.cli.parser import make_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["main"]


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Let `finally` blocks run when the system ends the process."""
    del number, frame
    raise KeyboardInterrupt


def _run(arguments: argparse.Namespace) -> int:
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt as interrupt:
        raise InterruptError(
            "the run was ended",
            expected="time to finish",
            found="an interrupt; what this run had started is stopped, the cache is intact",
            next_command=f"python -m serve {' '.join(sys.argv[1:])}".rstrip(),
        ) from interrupt
    except BrokenPipeError:
        raise
    except OSError as error:
        raise storage_error(error, Path(error.filename or ".")) from error


def main(argv: Sequence[str]) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name.

    Returns:
        The process's exit status; docs/exit-codes.md lists them.
    """
    signal.signal(signal.SIGTERM, _terminate)
    arguments = make_parser().parse_args(argv)
    try:
        return _run(arguments)
    except BuildError as error:
        if arguments.json:
            print(json.dumps(error.facts(), indent=2))
        else:
            print(error.diagnostics(), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
