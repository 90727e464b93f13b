"""Whether a tree is what an sdist was made of, file by file.

The sdist's hash is the pin, so any other source is accepted only if its files equal the sdist's. A
few paths only one of the two can have; each is named here with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from imagebuild.digest import sha256_bytes
from imagebuild.errors import ChecksumError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagebuild.fetch.pack import Entry
    from imagebuild.fetch.tree import Tree

SDIST_ONLY = {
    "PKG-INFO": "metadata, written when the sdist is made",
    "setup.cfg": "setuptools writes [egg_info] when the sdist is made",
    "vllm/_version.py": "setuptools-scm writes the version from the tag",
    "vllm.egg-info/*": "metadata, written when the sdist is made",
}
"""Patterns of paths that only the sdist may have, and why."""

TREE_ONLY = {
    ".claude/*": "links to folders in git; setuptools packs files only",
}
"""Patterns of paths that only the other tree may have, and why."""

_SHOWN = 10


@dataclass(frozen=True)
class Comparison:
    """What was found, and is acceptable.

    Attributes:
        equal: how many files both have, byte for byte.
        sdist_only: paths that only the sdist has, each allowed by `SDIST_ONLY`; sorted.
        tree_only: paths that only the tree has, each allowed by `TREE_ONLY`; sorted.
    """

    equal: int
    sdist_only: tuple[str, ...]
    tree_only: tuple[str, ...]


def check_equals(
    tree: Tree, manifest: Mapping[str, Entry], others: Iterable[str] = ()
) -> Comparison:
    """Accept a tree as the source of an sdist, or refuse it.

    Args:
        tree: the tree.
        manifest: the sdist's files, `SdistTree.manifest()`.
        others: paths that the tree has besides files, such as links to folders.

    Returns:
        What both have, and what only one of the two has.

    Raises:
        ChecksumError: if a file differs, or only one of the two has it and no pattern allows that.
    """
    there = set(tree.files())
    tree_only = sorted((there | set(others)) - manifest.keys())
    sdist_only = sorted(manifest.keys() - there)
    both = [path for path in manifest if path in there]
    wrong = [f"{path}: differs" for path in both if not _same(tree, path, manifest[path])]
    wrong += [f"{path}: only in the sdist" for path in _refused(sdist_only, SDIST_ONLY)]
    wrong += [f"{path}: not in the sdist" for path in _refused(tree_only, TREE_ONLY)]
    if wrong:
        raise ChecksumError(
            "the tree is not what the sdist was made of",
            file=tree.label,
            expected=f"the {len(manifest)} files of the pinned sdist",
            found=f"{len(wrong)} that are not the same",
            next_command="python build.py build  (which takes the sdist itself)",
            detail="\n".join(wrong[:_SHOWN] + ["…"] * (len(wrong) > _SHOWN)),
        )
    return Comparison(len(both), tuple(sdist_only), tuple(tree_only))


def _same(tree: Tree, path: str, entry: Entry) -> bool:
    data = tree.read(path)
    return data is not None and sha256_bytes(data) == entry.sha256


def _refused(paths: Iterable[str], allowed: Mapping[str, str]) -> list[str]:
    return [path for path in paths if not any(fnmatchcase(path, pattern) for pattern in allowed)]
