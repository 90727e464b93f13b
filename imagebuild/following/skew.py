"""What a patch's evidence was taken on, and whether that is still what the line is built with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagebuild.fetch.release_facts import ReleaseFacts
    from imagebuild.patching.metadata import Evidence, Hardware
    from imagebuild.patching.series import Patch
    from imagebuild.upstream import Line

PINS = ("torch", "flashinfer", "cuda", "python")


@dataclass(frozen=True)
class Skew:
    """One version that is another one now.

    Attributes:
        what: whose version, such as `torch`.
        old: what the series stands on.
        new: what the release is built with.
    """

    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.what} {self.old} -> {self.new}"


def pins(line: Line, facts: ReleaseFacts) -> tuple[Skew, ...]:
    """Return the pins of a line that a release has otherwise."""
    pairs = ((name, getattr(line, name), getattr(facts, name)) for name in PINS)
    return tuple(Skew(name, old, new) for name, old, new in pairs if old != new)


def changed(entry: Evidence, patch: Patch, line: Line) -> tuple[Skew, ...]:
    """Return which of the recorded inputs of a piece of evidence are other ones now.

    Evidence that records no inputs was taken on the line beside which it stands.
    """
    taken = entry.inputs
    if taken is None:
        return ()
    now = {"vllm": line.version, "torch": line.torch, "flashinfer": line.flashinfer}
    now |= {"cuda": line.cuda, "patch": patch.text.sha256}
    then = {name: getattr(taken, name) for name in now}
    return tuple(
        Skew(name, str(then[name])[:12], now[name][:12])
        for name in now
        if then[name] is not None and then[name] != now[name]
    )


def witness(patch: Patch, line: Line, hardware: Hardware) -> str:
    """Return what may be claimed for a class of hardware.

    Returns:
        `verified`, `unverified`, or `unverified since` with the release on which the evidence was
        taken, where its inputs have changed since.
    """
    entries = [entry for entry in patch.meta.evidence if entry.hardware == hardware]
    current = [entry for entry in entries if not changed(entry, patch, line)]
    if current:
        return patch.meta.hardware[hardware]
    expired = [entry for entry in entries if entry.inputs is not None]
    if not expired:
        return "unverified"
    last = max(expired, key=lambda entry: entry.when)
    taken = last.inputs.vllm if last.inputs and last.inputs.vllm else None
    return f"unverified since {taken or f'{last.when:%Y-%m-%d}'}"


def expired(patch: Patch, line: Line) -> dict[Hardware, tuple[Skew, ...]]:
    """Return, for each class of hardware without valid evidence, what changed since the last."""
    found: dict[Hardware, tuple[Skew, ...]] = {}
    for hardware in patch.meta.hardware:
        if witness(patch, line, hardware).startswith("unverified since"):
            entries = [e for e in patch.meta.evidence if e.hardware == hardware and e.inputs]
            found[hardware] = changed(max(entries, key=lambda e: e.when), patch, line)
    return found
