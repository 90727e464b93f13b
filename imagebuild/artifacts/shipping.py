"""Which produced files an artifact without a compiler carries."""

from __future__ import annotations

import enum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from imagebuild.errors import TargetError

if TYPE_CHECKING:
    from imagebuild.patching.produced import Patchset, ProducedFile

PACKAGE = "vllm"

# Folders of the tree that neither the official wheel nor the official image installs.
_LEFT_OUT = frozenset(
    {".buildkite", ".github", "benchmarks", "docs", "examples", "recipes", "tests"}
)
# Folders and files at the root of the tree from which wheel and image are made.
_BUILD_TIME = frozenset(
    {"cmake", "csrc", "docker", "requirements", "rust", "tools", "vllm.egg-info"}
)
_BUILD_FILES = frozenset(
    {
        "CMakeLists.txt",
        "MANIFEST.in",
        "PKG-INFO",
        "pyproject.toml",
        "rust-toolchain.toml",
        "setup.cfg",
        "setup.py",
        "use_existing_torch.py",
    }
)
_COMPILED = frozenset(
    [
        ".c",
        ".cc",
        ".cmake",
        ".cpp",
        ".cu",
        ".cuh",
        ".cxx",
        ".h",
        ".hip",
        ".hpp",
        ".inc",
        ".inl",
        ".ipp",
        ".pyx",
        ".pxd",
        ".rs",
        ".proto",
    ]
)


class Fate(enum.Enum):
    """What becomes of a produced file."""

    SHIPPED = "shipped"
    LEFT_OUT = "left out"
    BUILT = "built"
    UNKNOWN = "unknown"


def fate(path: str) -> Fate:
    """Return what becomes of the file at `path` in the tree.

    Shipped: everything in the package `vllm` but compiled sources. Left out: documentation, tests
    and the like, which are not installed. Built: what only a build brings to bear. Anything else is
    unknown, and refused until a rule names it.
    """
    parts = PurePosixPath(path).parts
    if parts[0] in _LEFT_OUT:
        return Fate.LEFT_OUT
    compiled = PurePosixPath(path).suffix in _COMPILED or parts[-1] == "CMakeLists.txt"
    if compiled or parts[0] in _BUILD_TIME or path in _BUILD_FILES:
        return Fate.BUILT
    if len(parts) == 1:
        return Fate.LEFT_OUT if path.endswith(".md") else Fate.UNKNOWN
    return Fate.SHIPPED if parts[0] == PACKAGE else Fate.UNKNOWN


def shipped(patchset: Patchset) -> tuple[ProducedFile, ...]:
    """Return the files that wheel and image carry, sorted by path.

    Raises:
        TargetError: if a file takes effect only through a build, or no rule covers it.
    """
    fates = [(fate(file.path), file) for file in patchset.files]
    refused = [file for kind, file in fates if kind in (Fate.BUILT, Fate.UNKNOWN)]
    if refused:
        raise TargetError(
            "the series touches what only a build brings to bear",
            file=", ".join(sorted(file.path for file in refused)),
            expected=f"files below {PACKAGE}/ that are installed as they are",
            found=", ".join(sorted({fate(file.path).value for file in refused})) + " sources",
            next_command=f"python build.py {patchset.line} --target official",
        )
    return tuple(
        sorted((file for kind, file in fates if kind is Fate.SHIPPED), key=lambda file: file.path)
    )
