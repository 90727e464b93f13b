"""Image references, as people write them: `registry/repository:tag@sha256:digest`.

The grammar is that of distribution's `reference` package; a name without a registry is Docker
Hub's, as everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebuild.digest import Sha256, parse_sha256
from imagebuild.errors import UsageError

_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_FORM = re.compile(
    r"^(?:(?P<host>[A-Za-z0-9.-]*[.:][A-Za-z0-9.:-]*|localhost|\[[0-9A-Fa-f:]+\](?::[0-9]+)?)/)?"
    rf"(?P<name>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?\Z"
)


@dataclass(frozen=True)
class Reference:
    """An image somewhere in a registry.

    Attributes:
        repository: with its registry.
        tag: what people call it; None if it goes by digest.
        digest: what it is; None if nobody has said.
    """

    repository: str
    tag: str | None = None
    digest: Sha256 | None = None

    def __str__(self) -> str:
        """Return it as people write it."""
        tag = "" if self.tag is None else f":{self.tag}"
        return self.repository + tag + ("" if self.digest is None else f"@sha256:{self.digest}")


def parse_reference(text: str) -> Reference:
    """Return a reference.

    Raises:
        UsageError: if `text` is none.
    """
    match = _FORM.match(text)
    if match is None:
        raise UsageError(
            "not an image reference",
            file=text,
            expected="REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST, in lower case",
            found=text,
            next_command="python build.py --help",
        )
    name = match["name"]
    host = match["host"] or "docker.io"
    if host == "docker.io" and "/" not in name:
        name = f"library/{name}"
    digest = None if match["digest"] is None else parse_sha256(match["digest"])
    return Reference(f"{host}/{name}", match["tag"], digest)
