"""Writing to a registry: blobs by mount or upload, manifests by digest, a tag last.

OCI distribution spec 1.1, "Push". A blob of at most one chunk goes in one request; a larger one in
chunks, and a chunk that was cut goes on from where the registry says it stopped. Where it does not
say, the blob starts anew: the registry compares the whole with the digest in any case.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import RegistryError
from imagebuild.fetch.transport import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import requests

    from imagebuild.images.registry_http import Connection

CHUNK = 4 << 20
"""Bytes of one request; the largest body that ghcr.io takes."""
_MAX_CHUNK = 64 << 20
_OCTETS = {"Content-Type": "application/octet-stream"}
_RANGE = re.compile(r"^(?:bytes=)?0-([0-9]+)\Z")
_OK, _CREATED, _ACCEPTED, _NO_CONTENT = 200, 201, 202, 204
_NOT_FOUND, _OUT_OF_RANGE = 404, 416


class _StartAnewError(Exception):
    """The registry has lost what it had of a blob."""


@dataclass
class Traffic:
    """What a push has cost.

    Attributes:
        uploaded: bytes of blobs that were sent, those of broken attempts included.
        blobs: blobs that were sent.
        mounted: blobs that the registry took over from another repository.
        present: blobs that were there already.
    """

    uploaded: int = 0
    blobs: int = 0
    mounted: int = 0
    present: int = 0


@dataclass
class Writer:
    """Writes to one repository.

    Attributes:
        connection: the way there, with `push` among its actions.
        traffic: what it has cost so far.
    """

    connection: Connection
    traffic: Traffic = field(default_factory=Traffic)

    def has(self, digest: Sha256) -> bool:
        """Return whether the repository has a blob."""
        url = self.connection.url(f"blobs/sha256:{digest}")
        with self.connection.ask("HEAD", url, {}, expect=(_OK, _NOT_FOUND)) as answer:
            return answer.status_code == _OK

    def blob(
        self,
        digest: Sha256,
        size: int,
        read: Callable[[], Iterator[bytes]],
        done: Callable[[int], None],
        mount: str | None = None,
    ) -> None:
        """Put a blob into the repository, in the cheapest way that the registry offers.

        Args:
            digest: the blob's digest.
            size: its size in bytes.
            read: opens the blob; may be called again. Raises after the last piece if the bytes are
                not the ones asked for, so that such a blob is never finished.
            done: is told of the bytes that need no sending any more.
            mount: a repository of the same registry that has it.

        Raises:
            RegistryError: if the registry does not take it.
            BuildError: as `read`.
        """
        if self.has(digest):
            self.traffic.present += 1
            done(size)
            return
        session = self._mount(digest, mount) if mount is not None else None
        if session == "":
            self.traffic.mounted += 1
            done(size)
            return
        failures = 0
        while True:
            location, chunk = self._session(session)
            session = None
            try:
                self._upload(location, chunk, digest, size, read)
            except _StartAnewError as error:
                failures += 1
                lost = TransientError(str(error))
                self.connection.wait(failures, lost, self.connection.url("blobs/uploads/"))
                continue
            self.traffic.blobs += 1
            done(size)
            return

    def manifest(self, data: bytes, media_type: str, reference: str | None = None) -> bool:
        """Put a manifest under its digest, or under a tag.

        Returns:
            Whether the registry knows referrers (distribution spec, "Pushing Manifests with
            Subject": the header OCI-Subject).

        Raises:
            RegistryError: if the registry does not take it, or notes another digest.
        """
        digest = f"sha256:{sha256_bytes(data)}"
        url = self.connection.url(f"manifests/{reference or digest}")
        with self.connection.ask(
            "PUT", url, {"Content-Type": media_type}, expect=(_CREATED,), data=data
        ) as answer:
            noted = answer.headers.get("Docker-Content-Digest", digest)
            if noted != digest:
                raise self.connection.failure(
                    "the registry notes another manifest than it was given", url, digest, noted
                )
            return "OCI-Subject" in answer.headers

    def _mount(self, digest: Sha256, repository: str) -> str | None:
        """Return the empty string if the blob was mounted, else where to upload it, if said."""
        name = repository.partition("/")[2]
        url = self.connection.url(f"blobs/uploads/?mount=sha256:{digest}&from={name}")
        headers = {"Content-Length": "0"}
        try:
            with self.connection.ask(
                "POST", url, headers, expect=(_CREATED, _ACCEPTED), data=b""
            ) as answer:
                return "" if answer.status_code == _CREATED else self._location(answer, url)
        except RegistryError:
            return None  # a registry may know no mounts, or not let us read there: then we upload

    def _session(self, known: str | None) -> tuple[str, int]:
        """Return where to upload a blob, and how much at once."""
        if known:
            return known, CHUNK
        url = self.connection.url("blobs/uploads/")
        headers = {"Content-Length": "0"}
        with self.connection.ask("POST", url, headers, expect=(_ACCEPTED,), data=b"") as answer:
            least = answer.headers.get("OCI-Chunk-Min-Length", "")
            wanted = int(least[:9]) if least.isascii() and least.isdigit() else 0
            return self._location(answer, url), min(max(CHUNK, wanted), _MAX_CHUNK)

    def _location(self, answer: requests.Response, url: str) -> str:
        location = answer.headers.get("Location", "")
        with contextlib.suppress(ValueError):
            if location:
                return urljoin(answer.url or url, location)
        raise self.connection.failure(
            "the registry takes a blob and does not say where",
            url,
            "a Location",
            location or "none",
        )

    def _upload(
        self,
        location: str,
        chunk: int,
        digest: Sha256,
        size: int,
        read: Callable[[], Iterator[bytes]],
    ) -> None:
        if size <= chunk:
            self._finish(location, digest, b"".join(read()))
            return
        start = 0
        for piece in _pieces(read(), chunk):
            location = self._patch(location, piece, start)
            start += len(piece)
        self._finish(location, digest, b"")

    def _finish(self, location: str, digest: Sha256, data: bytes) -> None:
        url = f"{location}{'&' if '?' in location else '?'}digest=sha256:{digest}"
        self.traffic.uploaded += len(data)
        try:
            self.connection.once("PUT", url, _OCTETS, expect=(_CREATED,), data=data).close()
        except TransientError as error:
            if not self.has(digest):  # the answer may be all that was lost
                raise _StartAnewError(error.reason) from error

    def _patch(self, location: str, piece: bytes, start: int) -> str:
        """Send one chunk; return where the next one goes."""
        end, failures, position = start + len(piece), 0, start
        while position < end:
            rest = piece[position - start :]
            headers = {**_OCTETS, "Content-Range": f"{position}-{end - 1}"}
            self.traffic.uploaded += len(rest)
            try:
                with self.connection.once(
                    "PATCH", location, headers, expect=(_ACCEPTED, _OUT_OF_RANGE), data=rest
                ) as answer:
                    if answer.status_code == _ACCEPTED:
                        position = self._position(answer, end)
                        location = self._location(answer, location)
                        self._require(start, position, end)
                        continue
                    error = TransientError("416, another offset expected")
            except TransientError as cut:
                error = cut
            except RegistryError as refused:
                if not failures:
                    raise
                # It may still be storing what came before the cut, and have lost its place.
                raise _StartAnewError(refused.found or refused.summary) from refused
            failures += 1
            self.connection.wait(failures, error, location)
            location, position = self._resume(location)
            self._require(start, position, end)
        return location

    def _resume(self, location: str) -> tuple[str, int]:
        """Return where an upload goes on, and from which offset."""
        try:
            with self.connection.ask("GET", location, {}, expect=(_NO_CONTENT,)) as answer:
                return self._location(answer, location), self._position(answer, 0)
        except RegistryError as error:
            raise _StartAnewError(error.found or error.summary) from error

    def _position(self, answer: requests.Response, default: int) -> int:
        """Return how many bytes the registry has, as its Range header says (inclusive)."""
        match = _RANGE.match(answer.headers.get("Range", ""))
        if match is None:
            return default
        last = int(match[1][:18])
        return last + 1 if last else 0  # "0-0" is how an empty upload is written

    def _require(self, start: int, position: int, end: int) -> None:
        if not start <= position <= end:
            raise _StartAnewError(f"offset {position}, not {start} to {end}")


def _pieces(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of `size`, the last one shorter."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
