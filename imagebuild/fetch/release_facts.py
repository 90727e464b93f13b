"""What a release's own files say of it: the pins that need no network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagebuild.fetch.tree import Tree

DOCKERFILE = "docker/Dockerfile"
REQUIREMENTS = "requirements/cuda.txt"
_VERSION_FILE = "vllm/_version.py"
_ARG = re.compile(r"^ARG\s+(\w+)=(\S+)\s*$", re.MULTILINE)
_FROM = re.compile(r"^FROM\s", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_BASES = ("BUILD_BASE_IMAGE", "FINAL_BASE_IMAGE")
_DEPTH = 8


@dataclass(frozen=True)
class ReleaseFacts:
    """Facts that stand in an sdist.

    Attributes:
        commit_prefix: the abbreviated commit in `vllm/_version.py`.
        torch, flashinfer: the versions that `requirements/cuda.txt` demands.
        cuda, python: the defaults of the official Dockerfile's build arguments.
        dockerfile: the digest of the official Dockerfile.
        bases: the default of each build argument that names a base image, with its registry.
    """

    commit_prefix: str
    torch: str
    flashinfer: str
    cuda: str
    python: str
    dockerfile: Sha256
    bases: dict[str, str]


def _text(tree: Tree, path: str) -> str:
    content = tree.read(path)
    if content is None:
        raise SourceError(
            "the release lacks a file that pins are read from",
            file=f"{path} in {tree.label}",
            expected="the file",
            found="no such file",
            next_command="edit imagebuild/fetch/release_facts.py for the release's new layout",
        )
    return content.decode("utf-8", "replace")


def _one(pattern: str, text: str, path: str, tree: Tree) -> str:
    found = set(re.findall(pattern, text, re.MULTILINE))
    if len(found) != 1:
        raise SourceError(
            "the release states a pin in a form that this tool does not know",
            file=f"{path} in {tree.label}",
            expected=f"one match of {pattern}",
            found=", ".join(sorted(found)) or "no match",
            next_command="edit imagebuild/fetch/release_facts.py for the release's new form",
        )
    return str(found.pop())


def _default(name: str, values: dict[str, str], tree: Tree) -> str:
    return _one(rf"^{name}=(\S+)$", f"{name}={values.get(name, '')}", DOCKERFILE, tree)


def global_arguments(dockerfile: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the build arguments that stand before the first FROM, expanded.

    Args:
        dockerfile: the file's text.
        given: values from outside; the file's defaults stand for the rest.
    """
    first = _FROM.search(dockerfile)
    head = dockerfile[: first.start()] if first else dockerfile
    values = dict(_ARG.findall(head)) | dict(given or {})

    def expand(text: str) -> str:
        return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], ""), text)

    for _ in range(_DEPTH):
        values = {name: expand(value) for name, value in values.items()}
    return values


def with_registry(ref: str) -> str:
    """Return an image reference with the registry that Docker means where none is named."""
    first = ref.partition("/")[0]
    if "/" not in ref:
        return f"docker.io/library/{ref}"
    return ref if "." in first or ":" in first or first == "localhost" else f"docker.io/{ref}"


def read(tree: Tree) -> ReleaseFacts:
    """Return the facts of a release.

    Raises:
        SourceError: if a file is missing or has an unknown form.
    """
    dockerfile = _text(tree, DOCKERFILE)
    requirements = _text(tree, REQUIREMENTS)
    version = _text(tree, _VERSION_FILE)
    values = global_arguments(dockerfile)
    return ReleaseFacts(
        commit_prefix=_one(r"commit_id = 'g([0-9a-f]+)'", version, _VERSION_FILE, tree),
        torch=_one(r"^torch==(\S+)", requirements, REQUIREMENTS, tree),
        flashinfer=_one(r"^flashinfer-python==(\S+)", requirements, REQUIREMENTS, tree),
        cuda=_default("CUDA_VERSION", values, tree),
        python=_default("PYTHON_VERSION", values, tree),
        dockerfile=sha256_bytes(tree.read(DOCKERFILE) or b""),
        bases={name: with_registry(values[name]) for name in _BASES if name in values},
    )
