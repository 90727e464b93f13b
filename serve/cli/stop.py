"""`serve status`, `logs`, `stop`: what runs, what it says, and its end."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from serve.cli.commands import api_key, confirm, emit, say

if TYPE_CHECKING:
    import argparse

    from serve.cli.commands import Commands
    from serve.launching.state import Running

_LINES = 100
_PATIENCE_S = 5.0


def add(commands: Commands) -> None:
    """Define the commands."""
    commands.add("status", "say what runs, and how it is", "It asks the server itself.", status)
    logs = commands.add("logs", "print the end of the server's log", "Ctrl-C ends it.", show)
    logs.add_argument("--follow", "-f", action="store_true", help="go on as the log grows")
    logs.add_argument(
        "--lines", "-n", type=int, default=_LINES, help="how many lines (%(default)s)"
    )
    parser = commands.add(
        "stop", "stop the server", "The model and the compiled kernels stay.", stop
    )
    parser.add_argument(
        "--purge-cache", action="store_true", help="also remove the compiled kernels"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def status(arguments: argparse.Namespace) -> int:
    """Print what runs.

    Raises:
        EngineError: if nothing was started, or it has ended.
    """
    from serve.errors import EngineError  # noqa: PLC0415  # `--help` answers without it
    from serve.gates import metrics  # noqa: PLC0415
    from serve.gates.client import AnswerError, Client  # noqa: PLC0415
    from serve.launching import causes, starting, state, watching  # noqa: PLC0415

    running = state.require()
    log = watching.tail(Path(running.log))
    if not starting.alive(running):
        cause = causes.explain(log)
        raise EngineError(
            "the server has ended" + (f": {cause.what}" if cause is not None else ""),
            file=running.log,
            expected=f"an answer of {running.url}/health",
            found="no such process any more",
            next_command="python -m serve stop, then start it again",
            detail=causes.last_errors(log),
        )
    client = Client(running.endpoint(api_key()), patience=_PATIENCE_S)
    try:
        client.health()
        text = client.metrics()
        health = "healthy"
        counted = {
            "requests running": metrics.total(text, "vllm:num_requests_running"),
            "requests waiting": metrics.total(text, "vllm:num_requests_waiting"),
            "KV cache used": metrics.total(text, "vllm:kv_cache_usage_perc"),
        }
    except AnswerError as error:
        health, counted = f"not healthy ({error}); {watching.stage(log)}", {}
    facts: dict[str, object] = {
        "health": health,
        "url": f"{running.url}/v1",
        "model": running.model,
        "profile": running.profile,
        "served by": running.artefact,
        "drafted tokens": running.drafts,
        "since": running.started.isoformat(),
        "log": running.log,
        **{name: value for name, value in counted.items() if value is not None},
    }
    width = max(len(name) for name in facts)
    lines = [f"{name:<{width}}  {value}" for name, value in facts.items()]
    emit(arguments, "\n".join(lines), facts)
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print the log.

    Raises:
        EngineError: if nothing was started.
    """
    from serve.launching import state, watching  # noqa: PLC0415

    log = Path(state.require().log)
    lines = watching.tail(log).splitlines()[-arguments.lines :]
    emit(arguments, "\n".join(lines), {"log": str(log), "lines": lines})
    if arguments.follow:
        with log.open("rb") as file:
            file.seek(0, 2)
            while True:
                sys.stdout.write(file.read().decode("utf-8", "replace"))
                sys.stdout.flush()
                time.sleep(0.5)
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """Stop the server.

    Raises:
        EngineError: if nothing was started.
        ContainerError: if Docker does not stop it.
    """
    from serve.launching import starting, state  # noqa: PLC0415

    running = state.require()
    starting.end(running)
    said = [f"stopped   {running.url}"]
    if arguments.purge_cache:
        said.append(_purge(arguments, running))
    emit(arguments, "\n".join(said), {"stopped": running.url, "log": running.log})
    return 0


def _purge(arguments: argparse.Namespace, running: Running) -> str:
    from serve.artefact import image  # noqa: PLC0415
    from serve.composing.compose import cache_volume  # noqa: PLC0415
    from serve.launching import docker  # noqa: PLC0415

    if running.compose is None:
        say("a server from a Python environment keeps its kernels in vLLM's own cache")
        return "kept      ~/.cache/vllm and ~/.cache/flashinfer"
    volume = cache_volume(image(running.artefact))
    size = docker.volume_size(volume)
    if size is None:
        return f"no cache  {volume}"
    if not confirm(f"remove {volume} ({size} of compiled kernels)?", yes=arguments.yes):
        return f"kept      {volume} ({size}); --yes removes it without asking"
    docker.remove_volume(volume)
    return f"removed   {volume} ({size})"
