"""Waiting for a server: what it is doing, by its log, until it is healthy, dead or late."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve.errors import EngineError
from serve.gates.client import AnswerError, Client
from serve.launching import causes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from serve.endpoint import Endpoint

_TAIL = 1 << 20
_PATIENCE_S = 5.0
# Texts of vLLM 0.33.0's log, the latest stage first.
STAGES = (
    (re.compile(r"Application startup complete"), "started"),
    (re.compile(r"Graph capturing finished"), "CUDA graphs captured"),
    (re.compile(r"Capturing CUDA graphs[^\n\r]*?(\d+%)"), "capturing CUDA graphs {}"),
    (re.compile(r"Capturing CUDA graph"), "capturing CUDA graphs"),
    (re.compile(r"KV cache size: ([\d,]+ tokens)"), "KV cache of {}"),
    (re.compile(r"[Aa]utotuning"), "tuning kernels"),
    (re.compile(r"Building extension|ninja|JIT[ -]compil|flashinfer\.jit"), "compiling kernels"),
    (re.compile(r"Dynamo bytecode transform|torch\.compile takes"), "compiling the model"),
    (re.compile(r"Model loading took ([\d.]+ GiB)"), "weights loaded, {}"),
    (re.compile(r"Loading safetensors[^\n\r]*?(\d+% Completed)"), "loading weights, {}"),
    (re.compile(r"Loading safetensors|Starting to load model"), "loading weights"),
    (re.compile(r"Initializing a V1 LLM engine|EngineCore"), "starting the engine"),
)


@dataclass(frozen=True)
class Watched:
    """A server that was started.

    Attributes:
        endpoint: where it will answer.
        log: the file that its output goes to.
        alive: whether it still runs.
        drained: returns once the log holds all that a server that has ended had to say.
    """

    endpoint: Endpoint
    log: Path
    alive: Callable[[], bool]
    drained: Callable[[], None] = lambda: None


def tail(log: Path, size: int = _TAIL) -> str:
    """Return the end of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(end - size, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def stage(log: str) -> str:
    """Return what a server is doing, by its log."""
    for pattern, words in STAGES:
        found = pattern.findall(log)
        if found:
            return words.format(found[-1])
    return "starting"


def wait(watched: Watched, limit_s: float, told: Callable[[str], None]) -> None:
    """Return once the server is healthy.

    Args:
        watched: the server.
        limit_s: after so many seconds it is late.
        told: is told what the server does whenever that changes.

    Raises:
        EngineError: if it ends, or is late; with its last error lines, and the cause if known.
    """
    client = Client(watched.endpoint, patience=_PATIENCE_S)
    end = time.monotonic() + limit_s
    last = ""
    while True:
        now = stage(tail(watched.log))
        if now != last:
            told(now)
            last = now
        try:
            client.health()
        except AnswerError:
            pass
        else:
            return
        if not watched.alive():
            watched.drained()
            raise _ended(watched)
        if time.monotonic() >= end:
            raise _late(watched, limit_s, last)
        time.sleep(0.5)


def _ended(watched: Watched) -> EngineError:
    log = tail(watched.log)
    cause = causes.explain(log)
    return EngineError(
        f"the server ended while it was {stage(log)}"
        + (f": {cause.what}" if cause is not None else ""),
        file=watched.log,
        expected=f"an answer of {watched.endpoint.url}/health",
        found="its last error lines, below",
        next_command=cause.do if cause is not None else f"less {watched.log}",
        detail=causes.last_errors(log),
    )


def _late(watched: Watched, limit_s: float, doing: str) -> EngineError:
    return EngineError(
        f"the server is not healthy after {limit_s:.0f} s",
        file=watched.log,
        expected=f"an answer of {watched.endpoint.url}/health",
        found=f"still {doing}",
        next_command="python -m serve start PROFILE --timeout SECONDS, with more of them",
        detail=causes.last_errors(tail(watched.log)),
    )
