"""`serve start`: from nothing to an endpoint that has answered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from serve.cli.commands import api_key, emit, say

if TYPE_CHECKING:
    import argparse

    from serve.artefact import Environment, Image
    from serve.cli.commands import Commands
    from serve.launching.starting import Start
    from serve.models import Files
    from serve.preflight.findings import Finding
    from serve.profile import Named

DEFAULT = "qwen3.8-27b-nvfp4"
LIMIT_S = 1800
_DOWNLOAD_SLACK = 1.05
_IMAGE_BYTES = 22 << 30
"""An image of vLLM 0.33 for CUDA 13, unpacked, and its layers while they come."""


def add(commands: Commands) -> None:
    """Define the command."""
    parser = commands.add(
        "start",
        "check this machine, fetch image and model, start the server, ask it something",
        "What is here already is not fetched again. The API\n"
        "listens on 127.0.0.1 unless the profile says otherwise and VLLM_API_KEY holds a key.",
        run,
    )
    parser.add_argument("profile", nargs="?", default=DEFAULT, help="a profile (%(default)s)")
    parser.add_argument("--no-mtp", action="store_true", help="without drafted tokens")
    parser.add_argument("--gpu", metavar="INDEX|UUID", help="the card; several parted by commas")
    parser.add_argument("--image", metavar="REF@DIGEST", help="an image other than the published")
    parser.add_argument(
        "--wheel",
        metavar="PYTHON",
        type=Path,
        help="serve without Docker, from the environment of this interpreter",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be done")
    parser.add_argument(
        "--timeout",
        type=float,
        default=LIMIT_S,
        metavar="SECONDS",
        help="how long the server may take to become healthy (%(default)s)",
    )


def artefact_of(arguments: argparse.Namespace, named: Named) -> Image | Environment:
    """Return what the command line says shall serve.

    Raises:
        UsageError: if it names two things, or none that can serve.
        UnpinnedError: if it names none, and none is published.
    """
    from imagebuild.errors import UsageError  # noqa: PLC0415  # `--help` answers without it
    from serve import artefact  # noqa: PLC0415

    if arguments.wheel is not None and arguments.image is not None:
        raise UsageError(
            "an image and an environment cannot both serve",
            file="--image, --wheel",
            expected="one of them",
            found="both",
            next_command="python -m serve start --help",
        )
    if arguments.wheel is not None:
        return artefact.environment(arguments.wheel)
    if arguments.image is not None:
        return artefact.image(arguments.image)
    return artefact.published(named)


def _look(
    arguments: argparse.Namespace, named: Named, artefact: Image | Environment
) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Return the chosen cards by UUID and all findings."""
    from serve.artefact import Image  # noqa: PLC0415
    from serve.launching import docker  # noqa: PLC0415
    from serve.planning import asking  # noqa: PLC0415
    from serve.preflight.findings import Need, choose, findings  # noqa: PLC0415
    from serve.preflight.gather import gather  # noqa: PLC0415

    profile = named.profile
    containers = isinstance(artefact, Image)
    facts = gather(profile, containers=containers)
    cards = choose(facts, profile, arguments.gpu)
    plan = asking.make(asking.of_profile(named), asking.card_of(profile))
    hub = profile.model.source == "hub"
    need = Need(
        vram=plan.need,
        image=_IMAGE_BYTES
        if isinstance(artefact, Image) and facts.docker is not None and not docker.here(artefact)
        else 0,
        model=int(plan.weights * _DOWNLOAD_SLACK) * profile.engine.tensor_parallel if hub else 0,
    )
    found = findings(facts, profile, cards, need, containers=containers)
    return tuple(card.uuid for card in cards), found


def run(arguments: argparse.Namespace) -> int:
    """Start a profile.

    Raises:
        BuildError: one of many, each with its exit code.
    """
    from imagebuild.errors import BusyError  # noqa: PLC0415
    from serve import arguments as given  # noqa: PLC0415
    from serve import models, profile  # noqa: PLC0415
    from serve.artefact import Image  # noqa: PLC0415
    from serve.launching import docker, starting, state  # noqa: PLC0415
    from serve.preflight import findings as preflight  # noqa: PLC0415

    named = profile.load(arguments.profile)
    given.check(named, key=api_key() is not None)
    running = state.load()
    if running is not None and starting.alive(running) and not arguments.dry_run:
        raise BusyError(
            "a server that was started before still runs",
            file=running.profile,
            expected="none",
            found=running.url,
            next_command="python -m serve stop",
        )
    artefact = artefact_of(arguments, named)
    gpus, found = _look(arguments, named, artefact)
    start = starting.Start(named, artefact, gpus, mtp=not arguments.no_mtp)
    if arguments.dry_run:
        return _dry_run(arguments, start, found)
    models.require_pinned(named)
    for each in found:
        if each.level != "error":
            say(preflight.text((each,)))
    preflight.refuse(found)
    if isinstance(artefact, Image):
        say(f"image     {artefact.ref}")
        docker.pull(artefact)
    say(f"model     {named.profile.model.id}")
    files = models.fetch(named)
    return launch(arguments, start, files)


def launch(arguments: argparse.Namespace, start: Start, files: Files) -> int:
    """Start, wait, ask, and print the endpoint; whatever goes wrong, nothing is left running.

    Raises:
        EngineError: if the server does not come up.
    """
    from serve.launching import starting  # noqa: PLC0415

    running = starting.begin(start, files)
    try:
        endpoint = running.endpoint(api_key())
        answer = starting.await_answer(
            running, endpoint, arguments.timeout, lambda stage: say(f"server    {stage}")
        )
    except BaseException:
        starting.end(running)
        raise
    name = start.named.name
    text = (
        f"ready     {endpoint.url}/v1  model {endpoint.model}\n"
        f"asked     capital of France: {answer.text.strip()}\n"
        f"log       {running.log}\n"
        f"next      python -m serve verify    (profile {name})"
    )
    facts = {
        "url": f"{endpoint.url}/v1",
        "model": endpoint.model,
        "answer": answer.text,
        "artefact": running.artefact,
        "log": running.log,
        "drafts": running.drafts,
    }
    emit(arguments, text, facts)
    return 0


def _dry_run(arguments: argparse.Namespace, start: Start, found: tuple[Finding, ...]) -> int:
    import shlex  # noqa: PLC0415

    from serve import models  # noqa: PLC0415
    from serve.artefact import Image  # noqa: PLC0415
    from serve.launching import starting  # noqa: PLC0415
    from serve.preflight import findings as preflight  # noqa: PLC0415

    model = start.named.profile.model
    facts: dict[str, object] = {"findings": [vars(each) for each in found]}
    if isinstance(start.artefact, Image):
        compose = starting.compose_text(start, start.artefact, None)
        steps = [f"docker pull {start.artefact.ref}"]
        facts["compose"] = compose
        last = f"docker compose up, with\n\n{compose}"
    else:
        where = model.id if model.source == "hub" else str(models.cache() / model.id)
        line = starting.command(start, start.artefact, where)
        steps = []
        facts["command"] = line
        last = shlex.join(line)
    if model.source == "hub":
        steps.append(f"download {model.id} at {model.revision or 'no pinned revision'}")
    else:
        steps.append(f"write {models.cache() / model.id}")
    steps.append(last)
    facts["steps"] = steps[:-1]
    text = preflight.text(found) or "preflight: nothing stands in the way"
    emit(arguments, "\n".join([text, "", *steps]), facts)
    return 0
