"""Whom a registry knows us as: what Docker's configuration and its credential helpers say.

The file: `config.json` in `DOCKER_CONFIG` or `~/.docker`, with `auths`, `credsStore`, `credHelpers`
(docs of `docker login`). The helpers' protocol: docker/docker-credential-helpers, README, "get":
the registry's address on standard input, a JSON object on standard output.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HUB = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # noqa: S105  (the helpers' word for an identity token)
_HELPER = re.compile(r"^[A-Za-z0-9._-]+\Z")
_PATIENCE = 30


@dataclass(frozen=True, repr=False)
class Credentials:
    """A user's name and password, or an identity token; never printed.

    Attributes:
        user, password: as RFC 7617 takes them; the user is empty for an identity token.
        identity: a token that only a token server takes (docs of distribution, "oauth2").
    """

    user: str
    password: str
    identity: str | None = None

    def basic(self) -> str:
        """Return them as RFC 7617 sends them."""
        pair = f"{self.user}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode()


def docker_config(host: str) -> Credentials | None:
    """Return what `docker login` has stored for a registry, if anything can be read.

    A credential helper, where one is named, is asked first; then `auths`.
    """
    folder = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    names = (_HUB, host, f"https://{host}") if host == "docker.io" else (host, f"https://{host}")
    try:
        document = json.loads(Path(folder, "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    for name in names:
        found = _asked(document, name) or _stored(document, name)
        if found is not None:
            return found
    return None


def _asked(document: dict[str, Any], name: str) -> Credentials | None:
    """Return what a credential helper says, if one is named and answers."""
    special = document.get("credHelpers")
    helper = special.get(name) if isinstance(special, dict) else None
    helper = helper or document.get("credsStore")
    if not isinstance(helper, str) or _HELPER.match(helper) is None:
        return None
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=name.encode(),
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
        )
        answer = json.loads(done.stdout)
        user, secret = answer["Username"], answer["Secret"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None
    if user == _TOKEN_USER:
        return Credentials("", "", str(secret))
    return Credentials(str(user), str(secret)) if user and secret else None


def _stored(document: dict[str, Any], name: str) -> Credentials | None:
    try:
        entry = document["auths"][name]
        if entry.get("identitytoken"):
            return Credentials("", "", str(entry["identitytoken"]))
        user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Credentials(user, password.rstrip("\0")) if user and password else None
