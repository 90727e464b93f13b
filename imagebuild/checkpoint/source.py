"""Where a checkpoint is: a folder on this machine, or a repository of the Hugging Face hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.checkpoint import headers
from imagebuild.errors import ArchiveError, SourceError, UsageError

if TYPE_CHECKING:
    from imagebuild.checkpoint.headers import Tensor

CONFIG = "config.json"
# Where ModelOpt writes its config if config.json does not have it.
QUANT_CONFIG = "hf_quant_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a checkpoint without its data.

    Attributes:
        name: the folder or repository, with its revision.
        config: config.json.
        quant_config: hf_quant_config.json, where there is one.
        tensors: every tensor by its name.
    """

    name: str
    config: dict[str, Any]
    quant_config: dict[str, Any] | None
    tensors: dict[str, Tensor]


def parse_json(text: bytes, path: object) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        ArchiveError: if it holds none.
    """
    try:
        value = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        value = str(error)
    if not isinstance(value, dict):
        raise ArchiveError(
            "the file is not a JSON object",
            file=path,
            expected="a JSON object",
            found=value if isinstance(value, str) else type(value).__name__,
            next_command="download this file again",
        )
    return value


def read_folder(folder: Path) -> Checkpoint:
    """Return the checkpoint in a folder of this machine.

    Raises:
        SourceError: if a file that it needs is missing.
        ArchiveError: if one is damaged.
    """
    config = folder / CONFIG
    if not config.is_file():
        raise SourceError(
            "the folder is not a checkpoint",
            file=config,
            expected=CONFIG,
            found="nothing",
            next_command="python build.py checkpoint FOLDER, with the folder of the model's files",
        )
    quant = folder / QUANT_CONFIG
    return Checkpoint(
        str(folder),
        parse_json(config.read_bytes(), config),
        parse_json(quant.read_bytes(), quant) if quant.is_file() else None,
        headers.read_folder(folder),
    )


def read_hub(repository: str, revision: str | None) -> Checkpoint:
    """Return a checkpoint of the hub, reading its JSON files and its headers only.

    Raises:
        UsageError: if huggingface_hub is not installed.
        SourceError: if the repository, the revision or a file is not there, or the hub not reached.
        ArchiveError: if a file is damaged.
    """
    try:
        from imagebuild.checkpoint import hub  # noqa: PLC0415  (huggingface_hub is optional)
    except ImportError as error:
        raise UsageError(
            "reading from the hub needs huggingface_hub",
            file=repository,
            expected="the Python package huggingface_hub",
            found=str(error),
            next_command="pip install -e '.[hub]'",
        ) from error
    opened = hub.Repository.open(repository, revision)
    config = parse_json(opened.read(CONFIG), f"{repository}/{CONFIG}")
    quant = None
    if QUANT_CONFIG in opened.files:
        quant = parse_json(opened.read(QUANT_CONFIG), f"{repository}/{QUANT_CONFIG}")
    return Checkpoint(f"{repository} at {opened.commit}", config, quant, opened.tensors())


def read(where: str, revision: str | None) -> Checkpoint:
    """Return the checkpoint that a person names.

    Raises:
        UsageError: if the name is neither a folder nor a repository's.
        SourceError: if something is missing.
        ArchiveError: if something is damaged.
    """
    folder = Path(where).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise UsageError(
                "a folder has no revisions",
                file=folder,
                expected="--revision with a repository of the hub",
                found=f"--revision {revision} with a folder",
                next_command=f"python build.py checkpoint {where}",
            )
        return read_folder(folder)
    if where.count("/") != 1 or folder.is_absolute() or where.startswith((".", "~")):
        raise UsageError(
            "there is no such checkpoint",
            file=where,
            expected="a folder, or OWNER/NAME of a repository of the Hugging Face hub",
            found="neither",
            next_command="python build.py checkpoint --help",
        )
    return read_hub(where, revision)
