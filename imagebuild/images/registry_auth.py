"""Getting in: basic authentication, and bearer tokens from a registry's token server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from imagebuild.errors import RegistryError

if TYPE_CHECKING:
    import requests

    from imagebuild.images.docker_credentials import Credentials

LOOPBACK = re.compile(r"^(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?$")

_CHALLENGE = re.compile(r'([A-Za-z]+)="([^"]*)"')
_MAX_TOKEN = 1 << 16
_OK = 200


class Authority:
    """The authentication of one repository: nothing until the registry asks for it."""

    def __init__(
        self, repository: str, scopes: tuple[str, ...], credentials: Credentials | None
    ) -> None:
        """Hold credentials for `repository`; `scopes` are what a token is asked for."""
        self._repository = repository
        self._scopes = scopes
        self._credentials = credentials
        self._header: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers of the next request to the registry."""
        return {} if self._header is None else {"Authorization": self._header}

    def meet(self, challenge: str, session: requests.Session, timeout: tuple[float, float]) -> None:
        """Get ready for a registry's `WWW-Authenticate`.

        Raises:
            RegistryError: if the challenge cannot be met.
            requests.RequestException: if the token server does not answer.
        """
        scheme, _, rest = challenge.partition(" ")
        match scheme.lower():
            case "basic" if self._credentials is not None and self._credentials.user:
                self._header = self._credentials.basic()
            case "bearer":
                self._header = (
                    f"Bearer {self._token(dict(_CHALLENGE.findall(rest)), session, timeout)}"
                )
            case _:
                raise self._refused("no credentials for it", challenge or "no challenge")

    def _token(
        self, challenge: dict[str, str], session: requests.Session, timeout: tuple[float, float]
    ) -> str:
        realm = challenge.get("realm", "")
        require_safe(realm, self._repository)
        scopes = [challenge["scope"]] if challenge.get("scope") else []
        query: dict[str, Any] = {"scope": list(dict.fromkeys((*scopes, *self._scopes)))}
        if "service" in challenge:
            query["service"] = challenge["service"]
        with self._asked(realm, query, session, timeout) as answer:
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

    def _asked(
        self,
        realm: str,
        query: dict[str, Any],
        session: requests.Session,
        timeout: tuple[float, float],
    ) -> requests.Response:
        known = self._credentials
        options: dict[str, Any] = {"allow_redirects": False, "timeout": timeout, "stream": True}
        if known is not None and known.identity is not None:
            form = {"grant_type": "refresh_token", "refresh_token": known.identity}
            form |= query | {"scope": " ".join(query["scope"]), "client_id": "vllm-sm120"}
            return session.post(realm, data=form, **options)
        headers = {} if known is None else {"Authorization": known.basic()}
        return session.get(realm, params=query, headers=headers, **options)

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
