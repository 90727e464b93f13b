"""Deciding whether an upstream tree still needs a patch."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.metadata import DropWhen


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _names(element)


def _nested(node: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    """Yield the blocks of a statement that opens no scope, such as `if` or `try`."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for handler in getattr(node, "handlers", []):
        yield handler.body


def _children(body: Sequence[ast.stmt]) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """Yield each name that a block defines, with the block that the name opens."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.body
            case ast.Assign(targets=targets):
                yield from ((name, ()) for target in targets for name in _names(target))
            case ast.AnnAssign(target=target):
                yield from ((name, ()) for name in _names(target))
            case ast.If() | ast.Try() | ast.With():
                for inner in _nested(node):
                    yield from _children(inner)


def defines(source: bytes, symbol: str) -> bool:
    """Return whether Python source defines the dotted name `symbol`.

    Functions, classes, methods and assigned names count; imports do not. Source that Python cannot
    parse defines nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # upstream's invalid escapes are not our business
            bodies: list[Sequence[ast.stmt]] = [ast.parse(source).body]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for part in symbol.split("."):
        bodies = [inner for body in bodies for name, inner in _children(body) if name == part]
    return bool(bodies)


def _squeezed(text: bytes) -> bytes:
    return b"".join(text.split())


def holds(check: DropWhen, tree: Tree) -> bool:
    """Return whether one check holds in `tree`. A file that is not there proves nothing.

    For `lacks`, text that only got other spaces or line ends is still there.
    """
    content = tree.read(check.file)
    if content is None:
        return False
    if check.contains is not None:
        return check.contains.encode() in content
    if check.lacks is not None:
        return _squeezed(check.lacks.encode()) not in _squeezed(content)
    return check.symbol is not None and defines(content, check.symbol)


def upstreamed(checks: Sequence[DropWhen], tree: Tree) -> bool:
    """Return whether every check holds in `tree`; False for no checks."""
    return bool(checks) and all(holds(check, tree) for check in checks)
