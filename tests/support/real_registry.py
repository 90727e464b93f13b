"""The distribution project's own registry on loopback, behind a wire that counts and can be cut."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK = 1 << 16


class RealRegistry:
    """A registry on a free port; `docker-registry` must be on PATH."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def host(self) -> str:
        """The address, as in an image reference."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        storage = {"filesystem": {"rootdirectory": str(self._folder / "data")}}
        config = {"version": 0.1, "storage": storage, "http": {"addr": self.host}}
        settings = self._folder / "registry.yml"
        settings.write_text(json.dumps(config))
        self._log = (self._folder / "registry.log").open("wb")
        command = ["docker-registry", "serve", str(settings)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._log is not None
        self._process.terminate()
        self._process.wait()
        self._log.close()


class Wire:
    """Forwards connections to a port of loopback and counts what clients send.

    Attributes:
        sent: bytes from clients, headers included.
        cut: break a connection once when this many bytes have come from clients; None for never.
        cuts: how often a connection was broken.
    """

    def __init__(self, port: int, cut: int | None = None) -> None:
        self.sent = 0
        self.cut = cut
        self.cuts = 0
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def host(self) -> str:
        """The address, as in an image reference."""
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            for one, other, counted in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._forward, args=(one, other, counted), daemon=True
                ).start()

    def _forward(self, one: socket.socket, other: socket.socket, counted: bool) -> None:  # noqa: FBT001
        try:
            while data := one.recv(_CHUNK):
                if counted and self._count(len(data)):
                    break
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        one.close()

    def _count(self, length: int) -> bool:
        with self._lock:
            self.sent += length
            if self.cut is None or self.sent < self.cut:
                return False
            self.cut = None
            self.cuts += 1
            return True
