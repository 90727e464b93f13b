"""`serve pin`: the model's revision, chat template and size, resolved on the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.cli.commands import emit

if TYPE_CHECKING:
    import argparse

    from serve.cli.commands import Commands


def add(commands: Commands) -> None:
    """Define the command."""
    parser = commands.add(
        "pin",
        "resolve a profile's model on the hub, and write the pins down",
        "It reads the model's config, chat template and tensor headers, not its weights.",
        run,
    )
    parser.add_argument("profile", help="a profile, or a file that ends in .toml")
    parser.add_argument("--revision", help="a branch, tag or commit instead of the default branch")
    parser.add_argument("--write", action="store_true", help="write the pins into the profile")


def run(arguments: argparse.Namespace) -> int:
    """Print the pins, and write them if asked to.

    Raises:
        BuildError: if the hub does not give what is needed.
    """
    from serve import pinning, profile  # noqa: PLC0415  # `--help` answers without it

    named = profile.load(arguments.profile)
    pins = pinning.resolve(named, arguments.revision)
    if arguments.write:
        pinning.write(named, pins)
        profile.load(str(named.path))  # it must still be a profile
    model = named.profile.model
    rows = {
        "revision": (model.revision, pins.revision),
        "chat template": (model.chat_template, pins.chat_template),
        "weights": (named.profile.memory.weights, pins.weights),
        "shape": ("as pinned", "as pinned" if pins.shape == named.profile.shape else "another"),
    }
    width = max(len(name) for name in rows)
    lines = [
        f"{name:<{width}}  {new}" + ("" if old == new else f"  (was {old or 'not pinned'})")
        for name, (old, new) in rows.items()
    ]
    lines.append(f"wrote {named.path}" if arguments.write else "nothing written; --write does")
    emit(arguments, "\n".join(lines), {name: new for name, (_, new) in rows.items()})
    return 0
