"""What is running: one small file, so that the other commands know what `start` started."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import platformdirs

from imagebuild.files import write_atomic
from imagebuild.schema import Text
from serve import documents
from serve.endpoint import Endpoint
from serve.errors import EngineError

SCHEMA = 1
NAME = "running.json"


class Running(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The document.

    Attributes:
        schema: the format's number.
        mode: `container` by Docker, `process` from a Python environment.
        profile: the profile's file.
        profile_sha256: its digest when the server was started.
        url: the API's address.
        model: the served model's name.
        revision: the model's.
        drafts: tokens drafted for each step.
        artefact: the image by digest, or the interpreter.
        version: vLLM's version; empty for an image, whose digest says more.
        wheel_sha256: the digest of the wheel in a Python environment, if it is known.
        gpus: the cards by UUID.
        log: the file that the server's output goes to.
        started: when, in UTC.
        pid: the server's process, or the one that follows the container's log.
        ticks: when that process began, in clock ticks since boot: a pid alone comes again.
        compose: the compose file.
        earlier: the images that served before, the last first.
    """

    schema: int = SCHEMA
    mode: Literal["container", "process"]
    profile: Text
    profile_sha256: Text
    url: Text
    model: Text
    revision: str
    drafts: int
    artefact: Text
    version: str = ""
    wheel_sha256: str = ""
    gpus: tuple[str, ...] = ()
    log: Text
    started: dt.datetime
    pid: int
    ticks: int
    compose: str | None = None
    earlier: tuple[str, ...] = ()

    def endpoint(self, api_key: str | None) -> Endpoint:
        """Return the endpoint; the key comes from the caller's environment."""
        return Endpoint(self.url, self.model, api_key or None)


def folder() -> Path:
    """Return the folder of state, logs and reports, which need not exist."""
    return platformdirs.user_state_path("vllm-sm120")


def load() -> Running | None:
    """Return what is running, or None if nothing was started.

    Raises:
        EngineError: if the file is not one of ours.
    """
    path = folder() / NAME
    if not path.exists():
        return None
    return documents.load(path, Running, SCHEMA, lambda found: _unreadable(path, found))


def _unreadable(path: Path, found: str) -> EngineError:
    return EngineError(
        "what is running cannot be told",
        file=path,
        expected=f"a file of schema {SCHEMA} that `python -m serve start` wrote",
        found=found,
        next_command=f"rm {path}, once `docker ps` and `ps` show no server",
    )


def require() -> Running:
    """Return what is running.

    Raises:
        EngineError: if nothing was started.
    """
    found = load()
    if found is None:
        raise EngineError(
            "nothing was started",
            file=folder() / NAME,
            expected="a server that `python -m serve start` started",
            found="no such file",
            next_command="python -m serve start PROFILE",
        )
    return found


def save(running: Running) -> None:
    """Write the file.

    Raises:
        StorageError: if the disk is full.
    """
    folder().mkdir(parents=True, exist_ok=True)
    write_atomic(folder() / NAME, msgspec.json.format(msgspec.json.encode(running)) + b"\n", 0o600)


def clear() -> None:
    """Forget what was running."""
    with suppress(FileNotFoundError):
        (folder() / NAME).unlink()


def ticks(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; 0 if there is none (proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def alive(pid: int, began: int) -> bool:
    """Return whether the very process that began then still runs."""
    return began != 0 and ticks(pid) == began
