"""HTTP requests whose failures are either worth another attempt or told to a person."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable  # noqa: TC003  (a dataclass names it)
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from imagebuild.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import requests

T = TypeVar("T")

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that another attempt may cure (RFC 9110 section 15, RFC 6585, RFC 8470)."""


class TransientError(Exception):
    """An attempt failed in a way that another may not.

    Attributes:
        reason: what happened, for people.
        retry_after: seconds that the server asks to wait, if it does.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True)
class Patience:
    """How often and how long to wait between attempts.

    Attributes:
        attempts: how many attempts in a row may fail without one new byte.
        first: seconds before the second attempt; doubled for each further one.
        longest: the longest wait in seconds, also for a server that asks for more.
        sleep: how to wait.
    """

    attempts: int = 4
    first: float = 0.5
    longest: float = 60.0
    sleep: Callable[[float], None] = time.sleep

    def pause(self, failures: int, error: TransientError) -> float | None:
        """Return the seconds to wait after `failures` failed attempts; None to give up."""
        asked = error.retry_after or 0.0
        if failures >= self.attempts or asked > self.longest:
            return None
        return max(asked, min(self.first * 2.0 ** max(failures - 1, 0), self.longest))


def redacted(url: str) -> str:
    """Return `url` without user, password, query and fragment, for messages."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def reason(error: BaseException) -> str:
    """Return the innermost cause of a network library's error, in a few words and without URLs."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        inner = [getattr(current, "reason", None), *current.args, current.__cause__]
        current = next((item for item in inner if isinstance(item, BaseException)), None)
    last = seen[-1]
    text = getattr(last, "strerror", None)
    return text if isinstance(text, str) and text else type(last).__name__


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that `Retry-After` asks for, or None (RFC 9110 section 10.2.3)."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    return max(0.0, (when - dt.datetime.now(dt.UTC)).total_seconds())


def get(
    session: requests.Session,
    url: str,
    *,
    timeout: float,
    headers: Mapping[str, str],
    stream: bool = False,
) -> requests.Response:
    """Return the response to one GET request, whatever its status but a transient one.

    Raises:
        TransientError: if the connection fails or the status is one of `TRANSIENT_STATUS`.
        SourceError: if the request cannot succeed, such as for a certificate that is not trusted.
    """
    import requests  # noqa: PLC0415  (kept out of start-up)

    try:
        response = session.get(url, timeout=timeout, headers=dict(headers), stream=stream)
    except requests.exceptions.SSLError as error:
        raise SourceError(
            "the server's certificate is not trusted",
            file=redacted(url),
            expected="a certificate that pip's setting `cert` or the system vouches for",
            found=reason(error),
            next_command="python -m pip config list",
        ) from error
    except (
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
    ) as error:
        raise TransientError(reason(error)) from error
    except requests.RequestException as error:
        raise SourceError(
            "the request cannot be made",
            file=redacted(url),
            expected="an address that answers to HTTP",
            found=type(error).__name__,
            next_command="python -m pip config list",
        ) from error
    if response.status_code in TRANSIENT_STATUS:
        wait = retry_after(response.headers)
        response.close()
        raise TransientError(f"HTTP {response.status_code}", wait)
    return response


def gave_up(url: str, error: TransientError, next_command: str) -> SourceError:
    """Return the error for a server that did not get better within our patience."""
    waits = error.retry_after
    return SourceError(
        "no network, or the server does not answer",
        file=redacted(url),
        expected="an answer",
        found=error.reason + (f", asks to wait {waits:.0f} s" if waits else ""),
        next_command=next_command,
    )


def attempt(call: Callable[[], T], url: str, patience: Patience, next_command: str) -> T:
    """Return what `call` returns, called again after a pause while it fails transiently.

    Raises:
        SourceError: if it still fails after the last attempt.
    """
    failures = 0
    while True:
        try:
            return call()
        except TransientError as error:
            failures += 1
            pause = patience.pause(failures, error)
            if pause is None:
                raise gave_up(url, error, next_command) from error
            patience.sleep(pause)
