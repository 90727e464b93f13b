"""Signatures by cosign: with a key, or keyless in a CI that has an identity.

With a key, nothing but the registry is asked: no transparency log, no certificate authority, so it
works without a network. Keyless, the identity comes of the CI's token, and the log is what makes
the short-lived certificate worth anything later.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.errors import TargetError, VerifyError
from imagebuild.images.registry_auth import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KEYLESS = "keyless"
_SAID = 1000


@dataclass(frozen=True)
class Expected:
    """Who must have signed.

    Attributes:
        key: a public key's file.
        identity, issuer: of the certificate of a keyless signature; both, or none.
    """

    key: Path | None = None
    identity: str | None = None
    issuer: str | None = None

    @property
    def arguments(self) -> list[str]:
        """What cosign is told."""
        if self.key is not None:
            return [f"--key={self.key}", "--insecure-ignore-tlog=true"]
        return [
            f"--certificate-identity={self.identity}",
            f"--certificate-oidc-issuer={self.issuer}",
        ]

    def __bool__(self) -> bool:
        """Return whether anybody is named."""
        return self.key is not None or self.identity is not None


def sign(refs: Sequence[str], key: str) -> None:
    """Sign images by digest; `key` is a key's file or any other of cosign's, or `keyless`.

    Raises:
        TargetError: if cosign is not there, or does not sign.
    """
    for ref in refs:
        command = ["cosign", "sign", "--yes", *_plain(ref)]
        if key != KEYLESS:
            command += [f"--key={key}", "--tlog-upload=false", "--use-signing-config=false"]
        said = _run([*command, ref])
        if said is not None:
            raise TargetError(
                "the image is pushed, and not signed",
                file=ref,
                expected="cosign's signature (its password comes from COSIGN_PASSWORD)",
                found=said,
                next_command=" ".join([*command, ref]),
            )


def check(ref: str, expected: Expected) -> None:
    """Do nothing if an image is signed by whom it must be.

    Raises:
        VerifyError: if not.
        TargetError: if cosign is not there.
    """
    command = ["cosign", "verify", *_plain(ref), *expected.arguments, ref]
    said = _run(command)
    if said is not None:
        raise VerifyError(
            "no signature of whom it should be",
            file=ref,
            expected=" ".join(expected.arguments),
            found=said,
            next_command=" ".join(command),
        )


def _run(command: list[str]) -> str | None:
    """Run cosign; return what it says if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise TargetError(
            "there is no cosign",
            file=command[0],
            expected="the program `cosign` on PATH",
            found=error.strerror,
            next_command="apt-get install cosign",
        ) from error
    return None if done.returncode == 0 else done.stderr.strip()[-_SAID:]


def _plain(ref: str) -> list[str]:
    return ["--allow-http-registry"] if LOOPBACK.match(ref.partition("/")[0]) else []
