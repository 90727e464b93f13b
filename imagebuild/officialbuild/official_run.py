"""The official image: what can be proven without building it, and the build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.errors import TargetError
from imagebuild.officialbuild import dockerfile
from imagebuild.officialbuild.archgate import check_gate
from imagebuild.officialbuild.official import NAME, TARGET, Machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagebuild.officialbuild.official import Plan
    from imagebuild.upstream import Line
    from imagebuild.verifying.verify import Report

ALLOWED_WARNINGS = {
    "InvalidDefaultArgInFrom": "BUILD_BASE_IMAGE and FINAL_BASE_IMAGE are given, by digest",
    "JSONArgsRecommended": "upstream's entry point of a stage that is not built",
    "SecretsUsedInArgOrEnv": "names of settings that end in KEYRING_PROVIDER, no secrets",
    "UndefinedVar": "upstream appends to a search path that the base may not set",
    "LegacyKeyValueFormat": "upstream's way of writing ENV",
    "FromAsCasing": "upstream's way of writing FROM",
    "WorkdirRelativePath": "upstream's WORKDIR follows the base's",
}
"""Warnings of `--check` that upstream's file has, each with the reason why it does no harm here."""

PROBES = {
    "OCI exporter": ("--output=type=oci,dest=/dev/null",),
    "rewrite-timestamp": ("--output=type=oci,dest=/dev/null,rewrite-timestamp=true",),
    "attestations": (
        "--output=type=oci,dest=/dev/null",
        "--attest=type=provenance,mode=max,version=v1",
    ),
    "checks": ("--check",),
}
_DISK, _MEMORY = 120 << 30, 16 << 30
_WARNING = re.compile(r"^WARNING: (\w+)", re.MULTILINE)
_PATIENCE = 600
_DETAIL = 4000


def probe(builder: str | None) -> dict[str, str | None]:
    """Return, for each thing that a builder must do, None or why it does not; by trying it.

    Raises:
        TargetError: if there is no Docker with buildx.
    """
    found: dict[str, str | None] = {}
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
        for what, flags in PROBES.items():
            chosen = [f"--builder={builder}"] if builder else []
            done = run(["docker", "buildx", "build", *chosen, *flags, name])
            found[what] = None if done.returncode == 0 else _last(done.stderr)
    return found


def dry_run(report: Report, plan: Plan, line: Line) -> None:
    """Prove what can be proven without building.

    Raises:
        TargetError: if there is no Docker with buildx.
    """
    for what, problem in probe(plan.builder).items():
        if problem is None:
            report.ok(f"the builder can do: {what}", "tried")
        else:
            report.bad(f"the builder can do: {what}", "it works", problem)
    text = (plan.context / plan.dockerfile).read_text()
    arguments = plan.target["args"]
    for image in dockerfile.externals(text, arguments):
        if image.pinned:
            report.ok(f"pinned: {image.written}", image.image)
        else:
            report.bad(f"pinned: {image.written}", "a digest", image.image)
    report.ok("hosts that the steps name", ", ".join(dockerfile.hosts(text)))
    report.ok("parallel", plan.parallel.why)
    _check_room(report, plan)
    check_gate(report, plan.context, line, arguments["torch_cuda_arch_list"].split())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = plan.write(folder)
        _check_targets(report, plan)
        _check_bake(report, plan, folder, variables)
        _check_warnings(report, plan, folder, variables)


def build(plan: Plan, folder: Path) -> dict[str, Any]:
    """Build, and return what buildx says of the result (its metadata file).

    Raises:
        TargetError: if the build stops; buildx's last words are the detail.
    """
    folder.mkdir(parents=True, exist_ok=True)
    variables = plan.write(folder)
    metadata = folder / "metadata.json"
    metadata.unlink(missing_ok=True)
    command = plan.command(folder, f"--metadata-file={metadata}", "--progress=plain")
    done = run(command, variables, patience=None)
    if done.returncode:
        raise TargetError(
            "the official build stops",
            file=plan.dockerfile,
            expected="an image",
            found=_last(done.stderr),
            next_command=" ".join(command),
            detail=_stop(done.stderr),
        )
    found: dict[str, Any] = json.loads(metadata.read_bytes())
    return found


def run(
    command: list[str],
    variables: Mapping[str, str] | None = None,
    patience: float | None = _PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run a command of Docker's.

    Raises:
        TargetError: if there is none, or it does not come to an end.
    """
    try:
        return subprocess.run(
            command,
            env={**os.environ, **(variables or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=patience,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(
            "the official image needs Docker with buildx",
            file=command[0],
            expected="`docker buildx` on PATH, and a builder that answers",
            found=type(error).__name__,
            next_command="docker buildx inspect --bootstrap",
        ) from error


def _check_targets(report: Report, plan: Plan) -> None:
    file = f"--file={plan.context / plan.dockerfile}"
    done = run(["docker", "buildx", "build", "--call=targets,format=json", file, str(plan.context)])
    try:
        names = [target["name"] for target in json.loads(done.stdout)["targets"]]
    except (ValueError, KeyError, TypeError):
        report.bad("targets of the Dockerfile", TARGET, _last(done.stderr))
        return
    if TARGET in names:
        report.ok("targets of the Dockerfile", f"{len(names)}, {TARGET} among them")
    else:
        report.bad("targets of the Dockerfile", TARGET, ", ".join(names))


def _check_bake(report: Report, plan: Plan, folder: Path, variables: Mapping[str, str]) -> None:
    done = run(plan.command(folder, "--print"), variables)
    try:
        shown = json.loads(done.stdout)["target"][NAME]
    except (ValueError, KeyError, TypeError):
        report.bad("what bake makes of the plan", "one target", _last(done.stderr))
        return
    for key in ("args", "labels", "platforms", "target"):
        wanted = plan.target[key]
        if shown.get(key) == wanted:
            count = f"{len(wanted)} as planned" if key != "target" else wanted
            report.ok(f"bake: {key}", count)
        else:
            report.bad(f"bake: {key}", wanted, shown.get(key))


def _check_warnings(report: Report, plan: Plan, folder: Path, variables: Mapping[str, str]) -> None:
    done = run(plan.command(folder, "--check"), variables)
    said = done.stdout + done.stderr
    found = set(_WARNING.findall(said))
    if done.returncode and not found:
        why = _last(done.stderr)
        report.not_checked("warnings of the Dockerfile", "the pinned bases' registry", why)
        return
    unknown = found - ALLOWED_WARNINGS.keys()
    if unknown:
        allowed = ", ".join(sorted(ALLOWED_WARNINGS))
        report.bad("warnings of the Dockerfile", allowed, ", ".join(sorted(unknown)))
    else:
        report.ok("warnings of the Dockerfile", ", ".join(sorted(found)) or "none")


def _check_room(report: Report, plan: Plan) -> None:
    here = Machine.here()
    if plan.builder is not None:
        report.not_checked("disk and memory", "the builder's own machine", plan.builder)
        return
    free = shutil.disk_usage(plan.context).free
    for what, needed, has in (("disk", _DISK, free), ("memory", _MEMORY, here.memory)):
        if has >= needed:
            report.ok(f"{what}, GiB", f"{has >> 30} of {needed >> 30} needed")
        else:
            why = f"{has >> 30} GiB here: use --builder for a larger machine"
            report.not_checked(f"{what} for the whole build", f"{needed >> 30} GiB", why)


def _stop(text: str) -> str:
    """Return what BuildKit says of the step that failed: its last lines of output, and the step."""
    start = text.find("\n------\n > ")
    return text[start:].strip()[:_DETAIL] if start >= 0 else text[-_DETAIL:]


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" -")]
    wrong = [line for line in lines if "ERROR: " in line]
    return (wrong or lines or ["nothing"])[-1][:1000]
