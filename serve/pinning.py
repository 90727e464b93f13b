"""Pinning: what the hub has now, written into a profile."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tomlkit

from imagebuild.checkpoint.hub import Repository
from imagebuild.checkpoint.source import CONFIG, parse_json
from imagebuild.files import write_atomic
from serve.errors import ProfileError
from serve.models import TEMPLATES
from serve.planning import load, shape

if TYPE_CHECKING:
    from serve.planning.shape import Shape
    from serve.profile import Named


@dataclass(frozen=True)
class Pins:
    """What the hub has at one commit.

    Attributes:
        revision: the commit.
        chat_template: the SHA-256 of the chat template; None if the model ships none.
        weights: bytes of all tensors.
        shape: the geometry.
    """

    revision: str
    chat_template: str | None
    weights: int
    shape: Shape


def resolve(named: Named, revision: str | None) -> Pins:
    """Return the pins of the profile's model.

    Args:
        named: the profile.
        revision: a branch, a tag or a commit; None for the default branch.

    Raises:
        ProfileError: if the model is none of the hub.
        SourceError: if the hub does not have it, or is not reached.
        ModelError: if it is no hybrid that the planner knows.
    """
    model = named.profile.model
    if model.source != "hub":
        raise ProfileError(
            f"{model.id} is made here, there is nothing to pin",
            file=named.path,
            expected='source = "hub"',
            found=f'source = "{model.source}"',
            next_command=f"python -m serve start {named.name}",
        )
    repository = Repository.open(model.id, revision)
    config = parse_json(repository.read(CONFIG), f"{model.id}/{CONFIG}")
    weights = load.of_headers(repository.tensors(), model.id)
    return Pins(
        repository.commit,
        _template(repository),
        weights.total,
        shape.of_config(config, f"{model.id}/{CONFIG}"),
    )


def _template(repository: Repository) -> str | None:
    if TEMPLATES[0] in repository.files:
        return hashlib.sha256(repository.read(TEMPLATES[0])).hexdigest()
    if TEMPLATES[1] not in repository.files:
        return None
    template = json.loads(repository.read(TEMPLATES[1])).get("chat_template")
    return hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else None


def write(named: Named, pins: Pins) -> None:
    """Write pins into the profile's file; everything else in it stays as it is.

    Raises:
        StorageError: if it cannot be written.
    """
    document = tomlkit.parse(named.path.read_text(encoding="utf-8"))
    document["model"]["revision"] = pins.revision
    if pins.chat_template is not None:
        document["model"]["chat-template"] = pins.chat_template
    document["memory"]["weights"] = pins.weights
    table = tomlkit.table()
    for key in pins.shape.__struct_fields__:
        if value := getattr(pins.shape, key):
            table[key.replace("_", "-")] = value
    document["shape"] = table
    write_atomic(named.path, tomlkit.dumps(document).encode())
