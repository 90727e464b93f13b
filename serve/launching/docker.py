"""Docker and compose, by their command line."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from serve.composing.compose import PROJECT
from serve.errors import ContainerError
from serve.launching import causes

if TYPE_CHECKING:
    from pathlib import Path

    from serve.artefact import Image


def _run(command: list[str], what: str, *, quiet: bool = True) -> str:
    """Return what a command prints; unless `quiet`, people see what it says meanwhile."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ContainerError(
            "there is no docker here",
            file=command[0],
            expected="docker with compose on PATH",
            found=error.strerror,
            next_command="install Docker, or serve from the wheel: --wheel PYTHON",
        ) from error
    if done.returncode:
        said = (done.stderr or "").strip()
        cause = causes.explain(said)
        raise ContainerError(
            what if cause is None else f"{what}: {cause.what}",
            file=command[-1],
            expected=" ".join(command[:3]),
            found=said.splitlines()[-1] if said else f"exit status {done.returncode}",
            next_command=cause.do if cause is not None else " ".join(command),
        )
    return done.stdout


def compose(file: Path, *rest: str) -> list[str]:
    """Return a compose command line."""
    return ["docker", "compose", "--project-name", PROJECT, "--file", str(file), *rest]


def check(file: Path) -> None:
    """Let compose read its file.

    Raises:
        ContainerError: if it refuses, or is not there.
    """
    _run(compose(file, "config", "--quiet"), "compose refuses the file")


def here(image: Image) -> bool:
    """Return whether this machine has an image already."""
    try:
        _run(["docker", "image", "inspect", "--format", "{{.Id}}", image.ref], "it is not here")
    except ContainerError:
        return False
    return True


def pull(image: Image) -> None:
    """Pull an image by its digest, unless it is here.

    Raises:
        ContainerError: if the registry does not have the digest, or does not answer.
    """
    if not here(image):
        _run(["docker", "pull", image.ref], "the image cannot be pulled", quiet=False)


def up(file: Path) -> None:
    """Start the container.

    Raises:
        ContainerError: if Docker does not.
    """
    _run(compose(file, "up", "--detach", "--no-build", "--pull", "never"), "nothing was started")


def down(file: Path) -> None:
    """Stop and remove the container; its volume stays.

    Raises:
        ContainerError: if Docker does not.
    """
    _run(compose(file, "down", "--timeout", "30"), "the container was not stopped")


def running(file: Path) -> bool:
    """Return whether the container runs.

    Raises:
        ContainerError: if Docker does not tell.
    """
    listed = _run(compose(file, "ps", "--status", "running", "--quiet"), "compose does not tell")
    return bool(listed.strip())


def volume_size(name: str) -> str | None:
    """Return a volume's size as Docker tells it, or None if there is no such volume.

    Raises:
        ContainerError: if Docker does not tell.
    """
    told = _run(
        ["docker", "system", "df", "--verbose", "--format", "{{json .Volumes}}"],
        "Docker does not tell its volumes",
    )
    for volume in json.loads(told or "[]") or []:
        if volume.get("Name") == name:
            return str(volume.get("Size", "unknown size"))
    return None


def remove_volume(name: str) -> None:
    """Remove a volume.

    Raises:
        ContainerError: if Docker does not.
    """
    _run(["docker", "volume", "rm", name], "the volume was not removed")
