"""What a Dockerfile takes from outside: its base images, and the hosts that its steps name.

Only what is needed to say so, not a parser of everything: the instructions FROM, ARG, COPY and RUN,
continued lines and comments (docs.docker.com, "Dockerfile reference").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.fetch.release_facts import global_arguments, with_registry

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMENT = re.compile(r"^[ \t]*#.*\n?", re.MULTILINE)
_CONTINUED = re.compile(r"\\[ \t]*\n")
_FROM = re.compile(
    r"^FROM\s+(?:--platform=\S+\s+)?(?P<image>\S+)(?:\s+AS\s+(?P<name>\S+))?\s*$",
    re.MULTILINE | re.IGNORECASE,
)
_OTHER = re.compile(r"(?:--from=|\bfrom=)(?P<image>[^\s,]+)")
_SYNTAX = re.compile(r"^#\s*syntax\s*=\s*(?P<image>\S+)", re.IGNORECASE | re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_HOST = re.compile(r"https?://([A-Za-z0-9.-]+)")


@dataclass(frozen=True)
class External:
    """An image that a Dockerfile takes from a registry.

    Attributes:
        written: how the file names it.
        image: what that means with the given arguments, with its registry.
    """

    written: str
    image: str

    @property
    def pinned(self) -> bool:
        """Whether it goes by digest."""
        return "@sha256:" in self.image


def externals(text: str, arguments: Mapping[str, str]) -> tuple[External, ...]:
    """Return the images that a Dockerfile takes from registries, in order, each once.

    Args:
        text: the Dockerfile.
        arguments: build arguments; the file's own defaults stand for the rest.
    """
    values = global_arguments(text, arguments)
    plain = _CONTINUED.sub(" ", _COMMENT.sub("", text))
    stages: set[str] = {"scratch"}
    written = [match["image"] for match in _SYNTAX.finditer(text[:1000])]
    for match in _FROM.finditer(plain):
        if match["image"].lower() not in stages:
            written.append(match["image"])
        if match["name"]:
            stages.add(match["name"].lower())
    numbered = {str(number) for number in range(len(stages) + len(written))}
    written += [
        match["image"]
        for match in _OTHER.finditer(plain)
        if match["image"].lower() not in stages | numbered
    ]
    return tuple(
        External(name, with_registry(_VARIABLE.sub(lambda m: values.get(m[1], m[0]), name)))
        for name in dict.fromkeys(written)
    )


def hosts(text: str) -> tuple[str, ...]:
    """Return the hosts that a Dockerfile's steps and arguments name, sorted; comments are not."""
    return tuple(sorted(set(_HOST.findall(_COMMENT.sub("", text)))))
