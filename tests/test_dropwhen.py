"""A drop-when holds in a tree that no longer needs the patch, and nowhere else."""

from __future__ import annotations

import pytest

from imagebuild.fetch.tree import MemoryTree
from imagebuild.patching.dropwhen import defines, holds, upstreamed
from imagebuild.patching.metadata import DropWhen

FILE = "vllm/a.py"


def check(**what: str) -> DropWhen:
    return DropWhen(file=FILE, **what)


def held(content: bytes, **what: str) -> bool:
    return holds(check(**what), MemoryTree({FILE: content}))


def test_contains_holds_where_the_text_stands_byte_for_byte() -> None:
    assert held(b"x = max(n, 0)\n", contains="max(n, 0)")
    assert not held(b"x = max(n,0)\n", contains="max(n, 0)")


def test_contains_looks_for_utf_8() -> None:
    assert held("# größe".encode(), contains="größe")
    assert not held("# größe".encode("latin-1"), contains="größe")


def test_lacks_holds_where_the_text_is_gone() -> None:
    assert held(b"x = max(n, 0)\n", lacks="x = n - 1")
    assert not held(b"x = n - 1\n", lacks="x = n - 1")


@pytest.mark.parametrize("content", [b"x=n-1\n", b"x  =  n  -  1\r\n", b"x = (n\n     - 1)\n"])
def test_lacks_does_not_hold_where_only_spaces_or_line_ends_changed(content: bytes) -> None:
    assert not held(content, lacks="n - 1")


def test_lacks_over_several_lines_does_not_hold_on_carriage_returns() -> None:
    assert not held(b"a = 1\r\nb = 2\r\n", lacks="a = 1\nb = 2\n")


@pytest.mark.parametrize("what", ["contains", "lacks", "symbol"])
def test_a_missing_file_proves_nothing(what: str) -> None:
    assert not holds(check(**{what: "a"}), MemoryTree({}))


def test_an_empty_file_lacks_everything_and_defines_nothing() -> None:
    assert held(b"", lacks="a")
    assert not held(b"", symbol="a")
    assert not held(b"", contains="a")


SOURCE = b"""
import os as imported
from x import other
CONSTANT = 1
ANNOTATED: int = 2
DECLARED: int
first, (second, [third]) = range(3)

if True:
    def in_if(): ...
else:
    def in_else(): ...
try:
    def in_try(): ...
except ImportError:
    def in_except(): ...
finally:
    def in_finally(): ...
with open("x") as f:
    in_with = 1

class Klass:
    attribute = 1
    def method(self):
        local = 1
        def inner(): ...
    async def coroutine(self): ...
    class Nested:
        def deep(self): ...
"""


@pytest.mark.parametrize(
    "symbol",
    [
        "CONSTANT",
        "ANNOTATED",
        "first",
        "second",
        "third",
        "in_if",
        "in_else",
        "in_try",
        "in_except",
        "in_finally",
        "in_with",
        "Klass",
        "Klass.attribute",
        "Klass.method",
        "Klass.method.local",
        "Klass.method.inner",
        "Klass.coroutine",
        "Klass.Nested.deep",
    ],
)
def test_a_name_that_the_source_gives_a_value_is_defined(symbol: str) -> None:
    assert defines(SOURCE, symbol)


@pytest.mark.parametrize(
    "symbol",
    [
        "imported",
        "other",
        "method",
        "Klass.deep",
        "Nested",
        "Klass.method.deep",
        "os",
        "",
        "Klass.",
    ],
)
def test_an_imported_or_nested_or_absent_name_is_not_defined(symbol: str) -> None:
    assert not defines(SOURCE, symbol)


def test_a_name_that_is_only_used_or_mentioned_is_not_defined() -> None:
    assert not defines(b"# def fixed(): ...\nprint(fixed)\n'''\ndef fixed(): ...\n'''\n", "fixed")


@pytest.mark.parametrize(
    "source",
    [
        b"def fixed(:\n",
        b"def fixed(): ...\n\0",
        b"# coding: no-such\ndef fixed(): ...\n",
        b"\xff\xfe",
        b"fixed = " + b"(" * 10_000 + b")" * 10_000,
        b"fixed = " + b"-" * 100_000 + b"1",
    ],
    ids=["syntax", "nul", "coding", "utf-16", "deep", "deeper"],
)
def test_source_that_python_cannot_parse_defines_nothing(source: bytes) -> None:
    assert not defines(source, "fixed")


def test_a_warning_about_upstreams_source_is_not_ours() -> None:
    assert defines(b'def fixed():\n    return "\\d"\n', "fixed")


def test_all_checks_must_hold() -> None:
    tree = MemoryTree({FILE: b"def fixed(): ...\n"})
    good, bad = check(symbol="fixed"), check(contains="other")
    assert upstreamed([good], tree)
    assert not upstreamed([good, bad], tree)
    assert not upstreamed([bad], tree)


def test_no_checks_prove_nothing() -> None:
    assert not upstreamed([], MemoryTree({}))
