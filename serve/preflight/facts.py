"""Facts of a machine, as its tools tell them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    """A process on a card.

    Attributes:
        pid: its number.
        name: its program.
        memory: bytes of the card's memory; None if the driver does not tell.
    """

    pid: int
    name: str
    memory: int | None


@dataclass(frozen=True)
class Gpu:
    """One card.

    Attributes:
        index: its number, as nvidia-smi counts.
        uuid: its name that stays.
        name: its product's name.
        capability: the compute capability; None if the driver does not tell it.
        total, free: bytes of memory; None on machines with unified memory.
        mig: whether it is divided into instances.
        processes: what computes on it.
    """

    index: int
    uuid: str
    name: str
    capability: str | None
    total: int | None
    free: int | None
    mig: bool = False
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Driver:
    """The driver: its version, and the newest CUDA that it runs."""

    version: str
    cuda: str


@dataclass(frozen=True)
class Docker:
    """The Docker daemon.

    Attributes:
        version: its version.
        rootless: whether it runs without root.
        nvidia_runtime: whether the NVIDIA container toolkit is configured.
        cdi: whether it finds a CDI specification of the cards.
        root: where it keeps images.
        compose: compose's version; None if it is not there.
    """

    version: str
    rootless: bool
    nvidia_runtime: bool
    cdi: bool
    root: str
    compose: str | None


@dataclass(frozen=True)
class Disk:
    """Free room for one thing: the folder, its file system, the free bytes."""

    folder: str
    device: str
    free: int


@dataclass(frozen=True)
class Facts:
    """All facts.

    Attributes:
        gpus: the cards; empty without a driver.
        driver: None if there is none, or it does not answer.
        driver_says: what nvidia-smi said instead of an answer.
        docker: None if there is none, or it does not answer.
        docker_says: what docker said instead of an answer.
        machine: the processor's architecture, such as x86_64.
        memory: bytes of memory that can be used.
        memory_limit: the control group's limit; None if there is none.
        wsl: whether this is the Windows Subsystem for Linux.
        image_disk, model_disk: where images and models go; None if that cannot be told.
        port_taken: what listens on the profile's port; None if it is free.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None
    driver_says: str = ""
    docker: Docker | None = None
    docker_says: str = ""
    machine: str = "x86_64"
    memory: int = 0
    memory_limit: int | None = None
    wsl: bool = False
    image_disk: Disk | None = None
    model_disk: Disk | None = None
    port_taken: str | None = None
