"""Who we are to a registry: Docker's own configuration, basic and bearer authentication."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from imagebuild.errors import RegistryError

if TYPE_CHECKING:
    import requests

LOOPBACK = re.compile(r"^(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?$")

_CHALLENGE = re.compile(r'([A-Za-z]+)="([^"]*)"')
_MAX_TOKEN = 1 << 16
_OK = 200


@dataclass(frozen=True, repr=False)
class Credentials:
    """A user's name and password; never printed."""

    user: str
    password: str

    def basic(self) -> str:
        """Return them as RFC 7617 sends them."""
        pair = f"{self.user}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode()


def docker_config(host: str) -> Credentials | None:
    """Return what `docker login` has stored for a registry, if anything can be read.

    Looks at `auths` of `config.json` in `DOCKER_CONFIG` or `~/.docker`; credential helpers are not
    asked.
    """
    folder = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    names: tuple[str, ...] = (host, f"https://{host}")
    if host == "docker.io":
        names = (*names, "https://index.docker.io/v1/")
    try:
        auths = json.loads(Path(folder, "config.json").read_bytes())["auths"]
        stored = next(auths[name]["auth"] for name in names if name in auths)
        user, _, password = base64.b64decode(stored).decode().partition(":")
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
    return Credentials(user, password) if user and password else None


class Authority:
    """The authentication of one repository: nothing until the registry asks for it."""

    def __init__(self, repository: str, scope: str, credentials: Credentials | None) -> None:
        """Hold credentials for `repository`; `scope` is what a token is asked for."""
        self._repository = repository
        self._scope = scope
        self._credentials = credentials
        self._header: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers of the next request to the registry."""
        return {} if self._header is None else {"Authorization": self._header}

    def meet(self, challenge: str, session: requests.Session, timeout: tuple[int, int]) -> None:
        """Get ready for a registry's `WWW-Authenticate`.

        Raises:
            RegistryError: if the challenge cannot be met.
            requests.RequestException: if the token server does not answer.
        """
        scheme, _, rest = challenge.partition(" ")
        match scheme.lower():
            case "basic" if self._credentials is not None:
                self._header = self._credentials.basic()
            case "bearer":
                self._header = (
                    f"Bearer {self._token(dict(_CHALLENGE.findall(rest)), session, timeout)}"
                )
            case _:
                raise self._refused("no credentials for it", challenge or "no challenge")

    def _token(
        self, challenge: dict[str, str], session: requests.Session, timeout: tuple[int, int]
    ) -> str:
        realm = challenge.get("realm", "")
        require_safe(realm, self._repository)
        query = {"scope": challenge.get("scope") or self._scope}
        if "service" in challenge:
            query["service"] = challenge["service"]
        headers = {} if self._credentials is None else {"Authorization": self._credentials.basic()}
        options: dict[str, Any] = {"allow_redirects": False, "timeout": timeout, "stream": True}
        with session.get(realm, params=query, headers=headers, **options) as answer:
            if answer.status_code != _OK:
                raise self._refused(realm, f"{answer.status_code} {answer.reason}")
            data = next(answer.iter_content(_MAX_TOKEN), b"")
        try:
            document = json.loads(data)
            token = document.get("token") or document["access_token"]
        except (ValueError, KeyError, AttributeError) as error:
            raise self._refused(realm, "an answer without a token") from error
        if not isinstance(token, str) or not token.isprintable():
            raise self._refused(realm, "a token that is no text")
        return token

    def _refused(self, where: str, found: str) -> RegistryError:
        host = self._repository.partition("/")[0]
        return RegistryError(
            "the registry lets nobody in without credentials",
            file=f"{self._repository} ({where})",
            expected="access, or a token",
            found=found,
            next_command=f"docker login {host}",
        )


def require_safe(url: str, repository: str) -> None:
    """Refuse plain HTTP to anything but this machine.

    Raises:
        RegistryError: if `url` is neither HTTPS nor on loopback.
    """
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and LOOPBACK.match(parts.netloc)):
        return
    raise registry_error("an unsafe address is not asked", repository, "https://…", url)


def registry_error(summary: str, where: str, expected: str, found: object) -> RegistryError:
    """Return the error for a registry that gives no answer that one could judge."""
    host = where.partition("/")[0]
    return RegistryError(
        summary,
        file=where,
        expected=expected,
        found=str(found)[:500],
        next_command=f"docker login {host}   (private?) or the same command again",
    )
