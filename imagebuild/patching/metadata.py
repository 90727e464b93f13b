"""`patches/<line>/NAME.toml`: what a patch is for, where it comes from, and how it will leave."""

from __future__ import annotations

import datetime as dt
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from imagebuild import schema
from imagebuild.errors import LockError
from imagebuild.schema import Hash, Text, Value, Version

if TYPE_CHECKING:
    from pathlib import Path

WHAT = "patch metadata"

Area = Literal["gemm", "kv-cache", "exclusion", "mtp", "hardening"]
Witness = Literal["verified", "unverified"]
Hardware = Literal["cpu", "sm90", "sm120"]
HARDWARE: tuple[Hardware, ...] = ("cpu", "sm90", "sm120")
UpstreamStatus = Literal["pending", "submitted", "backport", "inappropriate", "denied"]
Url = Annotated[str, msgspec.Meta(pattern=r"^https://\S+\Z")]
NodeId = Annotated[str, msgspec.Meta(pattern=r"^tests/\S+\.py::\S+\Z")]

_NEEDS_REF = ("submitted", "backport", "denied")
_NEEDS_REASON = ("inappropriate", "denied")


class Origin(Value, frozen=True):
    """Where the change comes from.

    Attributes:
        kind: written here, carried back from a merged change, or written after a report.
        links: the pull requests, commits or issues it stands on.
    """

    kind: Literal["own", "backport", "port"]
    links: tuple[Url, ...] = ()


class Upstream(Value, frozen=True):
    """What becomes of the change upstream.

    Attributes:
        status: one of a closed set.
        ref: the pull request, commit or answer that the status speaks of.
        reason: why it will not go upstream, where that is the status.
        merged_in: the first release that has the change, where that is known; there the drop-when
            has to hold, and before it not.
    """

    status: UpstreamStatus
    ref: Url | None = None
    reason: Text | None = None
    merged_in: Version | None = None


class DropWhen(Value, frozen=True):
    """One check on an upstream tree; exactly one of the three is given.

    Attributes:
        file: the path in the tree.
        contains: text that stands in the file.
        lacks: text that does not stand in the file, which must exist; another check has to say
            what stands there instead, since reworded code lacks much without being mended.
        symbol: a dotted name that the file defines.
    """

    file: Text
    contains: Text | None = None
    lacks: Text | None = None
    symbol: Text | None = None


class Inputs(Value, frozen=True):
    """What a measurement was taken on; it expires when one of these is another one.

    Attributes:
        vllm, torch, flashinfer, cuda: versions; absent where they do not matter to it.
        patch: the digest of the patch file.
    """

    vllm: Version | None = None
    torch: Version | None = None
    flashinfer: Version | None = None
    cuda: Version | None = None
    patch: Hash | None = None


class Evidence(Value, frozen=True):
    """One measurement.

    Attributes:
        hardware: the class of machine it was made on.
        what: what was measured, with the result.
        on: the machine and the versions.
        when: the day.
        inputs: what it stands on; absent for a measurement on the line and patch as they are.
    """

    hardware: Hardware
    what: Text
    on: Text
    when: dt.date
    inputs: Inputs | None = None


class KillSwitch(Value, frozen=True):
    """How to turn the change off at run time.

    Attributes:
        variable: an environment variable.
        option: an option of the command line.
        effect: which value does what.
    """

    effect: Text
    variable: Text | None = None
    option: Text | None = None


class Metadata(Value, frozen=True):
    """Everything that a patch's sidecar says.

    Attributes:
        summary: the change in one line.
        why: the fault that a user sees without it.
        area: the part of the product.
        tests: node ids that fail without the patch and pass with it.
        drop_when: checks that all hold in an upstream tree that no longer needs the patch.
        hardware: what was verified on which hardware.
        overlay: overlay files that belong to the patch.
    """

    summary: Text
    why: Text
    area: Area
    origin: Origin
    upstream: Upstream
    drop_when: Annotated[tuple[DropWhen, ...], msgspec.Meta(min_length=1)]
    tests: Annotated[tuple[NodeId, ...], msgspec.Meta(min_length=1)]
    hardware: dict[Hardware, Witness]
    evidence: tuple[Evidence, ...] = ()
    kill_switch: KillSwitch | None = None
    overlay: tuple[Text, ...] = ()


def is_tree_path(path: str) -> bool:
    """Return whether `path` is a plain relative path inside a tree, out of its `.git`."""
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and all(part == part.strip() for part in parts)
        and str(PurePosixPath(path)) == path
        and not (path.startswith("/") or ".." in parts or "\\" in path or not path.isprintable())
        and not any(part.lower() == ".git" for part in parts)
    )


def _bad_checks(checks: tuple[DropWhen, ...]) -> list[str]:
    found = []
    proven = {check.file for check in checks if check.lacks is None}
    for check in checks:
        given = [x for x in (check.contains, check.lacks, check.symbol) if x is not None]
        if len(given) != 1:
            found.append(f"drop-when on {check.file}: {len(given)} of contains, lacks, symbol")
        if not is_tree_path(check.file):
            found.append(f"drop-when names no path of the tree: {check.file!r}")
        if check.lacks is not None and check.file not in proven:
            found.append(f"drop-when on {check.file}: lacks without a contains or symbol beside it")
        if check.symbol is not None and not (
            check.file.endswith(".py") and all(map(str.isidentifier, check.symbol.split(".")))
        ):
            found.append(f"drop-when on {check.file}: {check.symbol!r} is no Python name there")
    return found


def _contradictions(meta: Metadata) -> list[str]:
    found = []
    if "\n" in meta.summary:
        found.append("summary has more than one line")
    if meta.origin.kind != "own" and not meta.origin.links:
        found.append(f"origin.kind = {meta.origin.kind!r} without origin.links")
    if meta.upstream.status in _NEEDS_REF and meta.upstream.ref is None:
        found.append(f"upstream.status = {meta.upstream.status!r} without upstream.ref")
    if meta.upstream.status in _NEEDS_REASON and meta.upstream.reason is None:
        found.append(f"upstream.status = {meta.upstream.status!r} without upstream.reason")
    found += _bad_checks(meta.drop_when)
    missing = {"cpu", "sm90", "sm120"} - set(meta.hardware)
    found += [f"hardware.{name} is not stated" for name in sorted(missing)]
    witnessed = {entry.hardware for entry in meta.evidence}
    found += [
        f"hardware.{name} = 'verified' without evidence taken there"
        for name, state in meta.hardware.items()
        if state == "verified" and name not in witnessed
    ]
    switch = meta.kill_switch
    if switch is not None and (switch.variable is None) == (switch.option is None):
        found.append("kill-switch: exactly one of variable, option")
    found += [
        f"overlay names no path of the tree: {path!r}"
        for path in meta.overlay
        if not is_tree_path(path)
    ]
    return found


def parse(data: bytes, path: Path) -> Metadata:
    """Return the metadata that `data` holds; `path` is for messages.

    Raises:
        LockError: on an unknown key, an empty reason or a contradiction, naming it.
    """
    meta = schema.convert(schema.parse_toml(data, path, WHAT), Metadata, path, WHAT)
    contradictions = _contradictions(meta)
    if contradictions:
        raise LockError(
            "patch metadata contradicts itself",
            file=path,
            expected="every statement with what it needs (docs/formats.md)",
            found="; ".join(contradictions),
            next_command=f"git diff -- {path}",
        )
    return meta
