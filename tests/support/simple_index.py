"""A package index on loopback that fails on demand, and pip configured to use it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

from imagebuild.fetch.transport import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pytest

HTML = "text/html"
JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True)
class Fault:
    """What one answer does instead of the right thing; each field alone.

    Attributes:
        status: the answer's status, with no body.
        headers: more headers.
        cut: send this many bytes of the body, then close the connection.
        body: another body.
        ranges: whether to heed a Range header.
        shift: by how many bytes a partial answer begins elsewhere than asked for.
        length: whether to say how long the body is.
        before_cut: called before the connection is closed.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    body: bytes | None = None
    ranges: bool = True
    shift: int = 0
    length: bool = True
    before_cut: Callable[[], None] | None = None


@dataclass
class Asked:
    """One request that arrived."""

    path: str
    headers: dict[str, str]


class SimpleIndex:
    """The server. Faults are taken from `faults` in order, one for each request of a file."""

    def __init__(self, *, kind: str = HTML, etag: bool = True) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.page_faults: list[Fault] = []
        self.stated: dict[str, str] = {}
        self.yanked: set[str] = set()
        self.asked: list[Asked] = []
        self.kind = kind
        self.etag = etag
        self.page: bytes | None = None
        handler = type("Handler", (_Handler,), {"index": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/simple/"

    @property
    def file_requests(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.startswith("/files/")]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def project_page(self) -> bytes:
        digests = {
            name: self.stated.get(name, hashlib.sha256(data).hexdigest())
            for name, data in self.files.items()
        }
        if self.kind == JSON:
            listed = [
                {
                    "filename": name,
                    "url": f"/files/{name}",
                    "hashes": {"sha256": digests[name]},
                    "size": len(data),
                    "upload-time": "2026-11-02T10:12:56.000000Z",
                    "yanked": name in self.yanked,
                }
                for name, data in self.files.items()
            ]
            page = {"meta": {"api-version": "1.1"}, "name": "vllm", "files": listed, "versions": []}
            return json.dumps(page).encode()
        links = "".join(
            f'<a href="../../files/{name}#sha256={digests[name]}"'
            f"{' data-yanked=broken' if name in self.yanked else ''}>{name}</a>\n"
            for name in self.files
        )
        return f"<!DOCTYPE html><html><body>\n{links}</body></html>".encode()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that are killed or hang up are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    index: ClassVar[SimpleIndex]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args

    def do_GET(self) -> None:
        index = self.index
        index.asked.append(Asked(self.path, dict(self.headers.items())))
        if self.path == "/simple/vllm/":
            fault = index.page_faults.pop(0) if index.page_faults else Fault()
            page = index.page or index.project_page()
            self._answer(page, fault, {"Content-Type": index.kind})
        elif self.path.removeprefix("/files/") in index.files:
            fault = index.faults.pop(0) if index.faults else Fault()
            data = index.files[self.path.removeprefix("/files/")]
            tag = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:16]}"'} if index.etag else {}
            self._answer(data, fault, tag)
        else:
            self._answer(b"", Fault(status=404), {})

    def _answer(self, data: bytes, fault: Fault, headers: Mapping[str, str]) -> None:
        if fault.status is not None:
            self.send_response(fault.status)
            for name, value in {**fault.headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()
            return
        body = data if fault.body is None else fault.body
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        unless = self.headers.get("If-Range")
        if asked and fault.ranges and unless in {None, headers.get("ETag")}:
            start = int(asked[1]) + fault.shift
            if start >= len(body):
                self._answer(b"", Fault(status=416), {})
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            body = body[start:]
        else:
            self.send_response(200)
        if fault.length:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        for name, value in {**headers, **fault.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body if fault.cut is None else body[: fault.cut])
            self.wfile.flush()
        if fault.cut is not None:
            if fault.before_cut is not None:
                fault.before_cut()
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(*, kind: str = HTML, etag: bool = True) -> Iterator[SimpleIndex]:
    """Run an index for the block."""
    index = SimpleIndex(kind=kind, etag=etag)
    try:
        yield index
    finally:
        index.stop()


def plain_pip(environment: Mapping[str, str], **settings: str) -> dict[str, str]:
    """Return an environment in which pip is configured by `settings` alone."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("PIP_") and not name.lower().endswith("_proxy")
    }
    chosen = {f"PIP_{name.upper()}": value for name, value in settings.items()}
    return kept | {"PIP_CONFIG_FILE": "/dev/null", "NETRC": "/dev/null"} | chosen


def configure(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """Configure pip by `settings` alone, for this process and its children."""
    plain = plain_pip(os.environ, **settings)
    for name in os.environ.keys() - plain.keys():
        monkeypatch.delenv(name)
    for name, value in plain.items():
        monkeypatch.setenv(name, value)


class Sleeps(list[float]):
    """Does not sleep, but remembers for how long it should have."""

    def patience(self) -> Patience:
        return Patience(attempts=3, sleep=self.append)


def closed_port() -> str:
    """Return an address of this machine that refuses connections."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}/simple/"
