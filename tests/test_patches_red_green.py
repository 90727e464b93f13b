"""Each patch's tests fail on the release, and pass with the series."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imagebuild import upstream
from imagebuild.patching import series
from imagebuild.project import Project
from tests.patched import environment, runner, trees

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagebuild.patching.metadata import Metadata
    from tests.patched.environment import Site
    from tests.patched.runner import Result

PROJECT = Project(Path(__file__).parents[1])
LIMIT_S = 400

pytestmark = [pytest.mark.engine, pytest.mark.upstream]

CASES = [
    pytest.param(line, patch.name, id=f"{line}-{patch.name}")
    for line in upstream.load(PROJECT.upstream_lock).lines
    for patch in series.load(PROJECT, line).patches
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, bool], list[Result]]:
    """Give what became of the tests of a patch on a line's stock or patched tree; run once."""
    cpu = environment.install()

    @cache
    def stock_tree(line: str) -> Path:
        root = tmp_path_factory.mktemp("stock") / line
        return trees.stock_tree(PROJECT, line, root)

    @cache
    def patched_tree(line: str) -> Path:
        root = tmp_path_factory.mktemp("patched") / line
        return trees.patched_tree(PROJECT, line, stock_tree(line), root)

    @cache
    def site(line: str, patched: bool) -> Site:  # noqa: FBT001
        tree = patched_tree(line) if patched else stock_tree(line)
        return environment.overlay(cpu, tree, tmp_path_factory.mktemp("site") / line)

    @cache
    def run(line: str, name: str, patched: bool) -> list[Result]:  # noqa: FBT001
        return runner.run(site(line, patched), selection(line, name), LIMIT_S)

    return run


def metadata(line: str, name: str) -> Metadata:
    patch = series.load(PROJECT, line).patch(name)
    assert patch is not None
    return patch.meta


def file_of(node: str) -> str:
    return node.partition("::")[0]


def selection(line: str, name: str) -> list[str]:
    """Return what a patch's run is asked for: its files; of shared files only its tests."""
    others = {
        file_of(node)
        for patch in series.load(PROJECT, line).patches
        if patch.name != name
        for node in patch.meta.tests
    }
    nodes = metadata(line, name).tests
    return list(dict.fromkeys(n if file_of(n) in others else file_of(n) for n in nodes))


def listed(node: str, found: list[Result]) -> list[Result]:
    of_node = [result for result in found if result.is_of(node)]
    assert of_node, f"no such test was collected: {node}"
    return of_node


@pytest.mark.parametrize(("line", "name"), CASES)
def test_listed_tests_fail_on_the_release(
    line: str, name: str, results: Callable[[str, str, bool], list[Result]]
) -> None:
    found = results(line, name, False)
    for node in metadata(line, name).tests:
        others = [result for result in listed(node, found) if result.outcome != "failed"]
        assert others == []


@pytest.mark.parametrize(("line", "name"), CASES)
def test_all_tests_pass_with_the_series(
    line: str, name: str, results: Callable[[str, str, bool], list[Result]]
) -> None:
    found = results(line, name, True)
    assert [result for result in found if result.outcome != "passed"] == []
    for node in metadata(line, name).tests:
        listed(node, found)


@pytest.mark.parametrize(("line", "name"), CASES)
def test_what_was_right_on_the_release_is_the_same_with_the_series(
    line: str, name: str, results: Callable[[str, str, bool], list[Result]]
) -> None:
    """The tests that the metadata does not list and that pass on the release: the same bytes."""
    nodes = metadata(line, name).tests
    right = [
        result
        for result in results(line, name, False)
        if result.outcome == "passed" and not any(result.is_of(node) for node in nodes)
    ]
    patched = results(line, name, True)
    assert [result for result in right if result not in patched] == []
