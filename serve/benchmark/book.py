"""The text that prompts are cut from: the same each time, with no download."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SENTENCES = 6000
_WHO = ("The pilot", "A clerk", "Her brother", "The smith", "An old woman", "The teacher",
        "Somebody", "The harbour master", "A boy with a lamp", "The cook")  # fmt: skip
_DID = ("counted", "carried", "forgot", "painted", "sold", "repaired", "watched", "hid",
        "described", "measured")  # fmt: skip
_WHAT = ("nine ropes", "the green boat", "a box of letters", "the last map", "two ladders",
         "the bell", "a broken clock", "the winter stores", "an empty cage",
         "the blue door")  # fmt: skip
_WHEN = ("before the tide turned", "on a Tuesday", "while it rained", "after the ferry had left",
         "without a word", "for the third time", "by candle", "when the fog came",
         "in the year of the flood", "at noon")  # fmt: skip


def text(sentences: int = SENTENCES) -> str:
    """Return so many sentences; the same every time."""
    told = random.Random("book")  # noqa: S311 # not a secret
    parts = []
    for number in range(sentences):
        words = [told.choice(part) for part in (_WHO, _DID, _WHAT, _WHEN)]
        parts.append(" ".join(words) + ("." if number % 7 else ".\n\n"))
    return " ".join(parts)


@contextmanager
def served() -> Iterator[str]:
    """Serve the text on loopback and give its address; llama-benchy takes only HTTP."""
    data = text().encode()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

        def do_GET(self) -> None:
            """Give the text, whatever is asked for."""
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/book.txt"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
