"""`serve verify`: gates on a running server, and a report; `reports`: those that were made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from serve.cli.commands import api_key, emit, say

if TYPE_CHECKING:
    import argparse

    from serve.cli.commands import Commands
    from serve.endpoint import Endpoint
    from serve.gates.client import Client
    from serve.gates.report import Inputs, Report
    from serve.launching.state import Running
    from serve.profile import Named

_PATIENCE_S = 600.0


def add(commands: Commands) -> None:
    """Define the commands."""
    parser = commands.add(
        "verify",
        "ask a running server what it must know, and write a report",
        "A gate that could not run is `not run`, never `passed`. Without a server that `start`\n"
        "started, name one: --url URL --profile PROFILE.",
        run,
    )
    parser.add_argument("--full", action="store_true", help="every gate, at every size")
    parser.add_argument("--gate", action="append", metavar="NAME", help="only this gate; again")
    parser.add_argument(
        "--url", help="a server that was not started here, such as http://host:8000"
    )
    parser.add_argument("--profile", help="what that server serves")
    parser.add_argument("--drafts", type=int, help="tokens that it drafts, if not the profile's")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="for the gate fidelity")
    parser.add_argument(
        "--make-reference", type=Path, metavar="FILE", help="write one, on a BF16 server, and end"
    )
    parser.add_argument(
        "--against", type=Path, metavar="REPORT", help="a report with another number of drafts"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where the report goes")
    commands.add(
        "reports",
        "list the reports, and say which have expired",
        "A report holds for its image, model revision, profile, card and driver.",
        listed,
    )


def _folder() -> Path:
    from serve.launching import state  # noqa: PLC0415

    return state.folder() / "reports"


def _server(arguments: argparse.Namespace) -> tuple[Named, Endpoint, Running | None]:
    from imagebuild.errors import UsageError  # noqa: PLC0415
    from serve import profile  # noqa: PLC0415
    from serve.endpoint import Endpoint as Where  # noqa: PLC0415
    from serve.errors import ProfileError  # noqa: PLC0415
    from serve.launching import state  # noqa: PLC0415

    if arguments.url is None:
        running = state.require()
        named = profile.load(running.profile)
        if named.sha256 != running.profile_sha256:
            raise ProfileError(
                "the profile was changed after the server was started",
                file=named.path,
                expected=f"sha256:{running.profile_sha256}",
                found=f"sha256:{named.sha256}",
                next_command=f"python -m serve stop, then start {named.path}",
            )
        return named, running.endpoint(api_key()), running
    if arguments.profile is None:
        raise UsageError(
            "what that server serves is not said",
            file="--url",
            expected="--profile PROFILE beside it",
            found="--url alone",
            next_command="python -m serve profiles",
        )
    named = profile.load(arguments.profile)
    url = arguments.url.rstrip("/").removesuffix("/v1")
    return named, Where(url, named.profile.model.served_name, api_key()), None


def inputs_of(named: Named, running: Running | None, drafts: int, vllm: str) -> Inputs:
    """Return what a report of this server holds for."""
    from serve.gates.report import Inputs as Made  # noqa: PLC0415
    from serve.preflight.gather import gpus  # noqa: PLC0415

    model = named.profile.model
    driver, cards, _ = gpus() if named.profile.hardware.device == "cuda" else (None, (), "")
    wanted = running.gpus if running is not None else ()
    used = [card for card in cards if card.uuid in wanted] or list(cards[:1])
    artefact = "a server that was not started here" if running is None else running.artefact
    digest = artefact.partition("@sha256:")[2]
    if running is not None and running.version:
        artefact, digest = f"vLLM {running.version}", running.wheel_sha256
    return Made(
        artefact=artefact,
        artefact_sha256=digest,
        profile=named.name,
        profile_sha256=named.sha256,
        model=model.id,
        revision=running.revision if running is not None else model.revision or "",
        drafts=drafts,
        device=", ".join(card.name for card in used) or _unseen(named),
        driver="" if driver is None else driver.version,
        vllm=vllm,
    )


def _unseen(named: Named) -> str:
    """Return what to call a device that no tool here tells of."""
    return "CPU" if named.profile.hardware.device == "cpu" else "a card that is not seen here"


def run(arguments: argparse.Namespace) -> int:
    """Run the gates.

    Raises:
        GateError: if one failed.
        EngineError: if there is no server.
    """
    from serve.errors import GateError  # noqa: PLC0415
    from serve.gates import gates, reference, report  # noqa: PLC0415
    from serve.gates.client import AnswerError  # noqa: PLC0415
    from serve.gates.client import Client as Asking  # noqa: PLC0415
    from serve.gates.run import Run  # noqa: PLC0415
    from serve.planning import asking  # noqa: PLC0415

    only = _only(arguments.gate)
    named, endpoint, running = _server(arguments)
    drafts = arguments.drafts
    if drafts is None:
        drafts = running.drafts if running is not None else named.profile.engine.mtp
    client = Asking(endpoint, patience=_PATIENCE_S)
    if arguments.make_reference is not None:
        return _make_reference(arguments, named, client)
    plan = asking.make(asking.of_profile(named, drafts=drafts), asking.card_of(named.profile))
    verification = Run(
        client=client,
        profile=named.profile,
        full=arguments.full,
        drafts=drafts,
        pool_tokens=None if plan.pool is None else plan.pool.tokens,
        reference=None if arguments.reference is None else reference.load(arguments.reference),
        other=None if arguments.against is None else report.load(arguments.against).texts(),
    )
    results = []
    for timed in gates.run_all(verification, only):
        results.append(timed)
        told = timed.result.evidence[0] if timed.result.status == "not run" else ""
        say(f"{timed.result.status:<8} {timed.gate:<23} {told or timed.result.measured}")
    try:
        version = client.version()
    except AnswerError:
        version = "unknown"
    made = report.of_results(
        inputs_of(named, running, drafts, version),
        results,
        verification.answers,
        full=arguments.full,
    )
    path = report.write(made, arguments.output or _folder())
    failed = made.of_status("failed")
    if failed:
        first = next(each for each in made.results if each.gate == failed[0])
        raise GateError(
            f"{made.summary()}: {', '.join(failed)}",
            file=path.with_suffix(".md"),
            expected=f"{first.gate}: {first.bound}",
            found=first.measured,
            next_command=f"python -m serve verify --gate {first.gate}",
        )
    facts = {"summary": made.summary(), "report": str(path), "not run": made.of_status("not run")}
    emit(arguments, f"{made.summary()}\nreport    {path.with_suffix('.md')}", facts)
    return 0


def _only(names: list[str] | None) -> frozenset[str]:
    from imagebuild.errors import UsageError  # noqa: PLC0415
    from serve.gates.gates import GATES  # noqa: PLC0415

    known = [gate.name for gate in GATES]
    for name in names or ():
        if name not in known:
            raise UsageError(
                f"there is no gate {name}",
                file="--gate",
                expected=", ".join(known),
                found=name,
                next_command="python -m serve verify --full",
            )
    return frozenset(names or ())


def _make_reference(arguments: argparse.Namespace, named: Named, client: Client) -> int:
    from serve.errors import GateError  # noqa: PLC0415
    from serve.gates import reference  # noqa: PLC0415
    from serve.gates.client import AnswerError  # noqa: PLC0415

    engine, model = named.profile.engine, named.profile.model
    if engine.kv_dtype != "bfloat16":
        raise GateError(
            "a reference is made by a server with a BF16 KV cache and BF16 weights",
            file=named.path,
            expected='kv-dtype = "bfloat16"',
            found=f'kv-dtype = "{engine.kv_dtype}"',
            next_command="python -m serve start FILE.toml, a profile of the BF16 checkpoint",
        )
    types = f"KV {engine.kv_dtype}, state {engine.state_dtype}"
    try:
        made = reference.make(client, model.id, model.revision or "generated", types)
    except AnswerError as error:
        raise GateError(
            "the server gives no reference",
            file=client.endpoint.url,
            expected="prompt log-probabilities of the fixed text",
            found=str(error),
            next_command="python -m serve logs",
        ) from error
    reference.write(made, arguments.make_reference)
    facts = {"reference": str(arguments.make_reference), "tokens": len(made.tokens)}
    emit(arguments, f"wrote     {arguments.make_reference} ({len(made.tokens)} tokens)", facts)
    return 0


def listed(arguments: argparse.Namespace) -> int:
    """List the reports.

    Raises:
        GateError: if one cannot be read.
    """
    import datetime as dt  # noqa: PLC0415

    from serve.gates import report  # noqa: PLC0415

    folder = _folder()
    found = [
        report.load(path)
        for path in sorted(folder.glob("*.json"))
        if not path.name.endswith(".intoto.json")
    ]
    lines, facts = [], []
    for each in found:
        days = (dt.datetime.now(dt.UTC) - each.made).days
        apart = _expired(each)
        state = "holds" if not apart else f"expired: {', '.join(apart)} changed"
        lines.append(f"{each.made:%Y-%m-%d %H:%M}  {days:>3} days  {each.inputs.profile}  "
                     f"{each.summary()}  {state}")  # fmt: skip
        facts.append({"made": each.made.isoformat(), "summary": each.summary(), "changed": apart})
    emit(arguments, "\n".join(lines) or f"no report in {folder}{os.sep}", facts)
    return 0


def _expired(each: Report) -> list[str]:
    from serve import profile  # noqa: PLC0415
    from serve.gates import report  # noqa: PLC0415
    from serve.launching import state  # noqa: PLC0415

    running = state.load()
    if running is not None and Path(running.profile).stem == each.inputs.profile:
        named = profile.load(running.profile)
        now = inputs_of(named, running, running.drafts, each.inputs.vllm)
        return report.changed(each, now)
    if each.inputs.profile in profile.names():
        named = profile.load(each.inputs.profile)
        return ["profile sha256"] if named.sha256 != each.inputs.profile_sha256 else []
    return ["profile"]
