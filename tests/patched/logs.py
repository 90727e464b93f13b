"""What vLLM logs, caught without its own handlers: its loggers do not pass records on."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def caught() -> Iterator[list[logging.LogRecord]]:
    """Give the records of INFO and above that vLLM logs inside the block."""
    handler, logger = _Keep(), logging.getLogger("vllm")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.records
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
