"""Requests to one repository of a registry: authentication, redirects, time limits, patience.

The protocols: OCI distribution spec 1.1; Docker's token authentication (docs of distribution,
"spec/auth/token"). What another attempt may cure is tried again after a pause, as long as the
registry asks with `Retry-After`; everything else is an error at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from imagebuild.fetch import transport
from imagebuild.fetch.transport import TRANSIENT_STATUS, Patience, TransientError
from imagebuild.images.docker_credentials import docker_config
from imagebuild.images.registry_auth import (
    LOOPBACK,
    Authority,
    registry_error,
    require_safe,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import requests

    from imagebuild.errors import RegistryError
    from imagebuild.images.docker_credentials import Credentials

_REDIRECTS = 5
_DOCKER_HUB = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
_UNAUTHORIZED = 401
_MOVED = (301, 302, 303, 307, 308)
_KEEPS_METHOD = (307, 308)
_READS = ("GET", "HEAD")


@dataclass
class Connection:
    """A way to talk to one repository.

    Attributes:
        repository: with its registry, such as `docker.io/vllm/vllm-openai`.
        actions: what a token is asked for: `pull`, or `pull,push`.
        borrows: names of other repositories of the registry that blobs are mounted from.
        credentials: for the registry; by default those that Docker's own configuration has.
        patience: how often and how long to try again.
        timeout: seconds to connect, and between two pieces.
    """

    repository: str
    actions: str = "pull"
    borrows: tuple[str, ...] = ()
    credentials: Credentials | None = None
    patience: Patience = field(default_factory=Patience)
    timeout: tuple[float, float] = (10, 60)
    _session: requests.Session | None = field(default=None, repr=False)
    _authority: Authority | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """The registry, as references write it."""
        return self.repository.partition("/")[0]

    @property
    def name(self) -> str:
        """The repository's name inside its registry."""
        return self.repository.partition("/")[2]

    def url(self, what: str) -> str:
        """Return the address of something below the repository, such as `blobs/sha256:…`."""
        return urljoin(self._root(), f"/v2/{self.name}/{what}")

    def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            self._session.close()

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        expect: tuple[int, ...] = (200,),
        data: bytes | None = None,
    ) -> requests.Response:
        """Return an answer whose status is expected; the caller reads and closes it.

        Raises:
            RegistryError: if there is none within our patience, or it has another status.
        """
        failures = 0
        while True:
            try:
                return self.once(method, url, headers, expect=expect, data=data)
            except TransientError as error:
                failures += 1
                self.wait(failures, error, url)

    def wait(self, failures: int, error: TransientError, url: str) -> None:
        """Wait before the next attempt.

        Raises:
            RegistryError: if our patience is at its end.
        """
        pause = self.patience.pause(failures, error)
        if pause is None:
            wish = error.retry_after
            asked = f", asks to wait {wish:.0f} s" if wish else ""
            status = error.reason[:1].isdigit()
            summary = "refuses a request" if status else "does not answer"
            raise self.failure(
                f"the registry {summary}",
                url,
                "200 OK" if status else "an answer",
                error.reason + asked,
            ) from error
        self.patience.sleep(pause)

    def once(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        expect: tuple[int, ...] = (200,),
        data: bytes | None = None,
    ) -> requests.Response:
        """Return the answer to one attempt, after authentication and redirects.

        Raises:
            TransientError: if another attempt may do better.
            RegistryError: if not.
        """
        import requests  # noqa: PLC0415  (kept out of start-up)

        try:
            return self._answer(method, url, headers, expect, data)
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            if isinstance(error, requests.exceptions.SSLError):
                found = transport.reason(error)
                raise self.failure("not trusted", url, "a trusted certificate", found) from error
            raise TransientError(transport.reason(error)) from error
        except (requests.RequestException, ValueError) as error:
            found = transport.reason(error)
            raise self.failure("the registry does not answer", url, "an answer", found) from error

    def failure(self, summary: str, url: str, expected: str, found: object) -> RegistryError:
        """Return the error for something that this registry did."""
        where = f"{self.repository} ({transport.redacted(url)})"
        return registry_error(summary, where, expected, found)

    def _answer(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        expect: tuple[int, ...],
        data: bytes | None,
    ) -> requests.Response:
        session, authority = self._connected()
        home = urlsplit(self._root()).netloc
        for _ in range(_REDIRECTS + 1):
            own = urlsplit(url).netloc == home
            answer = self._send(
                session, method, url, {**headers, **(authority.headers() if own else {})}, data
            )
            if answer.status_code == _UNAUTHORIZED and own:
                challenge = answer.headers.get("WWW-Authenticate", "")
                answer.close()
                authority.meet(challenge, session, self.timeout)
                answer = self._send(session, method, url, {**headers, **authority.headers()}, data)
            status = answer.status_code
            if status in expect:
                return answer
            answer.close()
            follow = status in (_MOVED if method in _READS else _KEEPS_METHOD)
            if follow and "Location" in answer.headers:
                url = urljoin(url, answer.headers["Location"])
                continue
            found = f"{status} {answer.reason}"
            if status in TRANSIENT_STATUS:
                raise TransientError(found, transport.retry_after(answer.headers))
            raise self.failure(
                "the registry refuses a request", url, _expected(method, expect), found
            )
        found = f"more than {_REDIRECTS}, the last to {transport.redacted(url)}"
        raise self.failure("the registry redirects in circles", url, "an answer", found)

    def _send(
        self,
        session: requests.Session,
        method: str,
        url: str,
        headers: Mapping[str, str],
        data: bytes | None,
    ) -> requests.Response:
        require_safe(url, self.repository)
        options: dict[str, Any] = {
            "stream": True,
            "allow_redirects": False,
            "timeout": self.timeout,
        }
        return session.request(method, url, headers=dict(headers), data=data, **options)

    def _root(self) -> str:
        scheme = "http" if LOOPBACK.match(self.host) else "https"
        return f"{scheme}://{_DOCKER_HUB.get(self.host, self.host)}"

    def _connected(self) -> tuple[requests.Session, Authority]:
        import requests  # noqa: PLC0415  (kept out of start-up)

        if self._session is None or self._authority is None:
            self._session = requests.Session()
            # Credentials come from Docker's configuration, never from ~/.netrc for any host.
            self._session.auth = _no_auth
            credentials = self.credentials or docker_config(self.host)
            scopes = [f"repository:{self.name}:{self.actions}"]
            scopes += [f"repository:{name}:pull" for name in self.borrows]
            self._authority = Authority(self.repository, tuple(scopes), credentials)
        return self._session, self._authority


def _expected(method: str, expect: tuple[int, ...]) -> str:
    return "200 OK" if method in _READS else " or ".join(str(status) for status in expect)


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
