"""The command line: help, defaults, errors as text and JSON, and what it says of itself in docs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from imagebuild import errors
from imagebuild.cli import main
from imagebuild.cli.parser import COMMANDS, TARGETS, make_parser, with_default_command
from tests.support.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAVY = ("requests", "rich", "isal", "tomlkit", "tomli_w", "pypi_simple", "packaging", "difflib")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "build.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_names_every_command_and_where_exit_codes_stand() -> None:
    text = _run("--help").stdout
    assert all(re.search(rf"^    {name}\b", text, re.MULTILINE) for name in COMMANDS)
    assert "docs/exit-codes.md" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = _run(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        ([], ["build"]),
        (["v0.27.1"], ["build", "v0.27.1"]),
        (["--target", "wheel"], ["build", "--target", "wheel"]),
        (["show"], ["show"]),
        (["build", "show"], ["build", "show"]),
    ],
)
def test_build_is_meant_where_no_command_is_named(argv: list[str], meant: list[str]) -> None:
    assert with_default_command(argv) == meant
    make_parser().parse_args(meant)


@pytest.mark.parametrize("arguments", [("--help",), ("show",), ("show", "v0.33.0")])
def test_nothing_heavy_is_imported_where_an_answer_is_wanted_at_once(
    arguments: tuple[str, ...],
) -> None:
    code = (
        "import sys, contextlib; from pathlib import Path; from imagebuild.cli import main\n"
        "with contextlib.suppress(SystemExit): main(sys.argv[1:], Path.cwd())\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = done.stdout.rpartition("LOADED")[2].split()
    assert "imagebuild.cli.parser" in loaded
    assert not set(_HEAVY) & set(loaded)


def test_an_unknown_line_is_an_error_with_file_expected_found_and_next_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "v9.9.9"], ROOT) == errors.UsageError.exit_code
    text = capsys.readouterr().err
    assert text.startswith("error: no line v9.9.9\n")
    assert [line.split(":")[0].strip() for line in text.splitlines()[1:]] == [
        "file",
        "expected",
        "found",
        "next",
    ]


def test_an_error_is_json_on_standard_output_where_json_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "v9.9.9", "--json"], ROOT) == errors.UsageError.exit_code
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert (facts["error"], facts["exit_code"]) == ("usage", 2)
    assert captured.err == ""


def _subclasses(kind: type[errors.BuildError]) -> Iterator[type[errors.BuildError]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def test_the_page_of_exit_codes_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    documented = {
        int(code): name
        for code, name in re.findall(r"^\| (\d+) \| ([a-z-]+) \|", page, re.MULTILINE)
    }
    assert documented == {
        kind.exit_code: kind.kind
        for kind in _subclasses(errors.BuildError)
        if "exit_code" in vars(kind)
    }


def test_the_page_of_patches_is_what_the_metadata_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--markdown"], ROOT) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "patches.md").read_text()


def test_show_says_what_each_patch_is_for_its_status_and_what_is_verified(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "v0.33.0"], ROOT) == 0
    text = capsys.readouterr().out
    assert "state-index-bounds  [hardening]" in text
    assert re.search(r"verified: +cpu verified, sm90 \w+, sm120 unverified", text)
    assert main(["show", "v0.33.0", "state-index-bounds"], ROOT) == 0
    whole = capsys.readouterr().out
    for label in ("drop when:", "test:", "evidence:", "changes:", "sha256:"):
        assert label in whole


def test_a_reader_that_stops_early_is_no_error() -> None:
    code = f"{sys.executable} build.py show v0.33.0 state-index-bounds | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def _commands_in_docs() -> Iterator[tuple[Path, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for text in re.findall(r"python build\.py ?([^`\n(>;]*)", page.read_text()):
            yield page, text.split("   ")[0].strip()


def test_every_command_in_the_docs_is_one_that_exists() -> None:
    found = list(_commands_in_docs())
    assert found
    for page, text in found:
        words = [word for word in text.split() if not word.startswith("[")]
        try:
            make_parser().parse_args(with_default_command(words))
        except SystemExit as stop:
            assert stop.code == 0, f"{page.name}: python build.py {text}"  # noqa: PT017


def test_every_serving_command_in_the_docs_is_one_that_exists() -> None:
    from serve.cli.parser import make_parser as make_serve_parser  # noqa: PLC0415

    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for text in re.findall(r"python -m serve( [^`\n…;]*)", page.read_text()):
            words = [word.rstrip(".,:)") for word in text.split("  ")[0].split()]
            found.append((page.name, [word for word in words if word and word[0] not in "[("]))
    assert len(found) > 20
    for page_name, words in found:
        try:
            make_serve_parser().parse_args(words)
        except SystemExit as stop:
            assert stop.code == 0, f"{page_name}: python -m serve {words}"  # noqa: PT017


def test_every_target_has_a_writer_but_the_one_that_docker_builds() -> None:
    from imagebuild.outputs import WRITERS  # noqa: PLC0415

    assert {*WRITERS, "official"} == set(TARGETS)
