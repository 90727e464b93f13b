"""What long work reports while it runs; the command line decides how that looks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

Verb = Literal["download", "verify", "unpack", "apply", "pack", "push"]


class Progress(Protocol):
    """A receiver of progress."""

    def step(
        self, verb: Verb, what: str, total: int | None = None
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Announce one piece of work.

        Args:
            verb: what is being done.
            what: to which file, for people.
            total: its size in bytes, if known.

        Returns:
            A context; inside it, call the value with the number of bytes newly done.
        """

    def note(self, text: str) -> None:
        """Say one line."""


class Silent:
    """Progress that nobody looks at."""

    @contextlib.contextmanager
    def step(
        self, verb: Verb, what: str, total: int | None = None
    ) -> Iterator[Callable[[int], None]]:
        """Ignore the step."""
        del verb, what, total
        yield lambda _: None

    def note(self, text: str) -> None:
        """Ignore the line."""
