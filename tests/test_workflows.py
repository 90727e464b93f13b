"""The workflows only call what exists, with the least rights, and actions by their commit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagebuild.cli.parser import make_parser, with_default_command
from tests.support.command import ROOT

FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
WORKFLOWS: dict[str, dict[Any, Any]] = {p.name: yaml.safe_load(p.read_text()) for p in FILES}
JOBS = {
    f"{file}:{name}": job
    for file, workflow in WORKFLOWS.items()
    for name, job in workflow["jobs"].items()
}
STEPS = [
    pytest.param(step, id=f"{where}:{number}")
    for where, job in JOBS.items()
    for number, step in enumerate(job["steps"])
]
RUNS = [param for param in STEPS if "run" in param.values[0]]  # type: ignore[operator]
USES = [param for param in STEPS if "uses" in param.values[0]]  # type: ignore[operator]
WRITES = {
    "upstream.yml:bump": {"contents": "write", "pull-requests": "write"},
    "release.yml:image": {
        "contents": "write",
        "packages": "write",
        "pull-requests": "write",
        "id-token": "write",
    },
    "release.yml:build": {"contents": "read", "id-token": "write", "attestations": "write"},
}
"""The jobs that may write, and what; every other one reads the contents or nothing."""


def words(line: str) -> list[str]:
    """Return a step's words, an expression of the workflow as one that a matrix could give."""
    known = {"matrix.platform": "linux/amd64", "matrix.os": "ubuntu-24.04", "matrix.name": "amd64"}
    filled = re.sub(r"\$\{\{ *([a-z.]+) *\}\}", lambda m: known[m[1]], line)
    return shlex.split(filled)


def test_there_are_three() -> None:
    assert list(WORKFLOWS) == ["ci.yml", "release.yml", "upstream.yml"]


@pytest.mark.parametrize("step", RUNS)
def test_a_step_is_one_command_that_exists(step: dict[str, str]) -> None:
    line = step["run"]
    assert "\n" not in line.strip()
    assert "||" not in line
    for part in line.split("&&"):
        command = words(part)
        match command:
            case ["python", "build.py", *arguments]:
                make_parser().parse_args(with_default_command(arguments))
            case ["python", "-m", "pip", "install", "-e", target]:
                assert target in (".", ".[test]")
            case ["pytest" | "ruff" | "mypy" | "zizmor", *_]:
                assert command[0] in (ROOT / "pyproject.toml").read_text()
            case _:
                assert command[0] in ("sha256sum", "diff", "cd", "shellcheck")


def test_an_unknown_command_of_build_py_is_caught() -> None:
    for arguments in (["build", "--push"], ["bump", "--sign"], ["check", "--frobnicate"]):
        with pytest.raises(SystemExit):
            make_parser().parse_args(with_default_command(arguments))


@pytest.mark.parametrize(
    "arguments", [["bump", "--help"], ["status", "--help"], ["drop", "--help"]]
)
def test_what_the_workflows_call_explains_itself(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "build.py", *arguments], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("step", USES)
def test_an_action_is_pinned_by_its_commit(step: dict[str, str]) -> None:
    assert re.fullmatch(r"[\w-]+/[\w.-]+@[0-9a-f]{40}", step["uses"])


def test_each_pin_says_its_version_and_is_the_same_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for path in FILES:
        uses = re.findall(r"uses: (\S+)@(\S+)(.*)$", path.read_text(), re.MULTILINE)
        for action, commit, comment in uses:
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{path.name}: {action}"
            pins.setdefault(action, set()).add(commit + comment)
    assert pins
    assert {action: found for action, found in pins.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_no_rights_of_its_own(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {}


@pytest.mark.parametrize("where", JOBS)
def test_a_job_has_the_least_rights_and_an_end(where: str) -> None:
    job = JOBS[where]
    allowed = WRITES.get(where, {"contents": "read"})
    assert job["permissions"] in (allowed, {})
    assert job["timeout-minutes"] <= 60
    assert re.fullmatch(r"ubuntu-\d\d\.\d\d|\$\{\{ matrix\.os \}\}", job["runs-on"])


@pytest.mark.parametrize("step", USES)
def test_a_checkout_leaves_no_credentials_behind(step: dict[str, Any]) -> None:
    if step["uses"].startswith("actions/checkout@"):
        assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("name", WORKFLOWS)
def test_nothing_runs_with_rights_on_other_people_s_code(name: str) -> None:
    triggers = WORKFLOWS[name][True]  # YAML reads the key `on` as true
    assert not {"pull_request_target", "workflow_run", "issue_comment"} & set(triggers)
    if "pull_request" in triggers:
        assert not [where for where in WRITES if where.startswith(name)]


def test_following_upstream_runs_daily_and_never_twice_at_once() -> None:
    workflow = WORKFLOWS["upstream.yml"]
    (schedule,) = workflow[True]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* \*", schedule["cron"])
    assert workflow["concurrency"]["cancel-in-progress"] is False


def test_two_runner_images_build_and_are_compared() -> None:
    jobs = WORKFLOWS["ci.yml"]["jobs"]
    images = [entry["os"] for entry in jobs["build"]["strategy"]["matrix"]["include"]]
    assert len(set(images)) == 2
    assert jobs["reproducible"]["needs"] == "build"
    assert all(image in jobs["reproducible"]["steps"][-1]["run"] for image in images)


def test_no_finding_of_zizmor() -> None:
    done = subprocess.run(
        [_script("zizmor"), "--offline", "--no-progress", str(FOLDER)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_zizmor_would_find_something(tmp_path: Path) -> None:
    text = (FOLDER / "ci.yml").read_text()
    (tmp_path / "ci.yml").write_text(text.replace("permissions: {}\n", "permissions: write-all\n"))
    done = subprocess.run(
        [_script("zizmor"), "--offline", "--no-progress", str(tmp_path / "ci.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "excessive-permissions" in done.stdout


def _script(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} comes with pip install -e '.[test]'"
    return found


def test_renovate_sees_the_pins_of_base_images_and_actions() -> None:
    config = json.loads((ROOT / "renovate.json").read_text())
    assert "github-actions" in config["enabledManagers"]
    (manager,) = config["customManagers"]
    pattern = manager["matchStrings"][0].replace("(?<", "(?P<")
    lock = (ROOT / "upstream.lock").read_text()
    found = {match["depName"]: match["currentDigest"] for match in re.finditer(pattern, lock)}
    pinned = re.findall(r'ref = "(docker\.io/(?:nvidia|pytorch)/[^:]+):[^"]+"\ndigest', lock)
    assert set(found) == set(pinned)
    assert found
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in found.values())
