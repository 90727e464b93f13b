"""Progress on standard error: moving bars on a terminal, one line a step elsewhere."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from imagebuild.cli.output import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagebuild.progress import Progress, Verb


class Plain:
    """One line a step, for logs."""

    @contextlib.contextmanager
    def step(
        self, verb: Verb, what: str, total: int | None = None
    ) -> Iterator[Callable[[int], None]]:
        """Print the step's line when it begins."""
        tail = "" if total is None else f"  {size(total)}"
        print(f"{verb:<9} {what}{tail}", file=sys.stderr, flush=True)
        yield lambda _: None

    def note(self, text: str) -> None:
        """Print the line."""
        print(text, file=sys.stderr, flush=True)


class Bars:
    """A bar for the step that runs, a line for each that is done."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415  (only on a terminal)

        self.console = Console(stderr=True, highlight=False)

    @contextlib.contextmanager
    def step(
        self, verb: Verb, what: str, total: int | None = None
    ) -> Iterator[Callable[[int], None]]:
        """Show a bar while the step runs."""
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(f"{verb:<9} {what}", total=total)
            yield lambda count: progress.advance(task, count)
        self.console.print(f"{verb:<9} {what}", markup=False)

    def note(self, text: str) -> None:
        """Print the line."""
        self.console.print(text, markup=False)


def reporter() -> Progress:
    """Return the progress that suits where standard error goes."""
    return Bars() if sys.stderr.isatty() else Plain()
