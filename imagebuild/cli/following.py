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
        help="which to look at, besides each line's own; default: what is newer than all lines",
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
    bump = command(
        "bump",
        "make a line of a new upstream release",
        "Resolves the pins, carries the nearest line's series over, merges what drifted with the\n"
        "true base, leaves out what upstream has, and writes a report. A conflict is never\n"
        "committed: it waits in a scratch repository, and the report has the next commands.\n"
        "Without RELEASE: the newest stable one that is old enough, if it is new to the lock.",
    )
    bump.add_argument("release", nargs="?", metavar="RELEASE", help="such as 0.34.0")
    bump.add_argument("--from", dest="source", metavar="LINE", help="default: the nearest line")
    bump.add_argument(
        "--older-than",
        type=int,
        default=3,
        metavar="DAYS",
        help="without RELEASE: follow no release younger than this (default: %(default)s)",
    )
    bump.add_argument("--dry-run", action="store_true", help="report only; write nothing else")
    bump.add_argument("--report", type=Path, metavar="FILE", help="write the report (Markdown)")
    bump.add_argument("--no-tests", action="store_true", help="do not run the series' tests")
    bump.add_argument(
        "--history",
        metavar="REPO",
        help="a clone of upstream to read commits from, instead of GitHub's API",
    )
    bump.add_argument(
        "--pull-request",
        action="store_true",
        help="push the result and open its one pull request, or update it (GITHUB_TOKEN, "
        "GITHUB_REPOSITORY)",
    )
    bump.add_argument("--offline", action="store_true", help="use the cache only, no network")


def _drop(command: Add) -> None:
    drop = command(
        "drop",
        "retire a patch",
        "Removes its patch, its metadata and what belongs to it alone (overlay files, tests),\n"
        "and updates series, checksums and docs. Says why: its drop-when must hold in the\n"
        "release, or --because must give a reason.",
    )
    drop.add_argument("patch", metavar="PATCH", help="the patch")
    drop.add_argument("--line", metavar="LINE", help="default: the lock's default line")
    why = drop.add_mutually_exclusive_group()
    why.add_argument("--release", metavar="X", help="the release that has the fix")
    why.add_argument("--because", metavar="TEXT", help="why it goes, though no release has the fix")
    drop.add_argument("--dry-run", action="store_true", help="say what would go; write nothing")
    drop.add_argument("--offline", action="store_true", help="use the cache only, no network")
