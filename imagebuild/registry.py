"""Reading images from a registry: manifests and configs, by digest, verified on the raw bytes.

The protocols: OCI distribution spec 1.1; Docker's token authentication (docs of distribution,
"spec/auth/token"). Own code on requests: `oras` 0.2.43 parses a manifest before anybody can hash
it, sets no time limits and follows redirects anywhere; docs/rejected.md has the details.

Errors by what went wrong: `RegistryError` if the registry gives no answer that one could judge
(unreachable, no access, no such image), `ChecksumError` if the bytes are not the ones asked for,
`ArchiveError` if they are, and make no sense.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urljoin, urlsplit

from imagebuild import transport
from imagebuild.digest import Sha256, parse_sha256, sha256_bytes
from imagebuild.errors import ChecksumError
from imagebuild.oci import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_DOCUMENT,
    Index,
    damaged,
    parse_manifest,
)
from imagebuild.ocibase import check_document
from imagebuild.registry_auth import (
    LOOPBACK,
    Authority,
    docker_config,
    registry_error,
    require_safe,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests

    from imagebuild.errors import RegistryError
    from imagebuild.registry_auth import Credentials

_ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_TIMEOUT = (10, 60)  # seconds to connect, and between two pieces
_CHUNK = 1 << 20
_REDIRECTS = 5
_DOCKER_HUB = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
_OK, _UNAUTHORIZED = 200, 401
_MOVED = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class Resolved:
    """What a tag means now.

    Attributes:
        digest: the digest of the index, or of the manifest.
        platforms: the digest of each platform's manifest, by `os/architecture`.
    """

    digest: Sha256
    platforms: dict[str, Sha256]


@dataclass
class Registry:
    """One repository of a registry; a `Source` of manifests and blobs.

    Attributes:
        repository: with its registry, such as `docker.io/vllm/vllm-openai`.
        credentials: for the registry; by default those that Docker's own configuration has.
    """

    repository: str
    credentials: Credentials | None = None
    _session: requests.Session | None = field(default=None, repr=False)
    _authority: Authority | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """The repository."""
        return self.repository

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes its connections."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        if self._session is not None:
            self._session.close()

    def manifest(self, digest: Sha256) -> bytes:
        """Return a manifest's bytes.

        Raises:
            RegistryError: if the registry does not give one.
            ChecksumError: if it gives another one.
            ArchiveError: if it is absurdly large.
        """
        data = self._manifest(f"sha256:{digest}")
        return check_document(data, digest, f"{self.repository}@sha256:{digest}")

    def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
        """Yield a blob's bytes in pieces of at most 1 MiB.

        Raises:
            RegistryError: if the registry does not give one.
            ChecksumError: as soon as it is too long, or after its end, if it is another one.
        """
        url = f"blobs/sha256:{digest}"
        found, length = hashlib.sha256(), 0
        for chunk in self._get(url, "*/*"):
            found.update(chunk)
            length += len(chunk)
            if length > size:
                break
            yield chunk
        if (found.hexdigest(), length) != (digest, size):
            raise ChecksumError(
                "a blob is not the one asked for",
                file=f"{self.repository}@sha256:{digest}",
                expected=f"sha256:{digest}, {size} bytes",
                found=f"sha256:{found.hexdigest()}, {length} bytes",
                next_command="the same command again; then python build.py lock",
            )

    def resolve(self, tag: str) -> Resolved:
        """Return what `tag` means now.

        Raises:
            RegistryError: if the registry does not say.
            ArchiveError: if what it says makes no sense.
        """
        data = self._manifest(tag)
        digest = sha256_bytes(data)
        document = parse_manifest(data, f"{self.repository}:{tag}")
        if not isinstance(document, Index):
            return Resolved(digest, {})
        platforms = {
            f"{entry.platform.os}/{entry.platform.architecture}": parse_sha256(entry.digest)
            for entry in document.manifests
            if entry.platform is not None and entry.media_type in MANIFEST_TYPES
        }
        return Resolved(digest, platforms)

    def _manifest(self, reference: str) -> bytes:
        data = b""
        for chunk in self._get(f"manifests/{reference}", _ACCEPT):
            data += chunk
            if len(data) > MAX_DOCUMENT:
                where = f"{self.repository}, {reference}"
                raise damaged("a manifest is too large", where, f"{MAX_DOCUMENT} bytes", "more")
        return data

    def _get(self, what: str, accept: str) -> Iterator[bytes]:
        import requests  # noqa: PLC0415  (kept out of start-up)

        host, _, name = self.repository.partition("/")
        scheme = "http" if LOOPBACK.match(host) else "https"
        url = f"{scheme}://{_DOCKER_HUB.get(host, host)}/v2/{name}/{what}"
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        try:
            with self._answer(url, headers) as answer:
                for chunk in answer.iter_content(_CHUNK):
                    yield bytes(chunk)
        except (requests.RequestException, ValueError) as error:
            found = transport.reason(error)
            raise self._failure("the registry does not answer", url, "an answer", found) from error

    def _answer(self, url: str, headers: dict[str, str]) -> requests.Response:
        """Return the answer to a request after authentication and redirects."""
        session, authority = self._connected()
        home = urlsplit(url).netloc
        for _ in range(_REDIRECTS + 1):
            own = urlsplit(url).netloc == home
            sent = headers | (authority.headers() if own else {})
            answer = self._send(session, url, sent)
            if answer.status_code == _UNAUTHORIZED and own:
                challenge = answer.headers.get("WWW-Authenticate", "")
                answer.close()
                authority.meet(challenge, session, _TIMEOUT)
                answer = self._send(session, url, headers | authority.headers())
            if answer.status_code in _MOVED and "Location" in answer.headers:
                url = urljoin(url, answer.headers["Location"])
                answer.close()
                continue
            if answer.status_code == _OK:
                return answer
            found = f"{answer.status_code} {answer.reason}"
            answer.close()
            raise self._failure("the registry refuses a request", url, "200 OK", found)
        found = f"more than {_REDIRECTS}, the last to {url}"
        raise self._failure("the registry redirects in circles", url, "an answer", found)

    def _send(
        self, session: requests.Session, url: str, headers: dict[str, str]
    ) -> requests.Response:
        require_safe(url, self.repository)
        options: dict[str, Any] = {"stream": True, "allow_redirects": False, "timeout": _TIMEOUT}
        return session.get(url, headers=headers, **options)

    def _connected(self) -> tuple[requests.Session, Authority]:
        import requests  # noqa: PLC0415  (kept out of start-up)

        if self._session is None or self._authority is None:
            host, _, name = self.repository.partition("/")
            self._session = requests.Session()
            # Credentials come from Docker's configuration, never from ~/.netrc for any host.
            self._session.auth = _no_auth
            credentials = self.credentials or docker_config(host)
            self._authority = Authority(self.repository, f"repository:{name}:pull", credentials)
        return self._session, self._authority

    def _failure(self, summary: str, url: str, expected: str, found: object) -> RegistryError:
        return registry_error(summary, f"{self.repository} ({url})", expected, found)


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
