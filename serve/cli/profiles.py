"""`serve profiles`: what can be served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.cli.commands import emit

if TYPE_CHECKING:
    import argparse

    from serve.cli.commands import Commands


def add(commands: Commands) -> None:
    """Define the command."""
    commands.add(
        "profiles",
        "list the profiles",
        "Each is a file in serve/profiles; `start` also takes the path of a file of yours.",
        run,
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the profiles.

    Raises:
        ProfileError: if one cannot be read.
    """
    from serve import profile  # noqa: PLC0415  # `--help` answers without it

    named = [profile.load(name) for name in profile.names()]
    width = max((len(each.name) for each in named), default=0)
    text = "\n".join(f"{each.name:<{width}}  {each.profile.summary}" for each in named)
    emit(arguments, text, {each.name: each.profile.summary for each in named})
    return 0
