"""Structured output: an object by a JSON schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema

from serve.gates.result import Result, judged, shown

if TYPE_CHECKING:
    from serve.gates.run import Run

QUESTION = (
    "Describe an old book about a harbour as JSON: title, year, tags, and whether it is lent."
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 1, "maxLength": 60},
        "year": {"type": "integer", "minimum": 1000, "maximum": 2999},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 5},
        "lent": {"type": "boolean"},
    },
    "required": ["title", "year", "tags", "lent"],
    "additionalProperties": False,
}


def schema(run: Run) -> Result:
    """The answer is an object that the schema allows."""
    asked = {"name": "book", "schema": SCHEMA, "strict": True}
    answer = run.client.chat(
        QUESTION, 256, response_format={"type": "json_schema", "json_schema": asked}
    )
    try:
        jsonschema.validate(json.loads(answer.text), SCHEMA)
        told = f"an object by the schema, finish {answer.finish}"
        right = answer.finish == "stop"
    except json.JSONDecodeError as error:
        right, told = False, f"no JSON: {error.msg} at {error.pos}"
    except jsonschema.ValidationError as error:
        right, told = False, f"against the schema: {error.message}"
    return judged(right, told, "an object that the schema allows, finish stop", shown(answer.text))
