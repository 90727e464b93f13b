"""Images: a plain colour is named."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING

from serve.gates.result import Result, judged, not_run, shown

if TYPE_CHECKING:
    from serve.gates.run import Run

_SIZE = 64
_RED = b"\xe0\x10\x10"


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def picture(colour: bytes, size: int = _SIZE) -> bytes:
    """Return a PNG image of one colour (PNG specification, third edition, section 5)."""
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    rows = (b"\x00" + colour * size) * size
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


def colour(run: Run) -> Result:
    """A red square is called red."""
    if not run.profile.model.vision:
        return not_run("the profile serves no images")
    image = base64.b64encode(picture(_RED)).decode()
    answer = run.client.chat(
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
                    {"type": "text", "text": "Which colour is this square? Answer with one word."},
                ],
            }
        ],
        32,
    )
    return judged("red" in answer.text.lower(), f"{shown(answer.text)!r}", "red")
