"""From a profile to a server that answers."""

from __future__ import annotations

import datetime as dt
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.files import write_atomic
from serve import arguments, models
from serve.artefact import Environment, Image
from serve.composing import compose
from serve.composing.compose import Mounts
from serve.errors import EngineError
from serve.gates import basics
from serve.gates.client import Answer, AnswerError, Client
from serve.launching import causes, docker, process, state, watching

if TYPE_CHECKING:
    from collections.abc import Callable

    from serve.endpoint import Endpoint
    from serve.launching.state import Running
    from serve.models import Files
    from serve.profile import Named

LOG = "server.log"
COMPOSE = "compose.yaml"
_DRAIN_S = 5.0


@dataclass(frozen=True)
class Start:
    """What shall be started.

    Attributes:
        named: the profile.
        artefact: what serves it.
        gpus: the cards by UUID.
        mtp: whether the profile's drafting is on.
        earlier: the images that served before, the last first.
    """

    named: Named
    artefact: Image | Environment
    gpus: tuple[str, ...]
    mtp: bool = True
    earlier: tuple[str, ...] = ()

    @property
    def drafts(self) -> int:
        """Tokens drafted for each step."""
        return self.named.profile.engine.mtp if self.mtp else 0

    def url(self) -> str:
        """Return the API's address on this machine."""
        service = self.named.profile.service
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(service.host, service.host)  # noqa: S104
        return f"http://{host}:{service.port}"


def hub() -> Path:
    """Return the Hugging Face cache of this user."""
    return Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))


def mounts(named: Named, files: Files | None) -> Mounts:
    """Return what the container sees of this machine."""
    if named.profile.model.source == "hub":
        return Mounts(hub=hub())
    folder = files.folder if files is not None else models.cache() / named.profile.model.id
    return Mounts(model=folder)


def compose_text(start: Start, image: Image, files: Files | None) -> str:
    """Return the compose file that would start it."""
    where = mounts(start.named, files)
    return compose.render(
        compose.document(start.named, image, where, gpus=start.gpus, mtp=start.mtp)
    )


def command(start: Start, found: Environment, model: str) -> list[str]:
    """Return the command that serves from a Python environment."""
    service = start.named.profile.service
    given = arguments.arguments(
        start.named.profile, model, host=service.host, port=service.port, mtp=start.mtp
    )
    return [str(found.python), "-m", "vllm.entrypoints.cli.main", "serve", *given]


def environ(start: Start) -> dict[str, str]:
    """Return the environment of a server that is a process of this machine."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        **({"CUDA_VISIBLE_DEVICES": ",".join(start.gpus)} if start.gpus else {}),
        **start.named.profile.environment,
    }


def begin(start: Start, files: Files) -> Running:
    """Start the server, and say so in the state's file.

    Raises:
        ContainerError: if Docker does not start it.
        EngineError: if the process cannot be started.
        StorageError: if the disk is full.
    """
    folder = state.folder()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    if not isinstance(start.artefact, Image):
        line = command(start, start.artefact, str(files.folder))
        pid, ticks = process.start(line, environ(start), log)
        return _saved(start, files, log, pid, ticks, None)
    file = folder / COMPOSE
    write_atomic(file, compose_text(start, start.artefact, files).encode(), 0o600)
    docker.check(file)
    try:
        docker.up(file)
        follow = docker.compose(file, "logs", "--follow", "--no-color", "--no-log-prefix")
        pid, ticks = process.start(follow, os.environ, log)
    except BaseException:
        docker.down(file)  # an interrupt comes at any time
        raise
    return _saved(start, files, log, pid, ticks, file)


def _saved(
    start: Start, files: Files, log: Path, pid: int, ticks: int, file: Path | None
) -> Running:
    """Write down what runs now; if that fails, it does not run any more."""
    running = state.Running(
        mode="process" if file is None else "container",
        profile=str(start.named.path),
        profile_sha256=start.named.sha256,
        url=start.url(),
        model=start.named.profile.model.served_name,
        revision=files.revision,
        drafts=start.drafts,
        artefact=start.artefact.ref
        if isinstance(start.artefact, Image)
        else str(start.artefact.python),
        version="" if isinstance(start.artefact, Image) else start.artefact.version,
        wheel_sha256="" if isinstance(start.artefact, Image) else start.artefact.sha256,
        gpus=start.gpus,
        log=str(log),
        started=dt.datetime.now(dt.UTC).replace(microsecond=0),
        pid=pid,
        ticks=ticks,
        compose=None if file is None else str(file),
        earlier=start.earlier,
    )
    try:
        state.save(running)
    except BaseException:
        end(running)
        raise
    return running


def alive(running: Running) -> bool:
    """Return whether the server still runs.

    Raises:
        ContainerError: if Docker does not tell.
    """
    if running.compose is not None:
        return docker.running(Path(running.compose))
    return state.alive(running.pid, running.ticks)


def end(running: Running) -> None:
    """Stop the server and forget it.

    Raises:
        ContainerError: if Docker does not stop it.
    """
    if running.compose is not None:
        docker.down(Path(running.compose))
    process.stop(running.pid, running.ticks)
    state.clear()


def _drain(running: Running) -> None:
    """Wait until the follower of an ended container's log has written all of it."""
    end = time.monotonic() + _DRAIN_S
    while running.compose and state.alive(running.pid, running.ticks) and time.monotonic() < end:
        time.sleep(0.05)


def await_answer(
    running: Running, endpoint: Endpoint, limit_s: float, told: Callable[[str], None]
) -> Answer:
    """Wait until the server is healthy, ask it one question, and return its answer.

    Raises:
        EngineError: if it ends, is late, or does not answer.
    """
    log = Path(running.log)
    watched = watching.Watched(endpoint, log, lambda: alive(running), lambda: _drain(running))
    watching.wait(watched, limit_s, told)
    told("asking it something")
    try:
        answer = Client(endpoint, patience=limit_s).chat(basics.CAPITAL, 64)
    except AnswerError as error:
        raise EngineError(
            "the server is healthy, but does not answer",
            file=log,
            expected="a chat completion",
            found=str(error),
            next_command=f"less {log}",
            detail=causes.last_errors(watching.tail(log)),
        ) from error
    return answer
