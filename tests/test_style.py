"""The project's own code: formatted, linted, typed, and speaking of nothing but itself."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.command import ROOT

_LONGEST = 350


@pytest.mark.parametrize(
    "command",
    [("ruff", "check"), ("ruff", "format", "--check"), ("mypy",)],
    ids=" ".join,
)
def test_ruff_and_mypy_find_nothing(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name]


def test_no_module_is_longer_than_a_room() -> None:
    long = {
        name: lines
        for name in _tracked()
        if re.match(r"(imagebuild|serve)/.*\.py$", name)
        and (lines := len((ROOT / name).read_text().splitlines())) > _LONGEST
    }
    assert long == {}


def test_shell_scripts_are_short_and_strict() -> None:
    scripts = [name for name in _tracked() if name.endswith(".sh") or name == ".ci/run"]
    assert scripts
    for name in scripts:
        lines = (ROOT / name).read_text().splitlines()
        assert lines[0] == "#!/usr/bin/env bash"
        assert "set -euo pipefail" in lines
        assert len(lines) < 60


def test_dockerfile_overlay_pulls_nothing_but_its_base() -> None:
    text = (ROOT / "Dockerfile.overlay").read_text()
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["${BASE}"]
    assert "# syntax=" not in text


def test_building_knows_nothing_of_serving_and_serving_only_what_both_share() -> None:
    shared = {
        "attesting.releaselock", "checkpoint.headers", "checkpoint.hub", "checkpoint.source",
        "cli.running", "errors", "files", "schema", "upstream",
    }  # fmt: skip
    for name in _tracked():
        if not name.endswith(".py"):
            continue
        text = (ROOT / name).read_text()
        if name.startswith("imagebuild/"):
            assert not re.search(r"^\s*(from|import) serve\b", text, re.MULTILINE), name
        if name.startswith("serve/"):
            used = re.findall(r"^\s*from imagebuild\.?(\S*) import (\w+)", text, re.MULTILINE)
            whole = {
                module if module in shared else f"{module}.{part}".strip(".")
                for module, part in used
            }
            assert whole <= shared, (name, whole - shared)
