"""How a command is defined, and how its result is printed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from serve.arguments import KEY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable


class Commands:
    """The commands of one parser."""

    def __init__(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        self._subparsers = subparsers

    def add(
        self, name: str, text: str, more: str, run: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        """Define a command and return its parser.

        Args:
            name: the command.
            text: one line for the list of commands, in lower case.
            more: the rest of its help.
            run: does it and returns the exit status.
        """
        parser = self._subparsers.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.\n\n{more}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        parser.set_defaults(run=run)
        return parser


def emit(arguments: argparse.Namespace, text: str, facts: object) -> None:
    """Print a result: `text` for a person, `facts` as JSON if asked for."""
    print(json.dumps(facts, indent=2) if arguments.json else text)


def say(text: str) -> None:
    """Print how far a command is, beside its result."""
    print(text, file=sys.stderr, flush=True)


def api_key() -> str | None:
    """Return the API's key, which only the environment may hold."""
    return os.environ.get(KEY_VARIABLE) or None


def confirm(question: str, *, yes: bool) -> bool:
    """Return whether a person agrees; without a terminal nobody does, unless told so."""
    if yes:
        return True
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
