"""The model's files on this machine: downloaded at the pinned revision, or made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from imagebuild.checkpoint import headers
from imagebuild.errors import BuildError, SourceError, StorageError, UnpinnedError
from serve.errors import ModelError
from serve.planning import shape
from serve.tiny import checkpoint as tiny

if TYPE_CHECKING:
    from serve.profile import Model, Named

TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")


@dataclass(frozen=True)
class Files:
    """A model's files.

    Attributes:
        folder: where they are.
        revision: the commit on the hub, or the SHA-256 of a generated model's weights.
    """

    folder: Path
    revision: str


def cache() -> Path:
    """Return where generated models are kept."""
    return platformdirs.user_cache_path("vllm-sm120") / "models"


def require_pinned(named: Named) -> None:
    """Refuse a hub's model whose revision nobody has pinned.

    Raises:
        UnpinnedError: if so.
    """
    model = named.profile.model
    if model.source == "hub" and model.revision is None:
        raise UnpinnedError(
            f"{named.name} does not pin the revision of {model.id}",
            file=named.path,
            expected="[model] revision, a commit of the hub's repository",
            found="none",
            next_command=f"python -m serve pin {named.name} --write",
        )


def fetch(named: Named) -> Files:
    """Return the model's files, complete; what is already there is not fetched again.

    Raises:
        UnpinnedError: if the profile pins no revision.
        ModelError: if the revision is gone, or its files are not what the profile says.
        SourceError: if the hub is not reached.
        StorageError: if the disk is full.
    """
    model = named.profile.model
    if model.source == "generated":
        files = _generated(model)
    else:
        require_pinned(named)
        files = Files(_downloaded(model), model.revision or "")
        _whole(named, files)
    _check(named, files)
    return files


def _generated(model: Model) -> Files:
    if model.id != "tiny-qwen3.5":
        raise ModelError(
            f"there is no generated model {model.id}",
            file="the profile's [model] id",
            expected="tiny-qwen3.5",
            found=model.id,
            next_command="python -m serve profiles",
        )
    folder = cache() / model.id
    tiny.write(folder)
    weights = (folder / "model.safetensors").read_bytes()
    return Files(folder, hashlib.sha256(weights).hexdigest())


def _downloaded(model: Model) -> Path:
    # The library is large, and a generated model does without it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"{model.id}@{model.revision}"
    again = "the same command again; files that came whole are not fetched twice"
    try:
        return Path(snapshot_download(model.id, revision=model.revision))
    except GatedRepoError as error:
        raise ModelError(
            "the model's owner gives it only to people who have asked for it",
            file=name,
            expected="HF_TOKEN of an account that has access",
            found="no access",
            next_command="ask for access on the model's page, then export HF_TOKEN=…",
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelError(
            "the hub does not have the pinned revision any more",
            file=name,
            expected="the commit that the profile pins",
            found=type(error).__name__,
            next_command="python -m serve pin PROFILE shows what is there now",
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, ConnectionError) as error:
        raise SourceError(
            "the hub did not give the model",
            file=name,
            expected="its files",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            next_command=again,
        ) from error
    except OSError as error:
        raise StorageError(
            "the model could not be stored",
            file=error.filename or name,
            expected="room for the model",
            found=error.strerror or str(error).splitlines()[0],
            next_command=f"df -h, then {again}",
        ) from error


def _whole(named: Named, files: Files) -> None:
    """Refuse a snapshot that lacks weights: without a network, the hub's client gives what it has.

    Raises:
        SourceError: if so.
    """
    try:
        tensors = headers.read_folder(files.folder)
        why = "" if tensors else "no weights"
    except BuildError as error:
        why = f"{error.summary}: {error.found}"
    if why:
        raise SourceError(
            "the model is not here as a whole, and the hub is not reached",
            file=files.folder,
            expected="all files of the pinned revision",
            found=why,
            next_command=f"python -m serve start {named.name}, with a network",
        )


def template_digest(folder: Path) -> str:
    """Return the SHA-256 of the chat template that a model's folder ships; empty without one."""
    path = folder / TEMPLATES[0]
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    config = folder / TEMPLATES[1]
    if not config.is_file():
        return ""
    template = json.loads(config.read_bytes()).get("chat_template")
    return hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else ""


def _check(named: Named, files: Files) -> None:
    profile = named.profile
    config = files.folder / "config.json"
    try:
        found = shape.of_config(json.loads(config.read_bytes()), config)
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(
            "the model has no readable config",
            file=config,
            expected="a JSON object",
            found=str(error),
            next_command=f"python -m serve start {named.name}, which downloads what is missing",
        ) from error
    if found != profile.shape:
        apart = [
            f"{key} {getattr(found, key)}"
            for key in found.__struct_fields__
            if getattr(found, key) != getattr(profile.shape, key)
        ]
        raise ModelError(
            "the model has another geometry than the profile says",
            file=config,
            expected=f"[shape] of {named.path}",
            found=", ".join(apart),
            next_command=f"python -m serve pin {named.name} --write",
        )
    pinned = profile.model.chat_template
    if pinned is not None and (digest := template_digest(files.folder)) != pinned:
        raise ModelError(
            "the model ships another chat template than the profile pins",
            file=files.folder,
            expected=f"sha256:{pinned}",
            found=f"sha256:{digest}" if digest else "none",
            next_command=f"python -m serve pin {named.name} shows both",
        )
