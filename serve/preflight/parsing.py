"""What the tools print, as facts.

Formats: `nvidia-smi -q -x` (its DTD, nvsmi_device_v12), `docker info --format json`, proc(5) for
meminfo and version, and the kernel's control group version 2 documentation for memory.max.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from serve.preflight.facts import Docker, Driver, Gpu, Process

if TYPE_CHECKING:
    from collections.abc import Iterable

_MIB = 1 << 20


def _text(element: ET.Element, path: str) -> str:
    found = element.findtext(path)
    return "" if found is None else found.strip()


def _mib(text: str) -> int | None:
    match = re.match(r"^(\d+) MiB\Z", text)
    return int(match[1]) * _MIB if match else None


def capabilities(csv: str) -> dict[str, str]:
    """Return each card's compute capability by its UUID, which the XML does not tell.

    Args:
        csv: what `nvidia-smi --query-gpu=uuid,compute_cap --format=csv,noheader` prints.
    """
    return {
        match[1]: match[2]
        for line in csv.splitlines()
        if (match := re.match(r"^\s*(GPU-\S+?),\s*(\d+\.\d+)\s*\Z", line))
    }


def gpus(xml: str, capability: dict[str, str]) -> tuple[Driver, tuple[Gpu, ...]]:
    """Return driver and cards from `nvidia-smi -q -x`.

    Args:
        xml: what it prints.
        capability: each card's compute capability by its UUID.

    Raises:
        ValueError: if the text is not such a document, or declares entities.
    """
    if "<!ENTITY" in xml:
        raise ValueError("it declares entities")
    try:
        root = ET.fromstring(xml)  # noqa: S314 # no entities, see above
    except ET.ParseError as error:
        raise ValueError(str(error)) from error
    driver = Driver(_text(root, "driver_version"), _text(root, "cuda_version"))
    return driver, tuple(
        _gpu(number, each, capability) for number, each in enumerate(root.iter("gpu"))
    )


def _gpu(number: int, gpu: ET.Element, capability: dict[str, str]) -> Gpu:
    minor = _text(gpu, "minor_number")
    return Gpu(
        index=int(minor) if minor.isdigit() else number,
        uuid=_text(gpu, "uuid"),
        name=_text(gpu, "product_name"),
        capability=capability.get(_text(gpu, "uuid")),
        total=_mib(_text(gpu, "fb_memory_usage/total")),
        free=_mib(_text(gpu, "fb_memory_usage/free")),
        mig=_text(gpu, "mig_mode/current_mig") == "Enabled",
        processes=tuple(_processes(gpu.iter("process_info"))),
    )


def _processes(found: Iterable[ET.Element]) -> Iterable[Process]:
    for each in found:
        pid = _text(each, "pid")
        if pid.isdigit() and "C" in _text(each, "type"):
            yield Process(int(pid), _text(each, "process_name"), _mib(_text(each, "used_memory")))


def docker(info: str, compose: str | None) -> Docker:
    """Return Docker's facts from `docker info --format json` and compose's short version.

    Raises:
        ValueError: if the text is not what a daemon that answers gives.
    """
    found = json.loads(info)
    version = found.get("ServerVersion") if isinstance(found, dict) else None
    if not version:
        raise ValueError("; ".join((found or {}).get("ServerErrors") or ["no server version"]))
    options = " ".join(found.get("SecurityOptions") or ())
    devices = json.dumps(found.get("DiscoveredDevices") or [])
    return Docker(
        version=str(version),
        rootless="rootless" in options,
        nvidia_runtime="nvidia" in (found.get("Runtimes") or {}),
        cdi="nvidia.com/gpu" in devices,
        root=str(found.get("DockerRootDir") or "/var/lib/docker"),
        compose=compose.strip().removeprefix("v") if compose else None,
    )


def available(meminfo: str) -> int:
    """Return the bytes of memory that /proc/meminfo says can be used."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def is_wsl(version: str) -> bool:
    """Return whether /proc/version is that of a WSL kernel."""
    return "microsoft" in version.lower()


def limit(memory_max: str) -> int | None:
    """Return the bytes of a control group's memory.max, or None if it sets no limit."""
    text = memory_max.strip()
    return int(text) if text.isdigit() else None


def version(text: str) -> tuple[int, ...]:
    """Return a version's leading numbers, for comparing."""
    match = re.match(r"^\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
