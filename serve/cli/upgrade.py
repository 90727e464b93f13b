"""`serve upgrade` and `rollback`: another image for the same profile, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.cli.commands import api_key, say
from serve.cli.start import LIMIT_S, launch

if TYPE_CHECKING:
    import argparse

    from serve.artefact import Image
    from serve.cli.commands import Commands
    from serve.launching.state import Running


def add(commands: Commands) -> None:
    """Define the commands."""
    upgrade_parser = commands.add(
        "upgrade",
        "serve the same profile from a newer image",
        "The new image is pulled before the old server is stopped. If the new one does not come\n"
        "up, `rollback` starts the old one again.",
        upgrade,
    )
    upgrade_parser.add_argument("--image", metavar="REF@DIGEST", help="instead of the published")
    back = commands.add(
        "rollback", "serve from the image before", "It needs no network: that image is here.", back_
    )
    for parser in (upgrade_parser, back):
        parser.add_argument("--timeout", type=float, default=LIMIT_S, metavar="SECONDS")


def _container() -> Running:
    from serve.errors import ContainerError  # noqa: PLC0415
    from serve.launching import state  # noqa: PLC0415

    running = state.require()
    if running.compose is None:
        raise ContainerError(
            "this server runs from a Python environment, not from an image",
            file=running.artefact,
            expected="a server that was started from an image",
            found=f"{running.artefact}, vLLM {running.version}",
            next_command="pip install the new wheel, then `python -m serve stop` and `start`",
        )
    return running


def _change(
    arguments: argparse.Namespace, running: Running, to: Image, earlier: tuple[str, ...]
) -> int:
    from serve import arguments as given  # noqa: PLC0415
    from serve import models, profile  # noqa: PLC0415
    from serve.launching import docker, starting, state  # noqa: PLC0415

    named = profile.load(running.profile)
    given.check(named, key=api_key() is not None)
    say(f"image     {to.ref}")
    docker.pull(to)
    files = models.fetch(named)
    starting.end(running)
    start = starting.Start(named, to, running.gpus, mtp=running.drafts > 0, earlier=earlier)
    try:
        return launch(arguments, start, files)
    except BaseException:
        # What served before can be gone back to, though nothing runs now.
        state.save(running)
        raise


def upgrade(arguments: argparse.Namespace) -> int:
    """Change to a newer image.

    Raises:
        BuildError: one of many, each with its exit code.
    """
    from imagebuild.errors import UsageError  # noqa: PLC0415
    from serve import artefact, profile  # noqa: PLC0415

    running = _container()
    named = profile.load(running.profile)
    to = artefact.image(arguments.image) if arguments.image else artefact.published(named)
    if to.ref == running.artefact:
        raise UsageError(
            "that image serves already",
            file=running.artefact,
            expected="another digest",
            found="the same",
            next_command="python -m serve status",
        )
    return _change(arguments, running, to, (running.artefact, *running.earlier))


def back_(arguments: argparse.Namespace) -> int:
    """Change to the image before.

    Raises:
        BuildError: one of many, each with its exit code.
    """
    from imagebuild.errors import UsageError  # noqa: PLC0415
    from serve import artefact  # noqa: PLC0415
    from serve.launching import starting  # noqa: PLC0415

    running = _container()
    if not starting.alive(running):  # an upgrade that failed: this is the image before
        return _change(arguments, running, artefact.image(running.artefact), running.earlier)
    if not running.earlier:
        raise UsageError(
            "no image served before this one",
            file=running.artefact,
            expected="an upgrade to go back from",
            found="none",
            next_command="python -m serve status",
        )
    to = artefact.image(running.earlier[0])
    return _change(arguments, running, to, running.earlier[1:])
