"""Causes that a server's log shows, and what to do about each.

The patterns are texts of vLLM 0.33.0, PyTorch, CUDA, Docker and the NVIDIA container toolkit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A known cause.

    Attributes:
        what: what it is.
        do: what to do.
    """

    what: str
    do: str


_KNOWN = (
    (
        r"no kernel image is available for execution on the device",
        "the image has no kernels for this card",
        "use the CUDA 13 image: images for CUDA 12.9 have SM120 kernels only, none for SM121",
    ),
    (
        r"CUDA driver version is insufficient|forward compatibility was attempted",
        "the driver is older than the image's CUDA",
        "install driver 580 or newer, and start again",
    ),
    (
        (
            r"larger than the (available KV cache memory|maximum number of tokens)|"
            r"needed.{0,80}KV cache.{0,80}available"
        ),
        "the KV pool does not hold one request of the whole context",
        "raise kv-pin or lower context in the profile; `python -m serve plan PROFILE` counts both",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|No available memory for the cache blocks",
        "the card's memory is used up",
        "close what else uses the card (nvidia-smi), or lower kv-pin, sequences or context",
    ),
    (
        r"[Aa]ddress already in use|port is already allocated",
        "the port is taken",
        "stop what listens there, or set [service] port in the profile",
    ),
    (
        r"No space left on device",
        "a disk is full",
        "df -h; `python -m serve stop --purge-cache` frees compiled kernels",
    ),
    (
        r"could not select device driver|nvidia-container-cli|unresolvable CDI devices",
        "Docker cannot give the card to a container",
        (
            "install the NVIDIA container toolkit, then `nvidia-ctk runtime configure` or "
            "`nvidia-ctk cdi generate`, and restart Docker"
        ),
    ),
    (
        r"unrecognized arguments|invalid choice:",
        "this vLLM does not know one of the profile's flags",
        "the profile is of another release line than the image; see the line of the log",
    ),
    (
        r"Could not find nvcc|nvcc: not found|ninja: (error|not found)|No such file.*nvcc",
        "FlashInfer has to compile a kernel, and there is no compiler",
        "with --wheel, install CUDA 13's nvcc and ninja; the image has both",
    ),
    (
        (
            r"outgoing traffic has been disabled|LocalEntryNotFoundError|"
            r"does not appear to have a file named"
        ),
        "the model's files are not complete",
        "`python -m serve start` again, which downloads what is missing",
    ),
    (
        r"Failed to connect to NVIDIA artifactory",
        "stock vLLM asks NVIDIA's server before it uses XQA",
        "this is not the patched vLLM: its patch xqa-offline asks nobody",
    ),
    (
        r"Permission denied",
        "a file or device may not be used",
        "see the line of the log; the model's folder must be readable for the container",
    ),
)
_ERROR = re.compile(r"\b(\w*(?:Error|Exception)\b|error:|ERROR|Traceback|Killed)")
_NOISE = re.compile(r"^\s*(\(\w+ pid=\d+\)\s*)?(ERROR [\d: -]+\[\S+\]\s*)?")


def explain(log: str) -> Cause | None:
    """Return the cause that a log shows, or None if it shows none that is known."""
    for pattern, what, do in _KNOWN:
        if re.search(pattern, log):
            return Cause(what, do)
    return None


def last_errors(log: str, lines: int = 8) -> str:
    """Return a log's last lines that speak of an error, or else its last lines."""
    found = [_NOISE.sub("", line) for line in log.splitlines() if _ERROR.search(line)]
    kept = list(dict.fromkeys(line.rstrip() for line in found if line.strip()))
    return "\n".join((kept or log.splitlines())[-lines:])
