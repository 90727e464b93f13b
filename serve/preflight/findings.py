"""What the facts mean for a profile: each finding says what, why it matters, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from serve.errors import PreflightError
from serve.planning.table import gib
from serve.preflight.parsing import version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from serve.preflight.facts import Disk, Docker, Facts, Gpu
    from serve.profile import Profile

MIN_DRIVER = "580.65"
"""The first driver for CUDA 13.0 (NVIDIA's CUDA 13.0 release notes, table 3)."""
MIN_COMPOSE = "2.30"
"""The first compose that the rendered file was checked with."""
MIN_RAM = 8 << 30
_MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        level: an `error` keeps the server from working, a `warning` may, a `note` is to know.
        what: what was found.
        why: why it matters.
        do: what to do about it.
    """

    level: Literal["error", "warning", "note"]
    what: str
    why: str
    do: str


@dataclass(frozen=True)
class Need:
    """What a server needs.

    Attributes:
        vram: bytes on each card.
        image: bytes of disk for the image; 0 if it is here.
        model: bytes of disk for the model; 0 if it is here.
    """

    vram: int
    image: int = 0
    model: int = 0


def choose(facts: Facts, profile: Profile, asked: str | None) -> tuple[Gpu, ...]:
    """Return the cards that will serve, as many as the profile wants.

    Args:
        facts: the machine's.
        profile: what shall be served.
        asked: their indexes or UUIDs, parted by commas; None for the best of the fitting ones.

    Raises:
        PreflightError: if there is no such card.
    """
    if profile.hardware.device != "cuda":
        return ()
    if asked is None:
        fitting = [g for g in facts.gpus if g.capability in profile.hardware.capabilities]
        ranked = sorted(fitting or facts.gpus, key=lambda g: (-(g.free or 0), g.index))
        return tuple(sorted(ranked[: profile.hardware.gpus], key=lambda g: g.index))
    found = []
    for name in asked.split(","):
        card = next((g for g in facts.gpus if name.strip() in {str(g.index), g.uuid}), None)
        if card is None:
            there = ", ".join(f"{g.index} ({g.name}, {g.uuid})" for g in facts.gpus)
            raise PreflightError(
                f"there is no card {name.strip()}",
                file="--gpu",
                expected="an index or UUID of nvidia-smi -L",
                found=there or facts.driver_says or "no card at all",
                next_command="nvidia-smi -L",
            )
        found.append(card)
    return tuple(found)


def findings(
    facts: Facts, profile: Profile, cards: tuple[Gpu, ...], need: Need, *, containers: bool
) -> tuple[Finding, ...]:
    """Return everything that there is to say, errors first."""
    found = [
        *_machine(facts, profile),
        *(_driver(facts) if profile.hardware.device == "cuda" else ()),
        *(_cards(facts, profile, cards, need) if facts.driver is not None else ()),
        *(_docker(facts, profile) if containers else ()),
        *_disks(facts, need),
        *_rest(facts, profile),
    ]
    order = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(found, key=lambda each: order[each.level]))


def _machine(facts: Facts, profile: Profile) -> Iterator[Finding]:
    platform = _MACHINES.get(facts.machine, facts.machine)
    if platform not in profile.hardware.platforms:
        yield Finding(
            "error",
            f"this machine is {platform}",
            f"the profile is for {', '.join(profile.hardware.platforms)}",
            "choose a profile for this machine: python -m serve profiles",
        )


def _driver(facts: Facts) -> Iterator[Finding]:
    if facts.driver is None:
        yield Finding(
            "error",
            f"no NVIDIA driver answers ({facts.driver_says})",
            "without it no program can use a card",
            "on Windows install the Windows driver and run `wsl --update`; nothing goes into WSL"
            if facts.wsl
            else f"install driver {MIN_DRIVER} or newer, then run nvidia-smi",
        )
    elif version(facts.driver.version) < version(MIN_DRIVER):
        yield Finding(
            "error",
            f"the driver is {facts.driver.version}, for CUDA {facts.driver.cuda}",
            f"the image is built with CUDA 13.0, which needs {MIN_DRIVER}",
            "install a newer driver" + (" on Windows" if facts.wsl else "") + ", then restart",
        )


def _cards(facts: Facts, profile: Profile, cards: tuple[Gpu, ...], need: Need) -> Iterator[Finding]:
    if len(cards) != profile.hardware.gpus:
        yield Finding(
            "error",
            f"{len(cards)} of {profile.hardware.gpus} cards",
            "the profile shares the model between so many",
            "choose a profile for fewer cards, or name them with --gpu",
        )
    if len({card.capability for card in cards}) > 1:
        yield Finding(
            "error",
            "the cards differ: " + ", ".join(f"{c.name} ({c.capability})" for c in cards),
            "one model is shared only between cards of one kind",
            "name two that are alike with --gpu",
        )
    for card in cards:
        yield from _card(facts, profile, card, need)
    others = [g for g in facts.gpus if g not in cards]
    if others:
        yield Finding(
            "note",
            "not used: " + ", ".join(f"{g.index} ({g.name})" for g in others),
            "only the chosen card is shown to the server",
            "name another with --gpu INDEX or --gpu UUID",
        )


def _card(facts: Facts, profile: Profile, card: Gpu, need: Need) -> Iterator[Finding]:
    wanted = profile.hardware.capabilities
    where = f"card {card.index} ({card.name})"
    if card.capability not in wanted:
        yield Finding(
            "error",
            f"{where} has compute capability {card.capability or 'unknown'}",
            f"the profile and its kernels are for {', '.join(wanted)}",
            "choose a profile for this card: python -m serve profiles",
        )
    if card.mig:
        yield Finding(
            "error",
            f"{where} is divided into MIG instances",
            "the profile's memory is counted for a whole card",
            f"nvidia-smi -i {card.index} -mig 0",
        )
    yield from _memory(facts, card, need, where)
    servers = [p for p in card.processes if "vllm" in p.name.lower() or "python" in p.name.lower()]
    for process in servers:
        size = "" if process.memory is None else f", {gib(process.memory)}"
        yield Finding(
            "warning",
            f"{process.name} ({process.pid}{size}) computes on {where}",
            "it may be another server, and its memory is not free",
            f"stop it if it is not meant: kill {process.pid}",
        )


def _memory(facts: Facts, card: Gpu, need: Need, where: str) -> Iterator[Finding]:
    total, free, of = card.total, card.free, "the card"
    if total is None or free is None:
        total = free = facts.memory
        of = "this machine, whose memory the card shares"
    if total < need.vram:
        yield Finding(
            "error",
            f"{where} has {gib(total)}",
            f"weights, KV pool, states and graphs need {gib(need.vram)} of {of}",
            "choose a smaller profile, or lower kv-pin: python -m serve plan PROFILE",
        )
    elif free < need.vram:
        yield Finding(
            "error",
            f"{where} has {gib(free)} free of {gib(total)}",
            f"weights, KV pool, states and graphs need {gib(need.vram)} of {of}",
            "close what uses it (nvidia-smi shows it); a desktop can take 1 to 2 GiB",
        )


def _docker(facts: Facts, profile: Profile) -> Iterator[Finding]:
    docker = facts.docker
    if docker is None:
        denied = "permission denied" in facts.docker_says.lower()
        yield Finding(
            "error",
            f"Docker does not answer ({facts.docker_says})",
            "the server runs in a container",
            "sudo usermod -aG docker $USER, then log in again"
            if denied
            else "start Docker, or serve from the wheel: --wheel PYTHON",
        )
        return
    if docker.compose is None or version(docker.compose) < version(MIN_COMPOSE):
        yield Finding(
            "error",
            f"compose is {docker.compose or 'missing'}",
            f"the server is started by compose {MIN_COMPOSE} or newer",
            "install Docker's compose plugin",
        )
    if profile.hardware.device == "cuda":
        yield from _toolkit(docker)


def _toolkit(docker: Docker) -> Iterator[Finding]:
    if not docker.nvidia_runtime and not docker.cdi:
        yield Finding(
            "error",
            "Docker knows no way to give a card to a container",
            "the server would not see it",
            "install the NVIDIA container toolkit, run `sudo nvidia-ctk runtime configure "
            "--runtime=docker` and restart Docker",
        )
    elif docker.rootless and not docker.cdi:
        yield Finding(
            "warning",
            "Docker runs without root, and without CDI",
            "the toolkit then may not manage control groups, and containers do not start",
            "set no-cgroups = true in /etc/nvidia-container-runtime/config.toml, or generate a CDI "
            "specification: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )


def _disks(facts: Facts, need: Need) -> Iterator[Finding]:
    wanted: dict[str, tuple[Disk, int, list[str]]] = {}
    for disk, size, what in (
        (facts.image_disk, need.image, "the image"),
        (facts.model_disk, need.model, "the model"),
    ):
        if disk is not None and size:
            seen, total, names = wanted.get(disk.device, (disk, 0, []))
            wanted[disk.device] = (seen, total + size, [*names, what])
    for disk, size, names in wanted.values():
        if disk.free < size:
            yield Finding(
                "error",
                f"{gib(disk.free)} free at {disk.folder}",
                f"{' and '.join(names)} take {gib(size)} there",
                "free some, or move: HF_HOME names the models' folder, data-root Docker's",
            )


def _rest(facts: Facts, profile: Profile) -> Iterator[Finding]:
    service = profile.service
    if facts.port_taken is not None:
        yield Finding(
            "error",
            f"port {service.port} of {service.host}: {facts.port_taken}",
            "the API listens there",
            f"stop what listens (ss -ltnp sport = :{service.port}), or change [service] port",
        )
    if facts.memory_limit is not None and facts.memory_limit < MIN_RAM:
        yield Finding(
            "warning",
            f"this control group may use {gib(facts.memory_limit)} of memory",
            f"loading and compiling take up to {gib(MIN_RAM)}",
            "raise the limit of the container or session that this runs in",
        )
    elif facts.memory < MIN_RAM:
        yield Finding(
            "warning",
            f"{gib(facts.memory)} of memory can be used",
            f"loading and compiling take up to {gib(MIN_RAM)}",
            "raise memory= in %UserProfile%\\.wslconfig, then `wsl --shutdown`"
            if facts.wsl
            else "close other programs",
        )
    if facts.wsl:
        yield Finding(
            "note",
            "this is WSL",
            "the driver is Windows' own, and models load slowly from /mnt/c",
            "keep the models on WSL's own disk",
        )


def refuse(found: tuple[Finding, ...]) -> None:
    """Return if nothing keeps the server from working.

    Raises:
        PreflightError: if something does; it lists all of it.
    """
    errors = [each for each in found if each.level == "error"]
    if errors:
        first = errors[0]
        raise PreflightError(
            f"this machine cannot serve the profile: {len(errors)} "
            f"{'thing stands' if len(errors) == 1 else 'things stand'} in the way",
            file="preflight",
            expected=first.why,
            found=first.what,
            next_command=first.do,
            detail=text(found),
        )


def text(found: tuple[Finding, ...]) -> str:
    """Return findings for people, three lines each."""
    return "\n".join(
        f"{each.level}: {each.what}\n  why: {each.why}\n  do:  {each.do}" for each in found
    )
