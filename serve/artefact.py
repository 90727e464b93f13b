"""What serves: an image by digest, or a Python environment with the patched wheel."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.attesting import releaselock
from imagebuild.errors import UnpinnedError, UsageError

if TYPE_CHECKING:
    from serve.profile import Named

ROOT = Path(__file__).parent.parent
_IMAGE = re.compile(r"^[^\s@]+@(sha256:[0-9a-f]{64})\Z")
# The wheel's digest is in the record of where pip had it from (PEP 610), if that was a file.
_DESCRIBE = """
import importlib.metadata, json, vllm, vllm._overlay
try:
    text = importlib.metadata.distribution("vllm").read_text("direct_url.json")
    record = json.loads(text or "{}")
except importlib.metadata.PackageNotFoundError:
    record = {}
digest = record.get("archive_info", {}).get("hashes", {}).get("sha256", "")
print(json.dumps([vllm.__version__, vllm._overlay.describe(), digest]))
"""


@dataclass(frozen=True)
class Image:
    """An image.

    Attributes:
        ref: its repository and digest.
        digest: the digest alone, with its algorithm.
    """

    ref: str
    digest: str


@dataclass(frozen=True)
class Environment:
    """A Python environment in which vLLM is installed.

    Attributes:
        python: its interpreter.
        version: vLLM's version there.
        overlay: what the installed overlay says of itself.
        sha256: the wheel's digest, if pip installed it from a file; else empty.
    """

    python: Path
    version: str
    overlay: str
    sha256: str


def image(ref: str) -> Image:
    """Return the image that a reference with a digest names.

    Raises:
        UsageError: if it names none by digest.
    """
    match = _IMAGE.match(ref)
    if match is None:
        raise UsageError(
            "an image is started by its digest, never by a tag",
            file=ref,
            expected="REGISTRY/NAME@sha256:…",
            found="a reference without a digest",
            next_command="python build.py verify REF, which tells the digest",
        )
    return Image(ref, match[1])


def published(named: Named) -> Image:
    """Return the newest published image of the profile's release line.

    Raises:
        UnpinnedError: if none is published.
        LockError: if release.lock cannot be read.
    """
    path = ROOT / releaselock.NAME
    entries = [e for e in releaselock.load(path).releases if e.line == named.profile.line]
    if not entries:
        raise UnpinnedError(
            f"no image of {named.profile.line} is published",
            file=path,
            expected=f"an entry of line {named.profile.line}",
            found="none",
            next_command=f"python -m serve start {named.name} --image REGISTRY/NAME@sha256:…, "
            "or --wheel PYTHON",
        )
    return image(f"{entries[-1].repository}@{entries[-1].digest}")


def environment(python: Path) -> Environment:
    """Return the environment of an interpreter.

    Raises:
        UsageError: if vLLM is not there.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _DESCRIBE], capture_output=True, text=True, check=False, timeout=300
        )
        told = json.loads((done.stdout.strip().splitlines() or ["null"])[-1])
        why = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        told, why = None, str(error)
    if not isinstance(told, list):
        raise UsageError(
            "this interpreter does not have the patched vLLM",
            file=python,
            expected="an environment in which the wheel that build.py makes is installed",
            found=why,
            next_command="python -m venv ENV && ENV/bin/pip install dist/vllm-*.whl",
        )
    version, overlay, digest = (str(each) for each in told)
    return Environment(python, version, overlay, digest)
