"""Is it there, is it the right model, does it answer, does it stream?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve.gates.result import Result, judged, shown

if TYPE_CHECKING:
    from serve.gates.run import Run

CAPITAL = "What is the capital of France? Answer with one word."
COUNTING = "Count from one to eleven in English words, parted by commas, on one line."


def health(run: Run) -> Result:
    """The server says that it is well."""
    run.client.health()
    return judged(True, "GET /health: 200", "200", f"vLLM {run.client.version()}")


def model(run: Run) -> Result:
    """It serves the profile's model under its name, with its context."""
    wanted, context = run.profile.model.served_name, run.profile.engine.context
    found = run.client.models()
    told = ", ".join(f"{name} ({size} tokens)" for name, size in found.items()) or "none"
    return judged(found.get(wanted) == context, told, f"{wanted} ({context} tokens)")


def chat(run: Run) -> Result:
    """A plain question has its plain answer, and the answer ends."""
    answer = run.client.chat(CAPITAL, 64)
    right = "paris" in answer.text.lower() and answer.finish == "stop"
    return judged(
        right, f"{shown(answer.text)!r}, {answer.finish}", "Paris, stop", f"asked: {CAPITAL}"
    )


def streaming(run: Run) -> Result:
    """An answer comes in pieces, and the stream is closed as the API closes one."""
    answer = run.client.stream(COUNTING, 128)
    ended = f"finish {answer.finish or 'missing'}, {'[DONE]' if answer.done else 'cut off'}"
    right = answer.done and answer.finish == "stop" and answer.chunks >= _CHUNKS
    return judged(
        right and "eleven" in answer.text.lower(),
        f"{answer.chunks} pieces, {ended}",
        f"at least {_CHUNKS} pieces, finish stop, [DONE], 'eleven'",
        shown(answer.text),
    )


_CHUNKS = 3
