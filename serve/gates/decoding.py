"""Long answers: a program that parses and ends, and prose that does not go round in circles."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from serve.gates.result import Result, judged, shown

if TYPE_CHECKING:
    from serve.gates.run import Run

PROGRAM = (
    "Write one complete Python module that keeps a shelf of books: a dataclass for a book, a class "
    "with methods to add, lend, return, list what is overdue and find the oldest, errors for wrong "
    "use, and a main function that shows it. Answer with one code block and nothing else."
)
STORY = "Write a short story of about two hundred words about a clock that rings at dusk."
LINES = 40
DISTINCT = 0.6
_GRAM = 4
_BLOCK = re.compile(r"```(?:python|py)?\n(.*?)(?:```|\Z)", re.DOTALL)


def python(run: Run) -> Result:
    """A long program, to its own end: it parses, and it is all there."""
    answer = run.client.chat(PROGRAM, run.profile.gates.long_decode)
    block = _BLOCK.search(answer.text)
    source = block[1] if block else answer.text
    lines = len([line for line in source.splitlines() if line.strip()])
    try:
        ast.parse(source)
        fault = ""
    except (SyntaxError, ValueError) as error:
        fault = f"does not parse: {error}"
    told = f"{lines} lines, {fault or 'parses'}, finish {answer.finish or 'missing'}"
    right = not fault and lines >= LINES and answer.finish == "stop"
    run.answers[PROGRAM] = answer.text
    return judged(right, told, f"at least {LINES} lines that parse, finish stop", shown(source))


def distinct(text: str) -> float:
    """Return the share of a text's word groups that are no repetition; 1 for a short text."""
    words = text.lower().split()
    groups = [tuple(words[i : i + _GRAM]) for i in range(len(words) - _GRAM + 1)]
    return len(set(groups)) / len(groups) if groups else 1.0


def repetition(run: Run) -> Result:
    """Prose of some length says something new all along."""
    answer = run.client.chat(STORY, min(run.profile.gates.long_decode, 1024))
    share = distinct(answer.text)
    words = len(answer.text.split())
    run.answers[STORY] = answer.text
    return judged(
        share >= DISTINCT and words >= LINES,
        f"{share:.0%} of its groups of {_GRAM} words are new, {words} words",
        f"at least {DISTINCT:.0%}, {LINES} words",
        shown(answer.text),
    )
