"""The command line of serving: parses, runs one command, prints its result or its error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild.cli.running import call
from serve.cli.parser import make_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name.

    Returns:
        The process's exit status; docs/exit-codes.md lists them.
    """
    arguments = make_parser().parse_args(argv)
    left = "what this run had started is stopped, the cache is intact"
    return call(
        lambda: int(arguments.run(arguments)), "python -m serve", left=left, as_json=arguments.json
    )
