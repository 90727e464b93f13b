"""The arguments of the commands that follow upstream: `status`, `bump`, `drop`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import argparse

COMMANDS = {"status": "status", "bump": "bump", "drop": "drop"}


class Add(Protocol):
    """What adds one command's parser."""

    def __call__(self, name: str, text: str, more: str) -> argparse.ArgumentParser:
        """Return the new parser; it knows `--json` already."""


def add(command: Add) -> None:
    """Add the three commands.

    Args:
        command: makes a command's parser of its name, its line of help and its description.
    """
    _status(command)
    _bump(command)
    _drop(command)


def _status(command: Add) -> None:
    status = command(
        "status",
        "say what every patch meets in every release",
        "One row a patch, one column a release, in the six outcomes of `check`; the proofs that\n"
        "each drop-when is false on its own line; overlaps; version skew. Results are cached by\n"
        "the digests of patch, sdist and tool. Fails only if a drop-when is not proven.",
    )
    status.add_argument("lines", nargs="*", metavar="LINE", help="default: all lines")
    what = status.add_mutually_exclusive_group()
    what.add_argument(
        "--releases",
        metavar="A..B",
        help="the releases to look at, besides each line's own; default: what is newer than all lines",
    )
    what.add_argument(
        "--why",
        nargs=2,
        metavar=("PATCH", "RELEASE"),
        help="one cell: hunks, upstream's lines now, who changed them, where they went",
    )
    status.add_argument("--svg", type=Path, metavar="FILE", help="write a heat map, too")
    status.add_argument("--markdown", type=Path, metavar="FILE", help="write the page, too")
    status.add_argument("--refresh", action="store_true", help="compute what is cached already")
    status.add_argument("--offline", action="store_true", help="use the cache only, no network")


def _bump(command: Add) -> None:
    del command


def _drop(command: Add) -> None:
    del command
