"""Gathering: every tool is asked once, with an end; a missing tool is a fact, too."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from serve.preflight import parsing
from serve.preflight.facts import Disk, Facts

if TYPE_CHECKING:
    from serve.preflight.facts import Docker, Driver, Gpu
    from serve.profile import Profile

_LIMIT_S = 20.0


def _told(*command: str) -> tuple[str | None, str]:
    """Return what a tool prints, or None and why not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except FileNotFoundError:
        return None, f"{command[0]} is not on PATH"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    if done.returncode:
        return None, said[-1] if said else f"exit status {done.returncode}"
    return done.stdout, ""


def gpus() -> tuple[Driver | None, tuple[Gpu, ...], str]:
    """Return driver and cards, or why there are none."""
    xml, why = _told("nvidia-smi", "-q", "-x")
    if xml is None:
        return None, (), why
    csv, _ = _told("nvidia-smi", "--query-gpu=uuid,compute_cap", "--format=csv,noheader")
    try:
        driver, found = parsing.gpus(xml, parsing.capabilities(csv or ""))
    except ValueError as error:
        return None, (), str(error)
    return driver, found, ""


def _docker() -> tuple[Docker | None, str]:
    info, why = _told("docker", "info", "--format", "{{json .}}")
    if info is None:
        return None, why
    compose, _ = _told("docker", "compose", "version", "--short")
    try:
        return parsing.docker(info, compose), ""
    except ValueError as error:
        return None, str(error)


def _disk(folder: Path) -> Disk | None:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        return Disk(str(folder), str(there.stat().st_dev), shutil.disk_usage(there).free)
    except OSError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def listener(host: str, port: int) -> str | None:
    """Return what stands in the way of listening on a port, or None if it is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def gather(profile: Profile, *, containers: bool) -> Facts:
    """Return the facts that matter for a profile.

    Args:
        profile: what shall be served.
        containers: whether Docker is asked.
    """
    cuda = profile.hardware.device == "cuda"
    driver, found, driver_says = gpus() if cuda else (None, (), "")
    docker, docker_says = _docker() if containers else (None, "")
    hub = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    return Facts(
        gpus=found,
        driver=driver,
        driver_says=driver_says,
        docker=docker,
        docker_says=docker_says,
        machine=platform.machine(),
        memory=parsing.available(_read("/proc/meminfo")),
        memory_limit=parsing.limit(_read("/sys/fs/cgroup/memory.max")),
        wsl=parsing.is_wsl(_read("/proc/version")),
        image_disk=_disk(Path(docker.root)) if docker is not None else None,
        model_disk=_disk(hub),
        port_taken=listener(profile.service.host, profile.service.port),
    )
