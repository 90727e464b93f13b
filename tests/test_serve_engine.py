"""The whole loop against real vLLM on a CPU: start, look, check, measure, stop.

The server is the patched v0.33.0 with the tiny checkpoint; its drafter's kernels run in Triton's
interpreter.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from imagebuild.project import Project
from serve import profile
from serve.arguments import arguments
from serve.benchmark import results
from serve.gates import gates, report
from serve.launching import process
from tests.patched import environment, trees
from tests.support.serving import ROOT, serve
from tests.test_serve_planning import cases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.patched.environment import Site

pytestmark = pytest.mark.engine

LINE = "v0.33.0"
_CHECK = """\
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.common.cli_args import make_arg_parser
import vllm.envs as envs
parser = make_arg_parser(FlexibleArgumentParser())
found = {}
for name, line, variables in json.loads(sys.stdin.read()):
    try:
        parsed = parser.parse_args(line)
        found[name] = [v for v in variables if v.startswith("VLLM_") and
                       v not in envs.environment_variables]
    except SystemExit:
        found[name] = ["the parser refused"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    project = Project(ROOT)
    root = tmp_path_factory.mktemp("serving")
    stock = trees.stock_tree(project, LINE, root / "stock")
    tree = trees.patched_tree(project, LINE, stock, root / "patched")
    return environment.overlay(environment.install(), tree, root / "site")


def interpreter(site: Site, folder: Path, *, drafts: bool) -> Path:
    """Return an interpreter with the patched vLLM, as a person's virtual environment has one.

    With drafts, Triton's kernels run in its interpreter: the drafter's inputs need them.
    """
    wrapper = folder / ("python-drafts" if drafts else "python")
    environ = site.environ()
    wanted = {name: environ[name] for name in environ if name.startswith(("VLLM_", "HF_"))}
    del wanted["VLLM_CPU_KVCACHE_SPACE"]  # the profile says how large the pool is
    wanted["PYTHONPATH"] = environ["PYTHONPATH"]
    if drafts:
        path = f"{ROOT / 'tests/serving/interpreted'}:{environ['PYTHONPATH']}"
        wanted |= {"PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in wanted.items()]
    real = shlex.quote(str(site.environment.python))
    wrapper.write_text("\n".join(["#!/bin/sh", *lines, f'exec {real} "$@"', ""]))
    wrapper.chmod(0o755)
    return wrapper


@pytest.fixture(scope="module")
def python(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interpreter(site, tmp_path_factory.mktemp("env"), drafts=False)


@pytest.fixture(scope="module")
def drafting(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interpreter(site, tmp_path_factory.mktemp("env"), drafts=True)


class User:
    """Somebody with a home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()

    def run(self, *line: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        return serve(*line, extra={"HOME": str(self.home)}, timeout=timeout)

    def ok(self, *line: str) -> str:
        done = self.run(*line)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def state(self) -> Path:
        return self.home / ".local/state/vllm-sm120"

    def stop(self) -> None:
        running = self.state / "running.json"
        if running.is_file():
            found = json.loads(running.read_text())
            process.stop(found["pid"], found["ticks"], 10)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    found = User(tmp_path_factory.mktemp("user") / "home")
    yield found
    found.stop()


def reports(user: User) -> list[report.Report]:
    paths = sorted((user.state / "reports").glob("*Z.json"))
    return [report.load(path) for path in paths]


def test_the_whole_loop_on_a_real_server_with_and_without_drafts(
    user: User, python: Path, drafting: Path
) -> None:
    out = user.ok("start", "tiny-cpu", "--wheel", str(python), "--no-mtp")
    assert "asked     capital of France: Paris" in out
    reference = user.home / "reference.json"
    user.ok("verify", "--make-reference", str(reference))
    bench = ("--depth", "0", "512", "--concurrency", "1", "2", "--pp", "128", "--tg", "16")
    user.ok("bench", *bench, "--runs", "1")
    (measured,) = (user.state / "benchmarks").glob("*.json")
    points = results.load(measured).points
    assert [(p.concurrency, p.depth) for p in points] == [(1, 0), (2, 0), (1, 512), (2, 512)]
    assert all(p.decode > 0 and p.prefill > 0 and p.first_token_ms > 0 for p in points)
    assert measured.with_suffix(".svg").read_text().startswith("<svg")
    user.ok("verify", "--full")
    user.ok("stop")

    user.ok("start", "tiny-cpu", "--wheel", str(drafting))
    status = json.loads(user.ok("status", "--json"))
    assert (status["health"], status["drafted tokens"]) == ("healthy", 3)
    (without,) = (user.state / "reports").glob("*Z.json")
    out = user.ok("verify", "--full", "--reference", str(reference), "--against", str(without))
    assert "20 passed, 0 failed, 1 not run" in out
    listed = user.ok("reports")
    assert listed.count("\n") == 2
    assert "holds" in listed
    user.ok("stop")

    plain, drafted = reports(user)
    assert plain.of_status("not run") == ["mtp-acceptance", "mtp-agreement", "fidelity", "vision"]
    assert drafted.of_status("not run") == ["vision"]
    assert [each.gate for each in drafted.results] == [gate.name for gate in gates.GATES]
    found = {each.gate: each.measured for each in drafted.results}
    assert found["kv-pool"] == "87,296 tokens (+0.0%)"
    assert found["mtp-agreement"].endswith("the first 100% alike")
    assert found["fidelity"].startswith("100.0% top-1 agreement")
    statement = json.loads(next((user.state / "reports").glob("*.intoto.json")).read_text())
    assert statement["predicate"]["result"] == "WARNED"


def test_a_server_that_dies_while_loading_says_why(
    user: User, python: Path, tmp_path: Path
) -> None:
    text = (ROOT / "serve/profiles/tiny-cpu.toml").read_text()
    path = tmp_path / "small.toml"
    path.write_text(text.replace("kv-pin = 1073741824", "kv-pin = 2097152"))
    done = user.run("start", str(path), "--wheel", str(python), "--no-mtp")
    assert done.returncode == 54
    assert "the KV pool does not hold one request of the whole context" in done.stderr
    assert not (user.state / "running.json").exists()


def lines() -> list[tuple[str, list[str], list[str]]]:
    found = []
    for name in profile.names():
        named = profile.load(name)
        model = msgspec.structs.replace(named.profile.model, revision="1" * 40)
        of = msgspec.structs.replace(named.profile, model=model)
        given = arguments(of, "MODEL", host="127.0.0.1", port=8000, mtp=True)
        found.append((name, list(given[1:]), list(of.environment)))
    return found


def asked(python: Path, script: str, data: Any) -> Any:  # noqa: ANN401
    done = subprocess.run(
        [str(python), "-c", script], input=json.dumps(data), capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_the_pinned_release_knows_every_flag_and_variable_of_every_profile(python: Path) -> None:
    found = asked(python, _CHECK, lines())
    assert found == {name: [] for name in profile.names()}


def test_a_flag_that_the_release_does_not_know_is_found(python: Path) -> None:
    name, line, _ = lines()[0]
    wrong = [(name, [*line, "--gone"], []), ("variable", line, ["VLLM_GONE", "OTHER"])]
    found = asked(python, _CHECK, wrong)
    assert found == {name: ["the parser refused"], "variable": ["VLLM_GONE"]}


def test_the_planner_counts_as_vllms_own_functions_do(python: Path, tmp_path: Path) -> None:
    wanted = cases()
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([case for case, _ in wanted]))
    done = subprocess.run(
        [str(python), str(ROOT / "tests/serving/pool_by_vllm.py"), str(path)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.strip().splitlines()[-1]) == [tokens for _, tokens in wanted]
