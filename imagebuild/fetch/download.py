"""Getting a pinned file: from the cache, from a local copy, or from the package index.

A download goes to `HEX.part` in the cache and gets the blob's name only when its hash is the pin's.
A cut connection or a killed process loses nothing: the next attempt asks for the missing bytes
(RFC 9110 section 14), and since the hash runs over all of them, a server that answers with other
bytes is found out.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from imagebuild.digest import parse_sha256, sha256_file
from imagebuild.errors import ChecksumError, SourceError
from imagebuild.fetch import package_index, transport
from imagebuild.fetch.partial import PartialFile
from imagebuild.fetch.transport import Patience, TransientError, redacted
from imagebuild.files import storing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests

    from imagebuild.fetch.cache import Cache, Slot
    from imagebuild.fetch.package_index import IndexFile, PackageIndex
    from imagebuild.progress import Progress
    from imagebuild.upstream import FilePin

_CHUNK = 1 << 16
_LARGEST = 4 << 30
"""Bytes; no file of a release is near this, and a server that states no size is stopped there."""
_RANGE = re.compile(r"bytes (?P<start>[0-9]{1,18})-[0-9]+/(?P<total>[0-9]{1,18}|\*)")
_RELOOK = "python build.py lock"
_AGAIN = "python build.py build"


def fetch(
    pin: FilePin,
    cache: Cache,
    progress: Progress,
    project: str = "vllm",
    *,
    offline: bool = False,
    local: Path | None = None,
    patience: Patience = Patience(),  # noqa: B008  (frozen)
) -> Path:
    """Return the pinned file in the cache, read-only, its content verified.

    Args:
        pin: the file's name and digest.
        cache: where it is kept.
        progress: told of downloading, verifying, waiting and retrying.
        project: the project of the index that the file belongs to.
        offline: never to touch the network.
        local: a copy of the file on this machine, used instead of the index.
        patience: how often to try again.

    Raises:
        ChecksumError: if what arrives, or the local copy, is not what is pinned; it is not kept.
        SourceError: if the file cannot be had: no network, not in the index, offline.
        StorageError: if the cache cannot be written.
    """
    sha256 = parse_sha256(pin.sha256)
    if (known := cache.known(sha256)) is not None:
        return known
    with cache.locked(sha256, progress, pin.name) as slot:
        if (known := slot.verified(progress, pin.name)) is not None:
            return known
        if local is not None:
            return _copy(local, _Job(pin, slot, progress))
        with PartialFile(slot, pin.name, progress) as part:
            if part.digest == sha256:
                return slot.publish(part.digest)
            if offline:
                raise SourceError(
                    f"{pin.name} is not in the cache, and the network is off",
                    file=slot.blob,
                    expected=pin.sha256,
                    found=f"{part.size} bytes of it" if part.size else "nothing",
                    next_command=f"{_AGAIN}  (without --offline)",
                )
            with package_index.configured(patience) as index:
                file = index.find(project, pin.name, pin.sha256)
                return _from_index(index, file, part, _Job(pin, slot, progress))


@dataclass(frozen=True)
class _Job:
    """One file to get, with the lock of its place in the cache held."""

    pin: FilePin
    slot: Slot
    progress: Progress


def _from_index(index: PackageIndex, file: IndexFile, part: PartialFile, job: _Job) -> Path:
    pin = job.pin
    if file.sha256 not in {None, pin.sha256}:
        raise _wrong(file.url, pin, file.sha256, "the package index states another digest")
    if file.url.startswith("file:"):
        return _copy(Path(unquote(urlsplit(file.url).path)), job)
    if part.size > (file.size or _LARGEST):
        part.start_over(None)
    while True:
        _complete(index, file, part, job.progress)
        if part.digest == job.slot.sha256:
            return job.slot.publish(part.digest)
        found, certain = part.digest, part.at_once
        part.start_over(None)
        if certain:
            raise _wrong(file.url, pin, found, "the download is not what is pinned")
        job.progress.note(f"{pin.name}: the resumed download has the wrong hash, starting over")


def _complete(index: PackageIndex, file: IndexFile, part: PartialFile, progress: Progress) -> None:
    """Fetch until the server says that the part is whole."""
    failures = 0
    while file.size is None or part.size < file.size:
        before = part.size
        try:
            _request(index, file, part, progress)
        except TransientError as error:
            failures = 1 if part.size > before else failures + 1
            pause = index.patience.pause(failures, error)
            if pause is None:
                raise transport.gave_up(file.url, error, _AGAIN) from error
            progress.note(f"{file.name}: {error.reason} after {part.size} bytes, trying again")
            index.patience.sleep(pause)
        else:
            return


def _request(index: PackageIndex, file: IndexFile, part: PartialFile, progress: Progress) -> None:
    """Fetch what is missing, in one request."""
    headers = {"Accept-Encoding": "identity"}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
        if part.etag is not None:
            headers["If-Range"] = part.etag
    response = transport.get(
        index.session, file.url, timeout=index.timeout, headers=headers, stream=True
    )
    with contextlib.closing(response):
        _begin(response, file, part)
        length = response.headers.get("Content-Length", "")
        total = part.size + int(length[:18]) if length.isdecimal() else file.size
        limit = file.size or _LARGEST
        if total is not None and (total > limit or total != (file.size or total)):
            part.start_over(None)
            raise _wrong_size(file, total)
        with progress.step("download", file.name, total) as advance:
            advance(part.size)
            for chunk in _body(response):
                if part.size + len(chunk) > limit:
                    part.start_over(None)
                    raise _wrong_size(file, f"more than {limit}")
                part.append(chunk)
                advance(len(chunk))
    if part.size < (total or 0):
        raise TransientError("the connection was cut")


def _begin(response: requests.Response, file: IndexFile, part: PartialFile) -> None:
    """Bring the part to where the response's body begins.

    Raises:
        TransientError: if the body begins elsewhere; the part is empty then, so that the next
            request is a plain one.
        SourceError: if there is no body.
    """
    status = response.status_code
    etag = response.headers.get("ETag")
    if status == 200:  # noqa: PLR2004
        part.start_over(etag if etag is not None and etag.startswith('"') else None)
    elif status == 206:  # noqa: PLR2004
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if part.size == 0 or found is None or int(found["start"]) != part.size:
            part.start_over(None)
            raise TransientError("the server sent another range than asked for")
    elif status == 416:  # noqa: PLR2004
        part.start_over(None)
        raise TransientError("the server's file is shorter than what is here")
    else:
        raise SourceError(
            f"the server does not give {file.name}",
            file=redacted(file.url),
            expected="HTTP 200 or 206",
            found=f"HTTP {status}",
            next_command=_AGAIN if status >= 500 else _RELOOK,  # noqa: PLR2004
        )


def _body(response: requests.Response) -> Iterator[bytes]:
    """Yield the body's bytes as they are on the wire, whatever encoding the server claims."""
    import urllib3  # noqa: PLC0415  (kept out of start-up)

    try:
        yield from response.raw.stream(_CHUNK, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise TransientError(f"the connection was cut ({transport.reason(error)})") from error


def _copy(source: Path, job: _Job) -> Path:
    """Take a file of this machine into the cache, if it is the pinned one."""
    pin, slot, progress = job.pin, job.slot, job.progress
    if not source.is_file():
        raise SourceError(
            f"there is no copy of {pin.name} here",
            file=source,
            expected="a regular file",
            found="something else" if source.exists() else "nothing",
            next_command=f"ls -l {source.parent}",
        )
    with storing(source), progress.step("verify", pin.name, source.stat().st_size) as advance:
        found = sha256_file(source)
        advance(source.stat().st_size)
    if found != slot.sha256:
        raise _wrong(source, pin, found, "the local file is not what is pinned")
    slot.discard_part()
    with storing(source), source.open("rb") as file, PartialFile(slot, pin.name, progress) as part:
        while chunk := file.read(_CHUNK):
            part.append(chunk)
        if part.digest != slot.sha256:
            part.start_over(None)
            raise _wrong(source, pin, part.digest, "the local file changes while it is read")
        return slot.publish(part.digest)


def _wrong(where: object, pin: FilePin, found: str | None, summary: str) -> ChecksumError:
    return ChecksumError(
        f"{pin.name}: {summary}",
        file=redacted(where) if isinstance(where, str) else where,
        expected=f"sha256:{pin.sha256}",
        found=f"sha256:{found}",
        next_command=_RELOOK,
    )


def _wrong_size(file: IndexFile, found: object) -> ChecksumError:
    return ChecksumError(
        f"{file.name}: the server's file does not have the size that it must have",
        file=redacted(file.url),
        expected=f"{file.size} bytes" if file.size else f"at most {_LARGEST} bytes",
        found=f"{found} bytes",
        next_command=_RELOOK,
    )
