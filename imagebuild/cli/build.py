"""`build.py build`: make the artifacts of a line, and say what became of each."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from imagebuild import builder, release, upstream
from imagebuild.builder import Request, Row, Target
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit, size
from imagebuild.errors import UsageError
from imagebuild.fetch.sources import Sources
from imagebuild.following import pullrequest
from imagebuild.images import shipment

if TYPE_CHECKING:
    import argparse

    from imagebuild.builder import Build
    from imagebuild.images.publish import Pushed
    from imagebuild.project import Project
    from imagebuild.release import Output
    from imagebuild.upstream import Platform

_INDENT = " " * 23


def _digest(output: Output) -> str:
    match output:
        case release.ImageOutput():
            return output.manifest
        case release.IndexOutput():
            return output.index
        case release.AttestationOutput():
            return f"on {output.subject}"
        case release.TreeOutput():
            return f"{len(output.files)} files differ from upstream's"
        case _:
            return f"sha256:{output.sha256}"


def _where(output: Output) -> str:
    match output:
        case release.ImageOutput() | release.IndexOutput():
            return f"{output.folder}/  {output.content}"
        case release.TreeOutput():
            return f"{output.folder}/"
        case release.AttestationOutput():
            return f"{output.provenance.name}, {output.spdx.name}, {output.cyclonedx.name}"
        case _:
            return f"{output.file}  {size(output.size)}"


def _row(row: Row) -> list[str]:
    if row.left_out is not None:
        reason = f"{row.target:<12} left out   {row.left_out.summary}"
        following = row.left_out.next_command
        return [reason, *([f"{_INDENT}next: {following}"] if following else [])]
    if row.output is None:
        return []
    took = "unchanged" if row.unchanged else f"{row.seconds:.1f} s"
    return [
        f"{row.target:<12} {took:<10} {_digest(row.output)}",
        f"{_INDENT}{_where(row.output)}",
    ]


def _facts(row: Row) -> dict[str, Any]:
    return {
        "target": row.target,
        "platform": row.platform,
        "seconds": round(row.seconds, 3),
        "unchanged": row.unchanged,
        "output": None if row.output is None else msgspec.to_builtins(row.output),
        "left-out": None if row.left_out is None else row.left_out.facts(),
    }


def _platforms(named: list[Platform] | None) -> tuple[Platform, ...]:
    """Return the platforms in the lock's order; the first for none."""
    return tuple(p for p in upstream.PLATFORMS if p in (named or upstream.PLATFORMS[:1]))


def _targets(arguments: argparse.Namespace) -> tuple[Target, ...]:
    """Return the targets by name; what is pushed or exported must be made."""
    named: list[Target] = list(arguments.target or ())
    if "official" in (arguments.target or ()):
        if set(named) == {"official"}:
            return ()
        raise UsageError(
            "the official image is built alone",
            file="--target",
            expected="--target official, and no other",
            found=", ".join(arguments.target),
            next_command="python build.py --target official --dry-run",
        )
    if arguments.push is not None or (named and arguments.export is not None):
        named.append("image")
    return tuple(dict.fromkeys(named))


def _pushed(pushed: Pushed) -> str:
    traffic = pushed.traffic
    sent = f"{size(traffic.uploaded)} sent in {traffic.blobs} blobs"
    rest = f"{traffic.mounted} mounted, {traffic.present} there already"
    attached = f"{_INDENT}{len(pushed.attached)} documents attached"
    attached += ", signed" if pushed.signed else ""
    return f"pushed       {pushed.reference}\n{_INDENT}{sent}, {rest}\n{attached}"


def _propose(build: Build, pushed: Pushed, to: pullrequest.Target) -> str:
    """Open a pull request with the changed `release.lock`, or update it; say what was done."""
    version = build.line.local_version
    change = pullrequest.Change(
        name=version.replace("+", "-"),
        paths=(build.project.release_lock.name,),
        title=f"Published {version}",
        body=f"`{pushed.reference}` was pushed. `python build.py reproduce` makes it again.\n",
        kind="release",
    )
    return pullrequest.publish(build.project, to, change)


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Build, and print a table of what came out."""
    name, line = upstream.load(project.upstream_lock).line(arguments.line)
    progress = reporter()
    request = Request(
        line=name,
        targets=_targets(arguments),
        platforms=_platforms(arguments.platform),
        source=arguments.source,
        dist=(arguments.dist or project.dist).absolute(),
        base=arguments.base,
        export=arguments.export,
        builder_id=arguments.builder_id,
        wait=not arguments.no_wait,
    )
    sources = Sources.for_run(progress, offline=arguments.offline)
    build = builder.open_build(project, request, line, sources, progress)
    if arguments.target and "official" in arguments.target:
        from imagebuild.cli import official  # noqa: PLC0415  (kept out of start-up)

        return official.run(arguments, build)
    if (arguments.sign is not None or arguments.record) and arguments.push is None:
        raise UsageError(
            "what is not pushed is not signed or recorded",
            file="--sign, --record",
            expected="--push REF beside it",
            found="no --push",
            next_command="python build.py --push REF --sign KEY",
        )
    if arguments.pull_request and not arguments.record:
        raise UsageError(
            "what is not recorded is not proposed",
            file="--pull-request",
            expected="--push REF --record beside it",
            found="no --record",
            next_command="python build.py --push REF --record --pull-request",
        )
    propose_to = pullrequest.Target.of_environment("main") if arguments.pull_request else None
    if arguments.push is not None:
        shipment.target(build, arguments.push)  # a typing error is told before the work
    rows = builder.run(build)
    pushed = None
    if arguments.push is not None:
        pushed = shipment.push(build, rows, arguments.push, arguments.sign)
        if arguments.record:
            shipment.record(build, rows, pushed)
        if propose_to is not None:
            progress.note(_propose(build, pushed, propose_to))
    head = f"{name}  {line.local_version}  {', '.join(request.platforms)}  in {request.dist}"
    lines = [head, "artefact     time       digest", *(text for row in rows for text in _row(row))]
    lines += [] if pushed is None else [_pushed(pushed)]
    lines.append(f"{release.NAME} names every input and every output")
    facts: dict[str, Any] = {
        "line": name,
        "dist": str(request.dist),
        "targets": [_facts(row) for row in rows],
    }
    if pushed is not None:
        facts["pushed"] = {
            "ref": str(pushed.reference),
            "digest": f"sha256:{pushed.reference.digest}",
            "platforms": {key: f"sha256:{value}" for key, value in pushed.platforms.items()},
            "replaced": pushed.replaced,
            "attached": {key: f"sha256:{value}" for key, value in pushed.attached.items()},
            "signed": pushed.signed,
            **asdict(pushed.traffic),
        }
    emit(arguments, "\n".join(lines), facts)
    return 0
