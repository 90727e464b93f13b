"""What pip is configured with, as pip itself reports it.

`python -m pip config list` merges pip's files and its environment variables; where pip is missing,
the environment alone counts. Later sections win, as in pip: `global`, the commands' sections, the
environment (pip's user guide, "Configuration").
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass

_SECTIONS = ("global", "install", "download", ":env:")
_DEFAULT_TIMEOUT = 15.0
"""Seconds; pip's own default of `--timeout`."""
_NO = {"", "0", "n", "no", "f", "false", "off"}


@dataclass(frozen=True)
class PipSettings:
    """The part of pip's configuration that matters for reading an index.

    Attributes:
        index_urls: the indexes in pip's order, credentials included: never print them as they are.
            None in first place stands for the index that pip uses by default.
        find_links: folders and pages with files.
        cert: a file of certificates to trust, or None.
        client_cert: a file with the client's key and certificate, or None.
        proxy: the proxy for all requests, or None for the environment's.
        timeout: seconds to wait for a connection and between two pieces of a response.
    """

    index_urls: tuple[str | None, ...] = (None,)
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = _DEFAULT_TIMEOUT


def read() -> PipSettings:
    """Return pip's configuration for this interpreter, this user and this environment."""
    return parse(_listing())


def parse(listing: str) -> PipSettings:
    """Return the configuration in the output of `pip config list`.

    Lines that this code does not know are ignored, as pip ignores keys of other commands.
    """
    values = _merge(listing)
    index_urls: tuple[str | None, ...] = (
        values.get("index-url", values.get("pypi-url")) or None,
        *values.get("extra-index-url", "").split(),
    )
    if values.get("no-index", "").lower() not in _NO:
        index_urls = ()
    return PipSettings(
        index_urls=index_urls,
        find_links=tuple(values.get("find-links", "").split()),
        cert=values.get("cert"),
        client_cert=values.get("client-cert"),
        proxy=values.get("proxy"),
        timeout=_seconds(values.get("timeout", values.get("default-timeout"))),
    )


def _merge(listing: str) -> dict[str, str]:
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in listing.splitlines():
        key, assigned, literal = line.partition("=")
        section, _, name = key.rpartition(".")
        if not assigned or section not in sections:
            continue
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            continue
        if isinstance(value, str) and value.strip():
            sections[section][name.strip().replace("_", "-")] = value.strip()
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged |= sections[section]
    return merged


def _seconds(text: str | None) -> float:
    try:
        value = float(text or _DEFAULT_TIMEOUT)
    except ValueError:
        return _DEFAULT_TIMEOUT
    return value if 0 < value < float("inf") else _DEFAULT_TIMEOUT


def _listing() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        capture_output=True,
        check=False,
        text=True,
        errors="replace",
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    if done.returncode == 0:
        return done.stdout
    return "\n".join(
        f":env:.{name[4:].lower().replace('_', '-')}={value!r}"
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    )
