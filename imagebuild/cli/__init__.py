"""The command line: parses, runs one command, prints its result or its error."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from imagebuild.cli.parser import COMMANDS, make_parser, with_default_command
from imagebuild.cli.running import call
from imagebuild.project import Project

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["main"]


def main(argv: Sequence[str], root: Path) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name.
        root: the project's folder, the one that holds `build.py`.

    Returns:
        The process's exit status; docs/exit-codes.md lists them.
    """
    arguments = make_parser().parse_args(with_default_command(argv))

    def run() -> int:
        module = importlib.import_module(f"imagebuild.cli.{COMMANDS[arguments.command]}")
        return int(module.run(arguments, Project(root)))

    left = "nothing half-written is left under a final name"
    return call(run, "python build.py", left=left, as_json=arguments.json)
