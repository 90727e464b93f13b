"""All gates, in the order in which they run, and what runs them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve.gates import (
    basics,
    capacity,
    decoding,
    determinism,
    drafting,
    fidelity,
    needle,
    structured,
    thinking,
    tools,
    vision,
)
from serve.gates.client import AnswerError
from serve.gates.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from serve.gates.run import Run


@dataclass(frozen=True)
class Gate:
    """One gate.

    Attributes:
        name: how the report calls it.
        check: asks and judges.
        full: whether only `verify --full` runs it.
    """

    name: str
    check: Callable[[Run], Result]
    full: bool = False


@dataclass(frozen=True)
class Timed:
    """A gate's result, and the seconds that it took."""

    gate: str
    result: Result
    seconds: float


GATES = (
    Gate("health", basics.health),
    Gate("model", basics.model),
    Gate("chat", basics.chat),
    Gate("streaming", basics.streaming),
    Gate("kv-pool", capacity.pool),
    Gate("thinking-on", thinking.thinks),
    Gate("thinking-off", thinking.silent),
    Gate("tool-call", tools.single),
    Gate("tool-calls-parallel", tools.parallel),
    Gate("tool-result", tools.result),
    Gate("json-schema", structured.schema),
    Gate("determinism-repeat", determinism.repeat),
    Gate("determinism-concurrent", determinism.concurrent),
    Gate("needle-cold", needle.cold),
    Gate("needle-cached", needle.replay),
    Gate("long-python", decoding.python, full=True),
    Gate("repetition", decoding.repetition, full=True),
    Gate("mtp-acceptance", drafting.acceptance, full=True),
    Gate("mtp-agreement", drafting.agreement, full=True),
    Gate("fidelity", fidelity.fidelity, full=True),
    Gate("vision", vision.colour, full=True),
)


def run_all(run: Run, only: frozenset[str] = frozenset()) -> Iterator[Timed]:
    """Yield the result of every gate as it comes.

    Args:
        run: what they run on.
        only: the names of those that shall run; all that `run.full` asks for if empty.
    """
    for gate in GATES:
        if gate.name not in only if only else gate.full and not run.full:
            continue
        start = time.monotonic()
        try:
            result = gate.check(run)
        except AnswerError as error:
            result = Result("failed", str(error), "an answer")
        yield Timed(gate.name, result, time.monotonic() - start)
