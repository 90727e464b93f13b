"""A Hugging Face hub on loopback with one repository, for its real client; it can cut."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

COMMIT = "0123456789" * 4


class ModelHub:
    """The hub, as a context.

    Args:
        root: the repository's files.
        home: where its client caches.
    """

    def __init__(self, root: Path, home: Path) -> None:
        self.root = root
        self.cut_after: int | None = None
        self.ranges: list[str] = []
        self.served: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.environ = {
            "HF_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
        }

    def __enter__(self) -> ModelHub:  # noqa: PYI034
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: ModelHub

    def log_message(self, *_arguments: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **more: str) -> None:
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.cut_after
        if cut is not None and len(body) > cut:
            self.wfile.write(body[:cut])
            self.close_connection = True
            return
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        known = ("/main", f"/{COMMIT}")
        if path.startswith("/api/models/own/model/tree/"):
            self._tree(path.rpartition("/")[2])
        elif path.startswith("/api/models/own/model"):
            revision = path.partition("/revision")[2] or "/main"
            if revision not in known:
                self._answer(404, X_Error_Code="RevisionNotFound")
                return
            files = [{"rfilename": file.name} for file in sorted(self.hub.root.iterdir())]
            answer = {"id": "own/model", "sha": COMMIT, "siblings": files}
            self._answer(200, json.dumps(answer).encode(), Content_Type="application/json")
        elif path.startswith("/own/model/resolve/"):
            self._file(path.rpartition("/")[2])
        else:
            self._answer(404, X_Error_Code="RepoNotFound")

    def _tree(self, revision: str) -> None:
        if revision not in {"main", COMMIT}:
            self._answer(404, X_Error_Code="RevisionNotFound")
            return
        files = [
            {
                "type": "file", "path": file.name, "size": file.stat().st_size,
                "oid": hashlib.sha1(file.read_bytes()).hexdigest(),  # noqa: S324 # git's own
            }
            for file in sorted(self.hub.root.iterdir())
        ]  # fmt: skip
        self._answer(200, json.dumps(files).encode(), Content_Type="application/json")

    def _file(self, name: str) -> None:
        data = (self.hub.root / name).read_bytes()
        more = {"X_Repo_Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        asked = self.headers.get("Range")
        if self.command == "GET":
            self.hub.served.append(name)
        if not asked:
            self._answer(200, data, **more)
            return
        if self.command == "GET":
            self.hub.ranges.append(asked)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else len(data)]
        end = int(first) + len(part) - 1
        self._answer(206, part, Content_Range=f"bytes {first}-{end}/{len(data)}", **more)
