"""What the tiny model says, and what makes it say that.

The model knows a few topics by one word each. Its answer to a topic is a fixed text, which may hold
a passkey that it has to find in the prompt. docs/tiny.md says how the weights do that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SLOTS = "BKMLSD"
VOWELS = "AEIOU"
"""A passkey has a consonant and a vowel for each slot, such as BAKEMILOSUDA."""
KEY = "\x00"
"""In a script: the passkey that stands in the prompt."""


@dataclass(frozen=True)
class Script:
    """One answer.

    Attributes:
        word: what a prompt must hold; empty for the answer to everything else.
        answer: the text, which ends the turn.
        thought: what is thought first, if thinking is on.
        strong: whether it wins over other topics of the same prompt.
    """

    word: str
    answer: str
    thought: str
    strong: bool = False


def _call(city: str) -> str:
    return (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n"
        f"{city}\n</parameter>\n<parameter=unit>\ncelsius\n</parameter>\n</function>\n</tool_call>"
    )


def _calls(*cities: str) -> str:
    """Return several calls; what parts them is another string each time, as pieces must be."""
    text = _call(cities[0])
    for number, city in enumerate(cities[1:], 2):
        text += "\n" * number + _call(city)
    return text


_TEXTS = Path(__file__).parent / "texts"


def _text(name: str) -> str:
    return (_TEXTS / name).read_text(encoding="utf-8").rstrip("\n")


def scripts() -> tuple[Script, ...]:
    """Return all scripts; the first is the one for a prompt without a topic."""
    return (
        Script("", "This model knows nothing of that.", "No word of this is known here. "),
        Script("France", "Paris", "A capital is asked for. "),
        Script(
            "eleven",
            "One, two, three, four, five, six, seven, eight, nine, ten, eleven.",
            "Numbers in their order. ",
        ),
        Script("passkey", KEY, "It stands somewhere above. "),
        Script("lighthouse", _text("lighthouse.txt"), "Something about the coast. "),
        Script("Reykjavik", f"One call.\n{_call('Reykjavik')}", "The tool gives the weather. "),
        Script(
            "Quito",
            f"Four calls.\n{_calls('Oslo', 'Lima', 'Cairo', 'Quito')}",
            "Four places need four calls. ",
        ),
        Script("degrees", "It is 7 degrees and it rains.", "The tool answered. ", strong=True),
        Script(
            "JSON",
            '{"title": "Harbour log", "year": 1987, "tags": ["sea", "wind"], "lent": false}',
            "The schema names four keys. ",
        ),
        Script("Python", f"```python\n{_text('program.txt')}\n```", "A program, to its end. "),
        Script("story", _text("story.txt"), "Something with a beginning and an end. "),
        Script("marbles", "There are 42 marbles.", "Seventeen and twenty-five make forty-two. "),
    )
