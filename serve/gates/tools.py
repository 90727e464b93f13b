"""Tool calls: one, four at once, and an answer from a tool's result; arguments by their schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema

from serve.gates.result import Result, judged, not_run, shown

if TYPE_CHECKING:
    from serve.gates.client import Answer
    from serve.gates.run import Run

SINGLE = "What is the weather in Reykjavik, in celsius? Use the tool."
FOUR = (
    "What is the weather in Oslo, Lima, Cairo and Quito, in celsius? "
    "Call the tool once for each city, all four at once."
)
CITIES = ("Cairo", "Lima", "Oslo", "Quito")
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the present weather of one city.",
        "parameters": PARAMETERS,
    },
}
_TOKENS = 512


def problems(answer: Answer, cities: tuple[str, ...]) -> list[str]:
    """Return what is wrong with an answer that must call the tool once for each of the cities."""
    found = []
    called = []
    for call in answer.calls:
        if call.name != "get_weather":
            found.append(f"a call of {call.name}")
        try:
            arguments = json.loads(call.arguments)
            jsonschema.validate(arguments, PARAMETERS)
            called.append(arguments["city"])
        except json.JSONDecodeError:
            found.append(f"arguments that are not JSON: {shown(call.arguments, 80)}")
        except jsonschema.ValidationError as error:
            found.append(f"arguments against their schema: {error.message}")
    if not found and sorted(called) != sorted(cities):
        found.append(f"calls for {', '.join(sorted(called)) or 'no city'}")
    if not found and answer.finish != "tool_calls":
        found.append(f"finish {answer.finish or 'missing'}")
    return found


def _asked(run: Run, question: str, cities: tuple[str, ...]) -> Result:
    if run.profile.model.tool_parser is None:
        return not_run("the profile has no tool parser")
    answer = run.client.chat(question, _TOKENS, tools=[TOOL])
    wrong = problems(answer, cities)
    told = "; ".join(wrong) or f"{len(answer.calls)} of get_weather for {', '.join(cities)}"
    evidence = [f"{call.name} {shown(call.arguments, 80)}" for call in answer.calls]
    bound = f"one call each for {', '.join(cities)}; arguments by their schema"
    return judged(not wrong, told, bound, *evidence)


def single(run: Run) -> Result:
    """One call, its arguments by their schema."""
    return _asked(run, SINGLE, ("Reykjavik",))


def parallel(run: Run) -> Result:
    """Four calls in one answer, one for each city."""
    return _asked(run, FOUR, CITIES)


def result(run: Run) -> Result:
    """A tool's result comes back, and the answer tells it."""
    if run.profile.model.tool_parser is None:
        return not_run("the profile has no tool parser")
    call = {
        "id": "call_1",
        "type": "function",
        "function": {
            "name": "get_weather",
            "arguments": json.dumps({"city": "Reykjavik", "unit": "celsius"}),
        },
    }
    answer = run.client.chat(
        [
            {"role": "user", "content": SINGLE},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "7 degrees, rain"},
        ],
        _TOKENS,
        tools=[TOOL],
    )
    right = "7" in answer.text and "rain" in answer.text.lower() and not answer.calls
    return judged(right, f"{shown(answer.text)!r}", "7 and rain, no further call")
