"""What one vLLM module logs, also where vLLM sets up its logging anew in between."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Texts(logging.Filter):
    """A filter, since new logging configurations take handlers away and leave filters."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            self.texts.append(record.getMessage())
        return True


@contextmanager
def warnings_of(module: str) -> Iterator[list[str]]:
    """Give the warnings that the module logs inside the block, those said once included."""
    from vllm.logger import _print_warning_once

    _print_warning_once.cache_clear()
    kept, logger = _Texts(), logging.getLogger(f"vllm.model_executor.{module}")
    logger.addFilter(kept)
    try:
        yield kept.texts
    finally:
        logger.removeFilter(kept)
