"""One pull request a release. GitHub cannot be had here: a fake of the four calls that are used.

The pushes are real, to a bare repository on this disk.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from imagebuild.cli import main
from imagebuild.errors import RegistryError, UsageError
from imagebuild.fetch.git import Git, environment
from imagebuild.following.pullrequest import BOT, Change, Target, publish
from imagebuild.project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE = "v1.3.0"
BRANCH = f"bump/{LINE}"


@dataclass
class GitHub:
    """The pull requests of one repository."""

    pulls: list[dict[str, Any]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    status: int = 200
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    github: ClassVar[GitHub]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        del format, args

    def _answer(self, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(self.github.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> dict[str, Any]:
        self.github.calls.append(self.command)
        assert self.headers["Authorization"] == "Bearer secret"
        return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self) -> None:
        self.github.calls.append("GET")
        asked = parse_qs(urlsplit(self.path).query)
        assert asked == {"state": ["all"], "head": [f"owner:{BRANCH}"], "base": ["main"]}
        self._answer(self.github.pulls)

    def do_POST(self) -> None:
        body = self._body()
        made = {"number": 7, "state": "open", **body}
        if self.github.status < 400:
            self.github.pulls.append(made)
        self._answer(made)

    def do_PATCH(self) -> None:
        self.github.pulls[0] |= self._body()
        self._answer(self.github.pulls[0])


@pytest.fixture
def github() -> Iterator[GitHub]:
    found = GitHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (_Handler,), {"github": found}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    with contextlib.closing(server.socket):
        yield found
        server.shutdown()
        thread.join()


@dataclass
class Checkout:
    """A clone of a bare repository, with a line that was just written into it."""

    git: Git
    remote: Path
    target: Target

    def publish(self, title: str = "Follow vLLM 1.3.0", body: str = "The report.") -> str:
        change = Change(LINE, ("upstream.lock", f"patches/{LINE}"), title, body)
        return publish(Project(self.git.folder), self.target, change)

    def there(self, *arguments: str) -> str:
        return Git(self.remote, bare=True).text(*arguments)

    def write(self, text: str) -> None:
        folder = self.git.folder / "patches" / LINE
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "series").write_text(text)


@pytest.fixture
def checkout(tmp_path: Path, github: GitHub) -> Checkout:
    remote = tmp_path / "remote.git"
    folder = tmp_path / "checkout"
    subprocess.run(["git", "init", "-q", "--bare", remote], check=True, env=environment())
    git = Git(folder, protocols="file")
    folder.mkdir()
    git.run("init", "--quiet", "--initial-branch=main", str(folder))
    git.run("config", "user.name", "A Maintainer")
    git.run("config", "user.email", "maintainer@example.org")
    (folder / "upstream.lock").write_text("one line\n")
    (folder / "other").write_text("not part of it\n")
    git.run("add", "--all")
    git.run("commit", "--quiet", "--message", "start")
    git.run("push", "--quiet", str(remote), "main")
    (folder / "upstream.lock").write_text("two lines\n")
    (folder / "other").write_text("changed by hand\n")
    made = Checkout(git, remote, Target("owner/name", "secret", str(remote), github.url))
    made.write("a\n")
    return made


def test_the_first_run_pushes_a_branch_and_opens_a_pull_request(
    checkout: Checkout, github: GitHub
) -> None:
    assert checkout.publish() == "opened pull request #7"
    assert github.pulls[0]["head"] == BRANCH
    assert github.pulls[0]["body"] == "The report."
    assert checkout.there("show", f"{BRANCH}:patches/{LINE}/series") == "a"
    assert checkout.there("log", "--format=%ae", f"main..{BRANCH}") == BOT[1]


def test_only_what_belongs_to_the_line_is_pushed_and_nothing_here_is_touched(
    checkout: Checkout,
) -> None:
    before = checkout.git.text("status", "--porcelain")
    checkout.publish()
    assert checkout.there("show", f"{BRANCH}:other") == "not part of it"
    assert checkout.git.text("status", "--porcelain") == before
    assert checkout.git.text("branch", "--show-current") == "main"


def test_the_same_again_does_nothing(checkout: Checkout, github: GitHub) -> None:
    checkout.publish()
    head = checkout.there("rev-parse", BRANCH)
    github.calls.clear()
    assert checkout.publish() == "pull request #7: unchanged"
    assert checkout.there("rev-parse", BRANCH) == head
    assert github.calls == ["GET"]


def test_a_later_run_updates_the_same_pull_request(checkout: Checkout, github: GitHub) -> None:
    checkout.publish()
    checkout.write("a\nb\n")
    assert checkout.publish(body="Another report.") == "updated pull request #7: pushed"
    assert checkout.there("show", f"{BRANCH}:patches/{LINE}/series") == "a\nb"
    assert [pull["body"] for pull in github.pulls] == ["Another report."]


def test_a_branch_on_which_somebody_works_is_left_alone(checkout: Checkout, github: GitHub) -> None:
    checkout.publish()
    git = checkout.git
    git.run("fetch", "--quiet", str(checkout.remote), BRANCH)
    tree = git.text("rev-parse", "FETCH_HEAD^{tree}")
    repair = git.text("commit-tree", tree, "-p", "FETCH_HEAD", "-m", "repair")
    git.run("push", "--quiet", str(checkout.remote), f"{repair}:refs/heads/{BRANCH}")
    checkout.write("a\nb\n")
    github.calls.clear()
    assert checkout.publish() == f"left alone: maintainer@example.org works on {BRANCH}"
    assert checkout.there("rev-parse", BRANCH) == repair
    assert github.calls == ["GET"]


def test_a_closed_pull_request_is_not_opened_again(checkout: Checkout, github: GitHub) -> None:
    github.pulls.append({"number": 3, "state": "closed", "title": "t"})
    assert checkout.publish() == f"left alone: pull request #3 for {BRANCH} was closed"
    assert checkout.there("branch", "--list", BRANCH) == ""


def test_a_refusal_names_the_permissions(checkout: Checkout, github: GitHub) -> None:
    github.status = 403
    with pytest.raises(RegistryError) as caught:
        checkout.publish()
    assert "pull-requests: write" in str(caught.value.next_command)


def test_the_token_stands_in_no_argument(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = subprocess.run

    def watch(command: list[str], **options: Any) -> Any:  # noqa: ANN401
        seen.extend(command)
        return real(command, **options)

    monkeypatch.setattr("imagebuild.following.pullrequest.subprocess.run", watch)
    checkout.publish()
    assert seen
    assert not any("secret" in word for word in seen)


def test_without_a_workflow_s_environment_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    assert main(["bump", "--pull-request"], tmp_path) == UsageError.exit_code
    assert "GITHUB_TOKEN" in capsys.readouterr().err


def test_the_target_is_what_the_workflow_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("GITHUB_TOKEN", "t"),
        ("GITHUB_REPOSITORY", "o/n"),
        ("GITHUB_SERVER_URL", "https://github.com"),
        ("GITHUB_API_URL", "https://api.github.com"),
        ("GITHUB_REF_NAME", "main"),
    ):
        monkeypatch.setenv(name, value)
    found = Target.of_environment()
    assert (found.remote, found.base) == ("https://github.com/o/n.git", "main")
    assert Target.of_environment("trunk").base == "trunk"


def test_what_was_published_has_a_branch_of_its_own(
    checkout: Checkout, github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = "release/1.3.0-sm120.1"
    monkeypatch.setattr("tests.test_pullrequest.BRANCH", branch)
    change = Change(
        "1.3.0-sm120.1", ("upstream.lock",), "Published 1.3.0+sm120.1", "Pushed.", kind="release"
    )
    told = publish(Project(checkout.git.folder), checkout.target, change)
    assert told.startswith("opened pull request #7")
    assert checkout.there("show", f"{branch}:upstream.lock") == "two lines"
    assert checkout.there("show", f"{branch}:other") == "not part of it"
    assert github.pulls[0]["base"] == "main"


def test_what_is_not_recorded_is_not_proposed(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[1]
    assert main(["build", "--pull-request"], root) == UsageError.exit_code
    assert "--record" in capsys.readouterr().err
