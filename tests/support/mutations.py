"""What happens to code that does not mend it: none of these may look like a fix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from imagebuild.fetch.tree import MemoryTree
from imagebuild.patching import hunks
from imagebuild.patching.apply import FileState, plan
from imagebuild.patching.hunks import Lines
from imagebuild.patching.series import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.series import Patch

_NAME = re.compile(rb"\b[a-z_][a-z0-9_]{3,}\b")
_KEYWORDS = {b"None", b"True", b"False", b"else", b"with", b"from", b"import", b"return", b"class"}


def _names_changed(data: bytes, patch: Patch) -> bytes:
    """Rename every variable that the old code of a drop-when speaks of."""
    texts = [check.lacks.encode() for check in patch.meta.drop_when if check.lacks]
    names = {name for text in texts for name in _NAME.findall(text)} - _KEYWORDS
    kept = {
        part.encode()
        for check in patch.meta.drop_when
        if check.symbol
        for part in check.symbol.split(".")
    }
    for name in sorted(names - kept):
        data = re.sub(rb"\b" + name + rb"\b", name + b"_", data)
    return data


def _comments_between(data: bytes, patch: Patch) -> bytes:
    """Put a comment behind every line that the patch takes out."""
    taken = {
        line.rstrip(b"\n")
        for file in patch.text.files
        for hunk in file.hunks
        for mark, line in hunk.lines
        if mark == b"-" and line.strip()
    }
    out = [
        line[:-1] + b"  # as ever\n" if line.rstrip(b"\n") in taken else line
        for line in hunks.split(data)
    ]
    return b"".join(out)


_EVERYWHERE: dict[str, Callable[[bytes, Patch], bytes]] = {
    "names changed": _names_changed,
    "comments between": _comments_between,
    "white space doubled": lambda data, _: data.replace(b" ", b"  "),
    "tabs for spaces": lambda data, _: data.replace(b"    ", b"\t"),
    "blank lines between": lambda data, _: data.replace(b"\n", b"\n\n"),
    "carriage returns": lambda data, _: data.replace(b"\n", b"\r\n"),
    "cut in half": lambda data, _: data[: len(data) // 2],
    "emptied": lambda _data, _patch: b"",
    "commented out": lambda data, _: b"".join(b"# " + line for line in hunks.split(data)),
}
NAMES = (*_EVERYWHERE, "one hunk merged", "all hunks but one merged", "one check made true")


def _files(patch: Patch, tree: Tree) -> dict[str, bytes]:
    paths = {*patch.targets, *(check.file for check in patch.meta.drop_when)}
    return {path: data for path in sorted(paths) if (data := tree.read(path)) is not None}


def _hunks_merged(patch: Patch, tree: Tree, *, but_one: bool) -> Iterator[dict[str, bytes]]:
    """Put one hunk into the release, or all of them but one."""
    report = plan(Series("v0.0.0", (patch,), {}), tree).reports[0]
    pending = {f.path: f.matches for f in report.files if f.state is FileState.PENDING}
    every = [(path, number) for path, found in pending.items() for number in range(len(found))]
    for one in every if len(every) > 1 else ():
        contents = {}
        for path, found in pending.items():
            chosen = [m for n, m in enumerate(found) if ((path, n) == one) != but_one]
            if chosen:
                lines = Lines(hunks.split(tree.read(path) or b""))
                contents[path] = hunks.replace(lines, chosen, patch.name).data
        yield contents


def _one_true(patch: Patch, tree: Tree) -> Iterator[dict[str, bytes]]:
    """Make each check true by itself, by text that does nothing."""
    for check in patch.meta.drop_when:
        data = tree.read(check.file) or b""
        if check.lacks is not None:
            words = check.lacks.split()
            changed = data.replace(words[0].encode(), words[0].encode() + b"_")
        elif check.contains is not None:
            changed = data + b"\n# " + check.contains.encode() + b"\n"
        else:
            parts = str(check.symbol).split(".")
            nested = "".join(f"{' ' * n}class {part}:\n" for n, part in enumerate(parts))
            changed = data + b"\n" + nested.encode() + b" " * len(parts) + b"pass\n"
        if changed != data:
            yield {check.file: changed}


def of(patch: Patch, tree: Tree, name: str) -> Iterator[MemoryTree]:
    """Yield the mutants of one kind of a release."""
    files = _files(patch, tree)
    if name == "one check made true":
        mutants: Iterator[dict[str, bytes]] = _one_true(patch, tree)
    elif name in _EVERYWHERE:
        mutants = iter([{path: _EVERYWHERE[name](data, patch) for path, data in files.items()}])
    else:
        mutants = _hunks_merged(patch, tree, but_one=name.startswith("all"))
    for changed in mutants:
        yield MemoryTree(files | changed, f"{name}: {', '.join(changed)}")
