"""What a gate says: what it measured, what it was held against, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Result:
    """One gate's result.

    Attributes:
        status: a gate that could not run is `not run`, never `passed`.
        measured: what was found, in a few words.
        bound: what it was held against; empty if it did not run.
        evidence: what shows it, such as the text that came; why it did not run.
    """

    status: Status
    measured: str
    bound: str = ""
    evidence: tuple[str, ...] = ()


def judged(right: bool, measured: str, bound: str, *evidence: str) -> Result:  # noqa: FBT001
    """Return a result that passed if `right`."""
    return Result("passed" if right else "failed", measured, bound, evidence)


def not_run(why: str) -> Result:
    """Return the result of a gate that could not run."""
    return Result("not run", "nothing", "", (why,))


def shown(text: str, size: int = 160) -> str:
    """Return a text on one line, cut in its middle if it is long."""
    line = text.replace("\n", "\\n")
    if len(line) <= size:
        return line
    half = (size - 5) // 2
    return f"{line[:half]} ... {line[-half:]}"
