"""Every error has its own exit code and says file, expected, found and the next command."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path

import pytest

import imagebuild
import serve
from imagebuild import errors
from imagebuild.errors import BuildError, UsageError
from serve import errors as serve_errors

PACKAGE = Path(imagebuild.__file__).parent
PACKAGES = (PACKAGE, Path(serve.__file__).parent)
FACTS = {"file", "expected", "found", "next_command"}
WITHOUT_FILE = {"InterruptError"}  # an interrupt is about no file
KINDS = [
    kind
    for _, kind in [
        *inspect.getmembers(errors, inspect.isclass),
        *inspect.getmembers(serve_errors, inspect.isclass),
    ]
    if issubclass(kind, BuildError) and kind is not BuildError
]


@cache
def modules() -> tuple[tuple[Path, ast.Module], ...]:
    paths = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]
    return tuple((path, ast.parse(path.read_bytes())) for path in paths)


@cache
def derived() -> frozenset[str]:
    """Return the names of all error classes, those outside of errors.py, too."""
    names = {kind.__name__ for kind in KINDS} | {"BuildError"}
    classes = [n for _, tree in modules() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    for _ in classes:
        names |= {
            node.name
            for node in classes
            if any(isinstance(base, ast.Name) and base.id in names for base in node.bases)
        }
    return frozenset(names)


def called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def test_every_class_has_its_own_exit_code() -> None:
    codes = [kind.exit_code for kind in KINDS]
    assert len(KINDS) >= 18
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 128 or code == 130 for code in codes)
    assert 1 not in codes  # Python's own, for what nobody foresaw


def test_every_class_has_its_own_kind() -> None:
    kinds = [kind.kind for kind in KINDS]
    assert len(set(kinds)) == len(kinds)
    assert all(kind == kind.lower() and " " not in kind for kind in kinds)


def test_every_class_says_what_it_is_for() -> None:
    assert all(inspect.getdoc(kind) for kind in KINDS)


def test_a_class_outside_of_errors_py_shares_its_parents_code() -> None:
    """Such a class only adds a meaning for code that catches it."""
    own = {kind.__name__ for kind in KINDS} | {"BuildError"}
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in derived() - own:
                assigned = {
                    target.id
                    for statement in node.body
                    if isinstance(statement, ast.Assign)
                    for target in statement.targets
                    if isinstance(target, ast.Name)
                }
                assert "exit_code" not in assigned, path


def bare_of(source: ast.AST, names: frozenset[str]) -> list[int]:
    """Return the lines on which an error is built without all of its facts."""
    found = []
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and called(node) in names:
            given = {keyword.arg for keyword in node.keywords}
            needed = FACTS - {"file"} if called(node) in WITHOUT_FILE else FACTS
            if not given >= needed and None not in given:
                found.append(node.lineno)
    return found


def test_the_check_of_facts_fires() -> None:
    source = ast.parse("raise LockError('x', file=1, expected=2, found=3)")
    assert bare_of(source, derived()) == [1]


def test_every_error_in_the_package_is_built_from_all_facts() -> None:
    names = derived()
    bare = {str(path): bare_of(tree, names) for path, tree in modules()}
    assert {path: lines for path, lines in bare.items() if lines} == {}


def test_no_module_catches_every_exception() -> None:
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, path
                caught = ast.unparse(node.type)
                raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                assert caught != "Exception", path
                assert caught != "BaseException" or raises, path


def test_only_the_command_line_prints() -> None:
    printing = {
        path.relative_to(package).parts[0]
        for package in PACKAGES
        for path, tree in modules()
        if path.is_relative_to(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and called(node) == "print"
    }
    assert printing <= {"cli"}


FULL = UsageError(
    "it failed", file="a.py", expected="this", found="that", next_command="do", detail="more\n"
)


def test_the_text_for_people_holds_every_fact() -> None:
    assert FULL.diagnostics() == (
        "error: it failed\n"
        "  file:     a.py\n"
        "  expected: this\n"
        "  found:    that\n"
        "  next:     do\n"
        "\n"
        "more"
    )


def test_absent_facts_leave_no_line() -> None:
    assert UsageError("it failed").diagnostics() == "error: it failed"


def test_the_facts_for_programs_hold_every_fact() -> None:
    assert FULL.facts() == {
        "error": "usage",
        "exit_code": 2,
        "summary": "it failed",
        "file": "a.py",
        "expected": "this",
        "found": "that",
        "next": "do",
        "detail": "more\n",
    }


@pytest.mark.parametrize("odd", ["\udcff", "\x1b[2J", "\x07", "\u202e", "\r"])
def test_what_a_terminal_must_not_see_is_escaped(odd: str) -> None:
    text = UsageError("it failed", file=f"a{odd}b").diagnostics()
    assert odd not in text
    assert text.encode()
