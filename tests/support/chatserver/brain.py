"""What the server answers: right, but for its fault."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from typing import Any

from serve.tiny.scripts import scripts
from tests.support.chatserver.faults import Fault

_TEXTS = {script.word: script.answer for script in scripts()}
CITIES = ("Oslo", "Lima", "Cairo", "Quito")


@dataclass
class Said:
    """One answer."""

    text: str = ""
    reasoning: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str = "stop"
    shift: float = 0.0


@dataclass
class Brain:
    """Answers conversations, and remembers prompts."""

    fault: Fault | None
    seen: dict[str, int] = field(default_factory=dict)
    busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has(self, fault: Fault) -> bool:
        return self.fault is fault

    def again(self, prompt: str) -> int:
        """Return how often the prompt was asked before."""
        with self.lock:
            self.seen[prompt] = self.seen.get(prompt, 0) + 1
            return self.seen[prompt] - 1

    def answer(self, body: dict[str, Any]) -> Said:
        messages = body["messages"]
        prompt = json.dumps(messages)
        before = self.again(prompt)
        text = _text(messages)
        thinks = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
        if messages[-1]["role"] == "tool":
            said = self._result()
        elif body.get("tools"):
            said = self._called(CITIES if "Quito" in text else ("Reykjavik",))
        elif "passkey" in text:
            said = self._needle(text, before)
        elif body.get("response_format"):
            said = self._object()
        elif "marbles" in text:
            said = self._thought(thinks=thinks)
        else:
            said = self._plain(text, before)
        return said

    def _result(self) -> Said:
        if self.has(Fault.IGNORED_RESULT):
            return self._called(("Reykjavik",))
        return Said("It is 7 degrees and it rains.")

    def _called(self, cities: tuple[str, ...]) -> Said:
        calls = [("get_weather", json.dumps({"city": c, "unit": "celsius"})) for c in cities]
        several = len(calls) > 1
        if self.has(Fault.BROKEN_TOOL_JSON) and not several:
            calls = [("get_weather", '{"city": "Reykjavik", "unit": ')]
        if self.has(Fault.TOOL_SCHEMA) and not several:
            calls = [("get_weather", '{"city": "Reykjavik", "unit": "kelvin"}')]
        if self.has(Fault.LOST_CALL) and several:
            calls.pop()
        return Said(calls=calls, finish="tool_calls")

    def _needle(self, text: str, before: int) -> Said:
        found = re.search(r"The passkey is (\w+)\.", text)
        key = found[1] if found else "nothing"
        cold = self.has(Fault.WRONG_NEEDLE) and not before
        if cold or (self.has(Fault.STALE_CACHE) and before):
            key = key[::-1]
        return Said(key)

    def _object(self) -> Said:
        if self.has(Fault.NO_JSON):
            return Said("A book about a harbour.")
        text = _TEXTS["JSON"]
        return Said(text.replace("1987", '"long ago"') if self.has(Fault.BROKEN_SCHEMA) else text)

    def _thought(self, *, thinks: bool) -> Said:
        right = "There are 42 marbles."
        if self.has(Fault.UNASKED_THOUGHT) and not thinks:
            return Said(right, "I add them.")
        if not thinks or self.has(Fault.NO_THOUGHT):
            return Said(right)
        if self.has(Fault.LEAKING_THOUGHT):
            return Said(f"I add them.</think>{right}", "Let me see.")
        return Said(right, "I add them.")

    def _plain(self, text: str, before: int) -> Said:
        if "colour" in text:
            return Said("Blue" if self.has(Fault.COLOUR_BLIND) else "Red")
        if "France" in text:
            return Said("Lyon" if self.has(Fault.WRONG_ANSWER) else "Paris")
        if "lighthouse" in text:
            return self._lighthouse(before)
        if "Python" in text:
            return self._program()
        if "story" in text:
            return self._story()
        word = next((w for w in _TEXTS if w and w in text), "")
        return Said(_TEXTS[word])

    def _lighthouse(self, before: int) -> Said:
        said = _TEXTS["lighthouse"]
        crowded = self.has(Fault.CROWD) and self.busy > 1
        if crowded or (self.has(Fault.NONDETERMINISM) and before == 1):
            return Said(said.replace("lamp", "lantern"))
        return Said(said, shift=0.5 if self.has(Fault.DRIFT) and before == 1 else 0.0)

    def _program(self) -> Said:
        said = _TEXTS["Python"]
        if self.has(Fault.INVALID_PYTHON):
            return Said(said.replace("    main()", "    main("))
        if self.has(Fault.UNFINISHED):
            cut = said[: said.index("def overdue")]
            return Said(cut.rstrip(), finish="length")
        if self.has(Fault.MTP_DIVERGES):
            return Said("# " + said)
        return Said(said)

    def _story(self) -> Said:
        said = _TEXTS["story"]
        if self.has(Fault.REPETITION):
            start = said[: len(said) * 2 // 3]
            return Said(start + " and it rang and it rang" * 25, finish="length")
        return Said(said)


def _text(messages: list[dict[str, Any]]) -> str:
    content = messages[-1].get("content") or ""
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content)
    return str(content)
