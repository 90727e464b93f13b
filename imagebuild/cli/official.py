"""`build.py build --target official`: the official Dockerfile over the patched tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from imagebuild import outputs
from imagebuild.builder import holding
from imagebuild.cli.output import emit
from imagebuild.cli.verify import facts_of, text_of
from imagebuild.errors import UsageError
from imagebuild.officialbuild import official, official_run
from imagebuild.officialbuild.official import Machine, Options
from imagebuild.officialbuild.officialcontext import add_repository
from imagebuild.verifying.verify import Report

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from imagebuild.builder import Build


def options(arguments: argparse.Namespace) -> Options:
    """Return what the command line chooses.

    Raises:
        UsageError: if a build argument has no value.
    """
    found: dict[str, str] = {}
    for text in arguments.build_arg or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(
                "a build argument has no value",
                file="--build-arg",
                expected="NAME=VALUE",
                found=text,
                next_command="python build.py build --help",
            )
        found[name] = value
    output: Path | None = arguments.output
    return Options(
        builder=arguments.builder,
        cache_from=tuple(arguments.cache_from or ()),
        cache_to=tuple(arguments.cache_to or ()),
        arguments=found,
        jobs=arguments.max_jobs,
        threads=arguments.nvcc_threads,
        push=arguments.push,
        load=arguments.load,
        output=None if output is None else output.absolute(),
        network=arguments.network,
    )


def run(arguments: argparse.Namespace, build: Build) -> int:
    """Prove the plan, or build it.

    Raises:
        VerifyError: if a dry run finds anything wrong.
        UnpinnedError: if a base is not pinned.
        TargetError: if there is no buildx, or the build stops.
    """
    chosen = options(arguments)
    request = build.request
    machine = Machine.here()
    context = request.dist / f"vllm-{build.line.local_version}"
    plan = official.plan(build, context, chosen, machine)
    with holding(request.dist, build.progress, wait=request.wait):
        outputs.WRITERS["tree"].write(build, request.platforms[0])
        if not arguments.dry_run:
            add_repository(context, build.line, build.epoch)
    if arguments.dry_run:
        report = Report(f"{build.line.tag}, official image")
        official_run.dry_run(report, plan, build.line)
        facts: dict[str, Any] = {**facts_of(report), "plan": plan.bake, "policy": plan.policy}
        emit(arguments, text_of(report), facts)
        report.require()
        return 0
    made = official_run.build(plan, request.dist / "official")
    digest = made.get(official.NAME, {}).get("containerimage.digest", "in the cache only")
    text = f"official     {digest}\n             {plan.parallel.why}"
    emit(arguments, text, {"digest": digest, "metadata": made})
    return 0
