"""A registry on loopback that misbehaves as told; the real one is in test_registry.py too."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Answer:
    """One answer.

    Attributes:
        status: the status.
        body: the content.
        headers: more headers.
        length: the declared length, if it is a lie.
        pause: seconds before the second half of the body.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    pause: float = 0.0


@dataclass
class Request:
    """One request, as the server saw it."""

    path: str
    authorization: str | None
    accept: str | None
    method: str = "GET"
    body: bytes = b""
    content_type: str | None = None


class ScriptedRegistry:
    """Answers each request by what `script` says of it.

    Attributes:
        requests: what was asked, in order.
    """

    def __init__(self, script: Callable[[Request], Answer]) -> None:
        self.requests: list[Request] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                head = self.headers
                length = int(head.get("Content-Length") or 0)
                request = Request(
                    self.path,
                    head.get("Authorization"),
                    head.get("Accept"),
                    self.command,
                    self.rfile.read(length),
                    head.get("Content-Type"),
                )
                outer.requests.append(request)
                answer = script(request)
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                length = len(answer.body) if answer.length is None else answer.length
                self.send_header("Content-Length", str(length))
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                if self.command != "HEAD":
                    half = len(answer.body) // 2 if answer.pause else 0
                    self.wfile.write(answer.body[:half])
                    time.sleep(answer.pause)
                    self.wfile.write(answer.body[half:])

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _answer  # noqa: N815  (http.server)

            def log_message(self, *_: Any) -> None:  # noqa: ANN401
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def host(self) -> str:
        """The address, as in an image reference."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
