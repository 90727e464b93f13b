"""`build.py verify`: an artifact compared with the locks, file by file."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild import upstream
from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.digest import Sha256
from imagebuild.errors import SourceError, UsageError, VerifyError
from imagebuild.fetch.sources import Sources
from imagebuild.patching import checksums
from imagebuild.verifying import test_results
from imagebuild.verifying.verify import Report, Verdict

if TYPE_CHECKING:
    import argparse

    from imagebuild.attesting.signing import Expected
    from imagebuild.project import Project
    from imagebuild.upstream import Platform

_MARKS = {Verdict.OK: "ok", Verdict.BAD: "BAD", Verdict.NOT_CHECKED: "not checked"}


def _wheel_identity(path: Path) -> tuple[str, Platform]:
    """Return what a wheel says of itself, only to choose what it is compared with."""
    from imagebuild.artifacts.zipfmt import open_zip  # noqa: PLC0415  (kept out of start-up)

    found: dict[str, bytes] = {}
    with open_zip(path) as archive:
        for name, member in archive.members.items():
            folder, _, file = name.partition("/")
            if folder.endswith(".dist-info") and file in ("METADATA", "WHEEL"):
                found[file] = archive.read(member)
    version = re.search(rb"^Version: (\S+)", found.get("METADATA", b""), re.MULTILINE)
    arm = re.search(rb"^Tag: \S+aarch64\s*$", found.get("WHEEL", b""), re.MULTILINE)
    return version[1].decode() if version else "", "linux/arm64" if arm else "linux/amd64"


def _wheel(arguments: argparse.Namespace, project: Project, sources: Sources) -> Report:
    from imagebuild.images.image_facts import at_hand, line_of  # noqa: PLC0415  (the same)
    from imagebuild.verifying import verify_wheel  # noqa: PLC0415  (kept out of start-up)

    path = Path(arguments.subject)
    version, platform = _wheel_identity(path)
    lock = upstream.load(project.upstream_lock)
    name, line = line_of(lock, arguments.line, version, path)
    pins = checksums.load(project.checksums_lock).line(name)
    official = at_hand(lambda: sources.wheel(line, platform))
    expected = {file: Sha256(digest) for file, digest in pins.produced.items()}
    return verify_wheel.verify_wheel(
        path, line, platform, expected, official, progress=sources.progress
    )


def _image(arguments: argparse.Namespace, project: Project, sources: Sources) -> Report:
    from imagebuild.images.reference import parse_reference  # noqa: PLC0415  (kept out of start-up)
    from imagebuild.images.registry import Registry  # noqa: PLC0415
    from imagebuild.verifying.verification import DAEMON, Verifier  # noqa: PLC0415
    from imagebuild.verifying.verify_registry import RegistrySubject, resolve  # noqa: PLC0415

    signer = signer_of(arguments)
    verifier = Verifier(project, sources, arguments.line, arguments.base, signer)
    subject: str = arguments.subject
    path = Path(subject)
    if path.is_dir():
        return verifier.layout(path)
    if path.is_file():
        return verifier.archive(path)
    if subject.startswith(DAEMON):
        return verifier.daemon(subject.removeprefix(DAEMON))
    reference = parse_reference(subject)
    with Registry(reference.repository) as source:
        digest = resolve(source, reference)
        return verifier.subject(RegistrySubject(source, digest, not arguments.manifests_only))


def signer_of(arguments: argparse.Namespace) -> Expected:
    """Return who must have signed.

    Raises:
        UsageError: if only half of a keyless signer is named.
    """
    from imagebuild.attesting.signing import Expected  # noqa: PLC0415  (kept out of start-up)

    if (arguments.identity is None) != (arguments.issuer is None):
        raise UsageError(
            "an identity counts only with who vouched for it",
            file="--identity, --issuer",
            expected="both",
            found="one of them",
            next_command="python build.py verify --help",
        )
    return Expected(arguments.key, arguments.identity, arguments.issuer)


def _digests(path: Path, *, is_wheel: bool) -> set[str]:
    """Return the digests by which a test can name an artifact."""
    if is_wheel:
        with path.open("rb") as file:
            return {hashlib.file_digest(file, "sha256").hexdigest()}
    if path.is_dir():
        index = json.loads((path / "index.json").read_bytes())
        return {str(each["digest"]).removeprefix("sha256:") for each in index["manifests"]}
    return {str(path).rpartition("@sha256:")[2]}


def _names_an_image(subject: str) -> bool:
    return subject.startswith("docker-daemon:") or ":" in subject


def _starts_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def text_of(report: Report) -> str:
    """Return a report as text for a person."""
    lines = [report.subject]
    for check in report.checks:
        lines.append(f"  {_MARKS[check.verdict]:<12} {check.name}: {check.found}")
        if check.verdict is Verdict.BAD:
            lines.append(f"  {'':<12}   expected: {check.expected}")
        elif check.verdict is Verdict.NOT_CHECKED:
            lines.append(f"  {'':<12}   needs: {check.expected}")
    return "\n".join(lines)


def facts_of(report: Report) -> dict[str, Any]:
    """Return a report for `--json`."""
    return {
        "subject": report.subject,
        "ok": not report.failures,
        "checks": [
            {
                "name": check.name,
                "verdict": check.verdict.value,
                "expected": check.expected,
                "found": check.found,
            }
            for check in report.checks
        ],
    }


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Check the artifact and print what was found.

    Returns:
        0 if nothing is wrong, though what was not checked is listed as such; with `--json`,
        `VerifyError`'s exit code if anything is.

    Raises:
        VerifyError: if anything is wrong, without `--json`.
    """
    sources = Sources.for_run(reporter(), offline=arguments.offline)
    path = Path(arguments.subject)
    if not path.exists() and not _names_an_image(arguments.subject):
        raise SourceError(
            "nothing to verify",
            file=path,
            expected="a .whl file, an OCI layout, an image archive, docker-daemon:NAME, or "
            "REGISTRY/NAME@sha256:DIGEST",
            found="no such file or folder",
            next_command="python build.py",
        )
    is_wheel = path.is_file() and (path.suffix == ".whl" or _starts_as_zip(path))
    report = (_wheel if is_wheel else _image)(arguments, project, sources)
    if arguments.test_results is not None:
        test_results.add(
            report,
            arguments.test_results,
            _digests(path, is_wheel=is_wheel),
            dt.datetime.now(dt.UTC),
        )
    emit(arguments, text_of(report), facts_of(report))
    if arguments.json:
        return VerifyError.exit_code if report.failures else 0
    report.require()
    return 0
