"""Printing results: text for people or JSON for programs, never both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000


def emit(arguments: argparse.Namespace, text: str, facts: dict[str, Any]) -> None:
    """Print `facts` as JSON if the command line asks for that, else `text`."""
    print(json.dumps(facts, indent=2) if arguments.json else text)


def size(count: float) -> str:
    """Return a number of bytes for people, in powers of 1000."""
    for unit in _UNITS:
        if count < _STEP or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    raise AssertionError
