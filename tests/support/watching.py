"""Progress that tests can look at afterwards."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagebuild.progress import Verb


@dataclass
class Watching:
    """Keeps every step, the bytes it reported, and every note."""

    steps: list[tuple[Verb, str, int | None]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def step(
        self, verb: Verb, what: str, total: int | None = None
    ) -> Iterator[Callable[[int], None]]:
        number = len(self.steps)
        self.steps.append((verb, what, total))
        self.done.append(0)

        def advance(count: int) -> None:
            self.done[number] += count

        yield advance

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def verbs(self) -> list[Verb]:
        return [verb for verb, _, _ in self.steps]
