"""What upstream says of a file: from a clone, or from GitHub, and said plainly where it is not."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from imagebuild import upstream
from imagebuild.following import history
from tests.support import simple_index, tiny, upstreams

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD = upstream.parse(tiny.upstream_lock(), Path("upstream.lock")).lines[tiny.LINE]
NEW = msgspec.structs.replace(OLD, tag="v1.3.0", version="1.3.0")
PATHS = (tiny.KERNELS, tiny.WORKER)


def test_a_clone_tells_the_commits_on_the_files(tmp_path: Path) -> None:
    made = upstreams.after("half of the patch merged", tmp_path)
    made.git.run("tag", "v1.3.0")
    found = history.read(str(tmp_path), OLD, NEW, PATHS, offline=True)
    assert {path: [c.subject for c in commits] for path, commits in found.commits.items()} == {
        tiny.KERNELS: ["half of the patch merged"]
    }
    assert found.unreachable == ()


def test_a_clone_without_the_tags_says_so(tmp_path: Path) -> None:
    upstreams.Upstream.at_release(tmp_path)
    found = history.read(str(tmp_path), OLD, NEW, PATHS, offline=False)
    assert found.commits == {}
    assert "v1.3.0" in found.unreachable[0]


def test_no_such_clone_and_no_network_are_said_not_raised(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert history.read(nowhere, OLD, NEW, PATHS, offline=False).unreachable == (
        f"{nowhere}: no such folder",
    )
    assert history.read(None, OLD, NEW, PATHS, offline=True).unreachable == ("--offline",)
    closed = history.of_github(OLD, NEW, PATHS, simple_index.closed_port())
    assert "GitHub cannot be asked" in closed.unreachable[0]


class _GitHub(BaseHTTPRequestHandler):
    asked: list[str]
    status = 200
    body: bytes | None = None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args

    def do_GET(self) -> None:
        self.asked.append(self.path)
        answer: object = {"body": "## Fixes\n* Mask state loads (#42)\n* Other (#43)\n"}
        if "/commits" in self.path:
            message = "Mask state loads (#42)\n\nLong text."
            answer = [{"sha": "a" * 40, "commit": {"message": message}}]
            answer = answer if "kernels" in self.path else []
        data = self.body or json.dumps(answer).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def github() -> Iterator[tuple[str, type[_GitHub]]]:
    handler = type("H", (_GitHub,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()
    thread.join()


def test_github_tells_commits_and_the_lines_of_the_release_notes(
    github: tuple[str, type[_GitHub]],
) -> None:
    address, handler = github
    found = history.of_github(OLD, NEW, PATHS, address)
    assert found.commits == {tiny.KERNELS: (history.Commit("a" * 40, "Mask state loads (#42)"),)}
    assert found.notes == ("* Mask state loads (#42)",)
    assert "since=2026-11-02T10%3A12%3A56Z" in handler.asked[0]
    assert handler.asked[-1] == "/repos/vllm-project/vllm/releases/tags/v1.3.0"


def test_a_refusal_names_the_ways_out(github: tuple[str, type[_GitHub]]) -> None:
    address, handler = github
    handler.status = 403
    assert "HTTP 403" in history.of_github(OLD, NEW, PATHS, address).unreachable[0]


def test_nonsense_is_not_taken_for_an_answer(github: tuple[str, type[_GitHub]]) -> None:
    address, handler = github
    handler.body = b'{"message": "hello"}'
    assert "something else" in history.of_github(OLD, NEW, PATHS, address).unreachable[0]
