"""Captured-looking machines: what their tools would print, in the forms that those tools have.

The fields are those of `nvidia-smi -q -x` and of `docker info`; the machines are made up, since
none of them is here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from xml.sax.saxutils import escape

MIB = 1 << 20


@dataclass(frozen=True)
class Card:
    name: str
    total: int | None
    used: int = 600
    capability: str | None = "12.0"
    mig: str = "N/A"
    processes: tuple[tuple[int, str, str, int], ...] = ()

    def xml(self, number: int) -> str:
        if self.total is None:
            memory = "<total>N/A</total><used>N/A</used><free>N/A</free>"
        else:
            memory = (
                f"<total>{self.total} MiB</total><reserved>477 MiB</reserved>"
                f"<used>{self.used} MiB</used><free>{self.total - self.used} MiB</free>"
            )
        processes = "".join(
            f"<process_info><gpu_instance_id>N/A</gpu_instance_id><pid>{pid}</pid>"
            f"<type>{kind}</type><process_name>{escape(name)}</process_name>"
            f"<used_memory>{size} MiB</used_memory></process_info>"
            for pid, kind, name, size in self.processes
        )
        return (
            f'<gpu id="00000000:{number + 1:02X}:00.0"><product_name>{self.name}</product_name>'
            "<product_architecture>Blackwell</product_architecture>"
            f"<mig_mode><current_mig>{self.mig}</current_mig>"
            f"<pending_mig>{self.mig}</pending_mig></mig_mode>"
            f"<uuid>{uuid(number)}</uuid>"
            f"<minor_number>{number}</minor_number>"
            f"<fb_memory_usage>{memory}</fb_memory_usage>"
            f"<processes>{processes}</processes></gpu>"
        )


def uuid(number: int) -> str:
    return f"GPU-{number:08d}-aaaa-bbbb-cccc-0123456789ab"


def csv(*cards: Card) -> str:
    """Return what `nvidia-smi --query-gpu=uuid,compute_cap --format=csv,noheader` prints."""
    return "".join(
        f"{uuid(number)}, {card.capability or '[N/A]'}\n" for number, card in enumerate(cards)
    )


def smi(*cards: Card, driver: str = "580.95.05", cuda: str = "13.0") -> str:
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log><timestamp>Tue Oct  6 09:12:44 2026</timestamp>"
        f"<driver_version>{driver}</driver_version><cuda_version>{cuda}</cuda_version>"
        f"<attached_gpus>{len(cards)}</attached_gpus>"
        + "".join(card.xml(number) for number, card in enumerate(cards))
        + "</nvidia_smi_log>\n"
    )


def docker_info(*, rootless: bool = False, nvidia: bool = True, cdi: bool = False) -> str:
    security = ["name=seccomp,profile=builtin", "name=cgroupns"]
    runtimes = {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}}
    if nvidia:
        runtimes["nvidia"] = {"path": "nvidia-container-runtime"}
    devices = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}] if cdi else []
    return json.dumps(
        {
            "ServerVersion": "28.5.2",
            "DockerRootDir": "/home/u/.local/share/docker" if rootless else "/var/lib/docker",
            "SecurityOptions": [*security, *(["name=rootless"] if rootless else [])],
            "Runtimes": runtimes,
            "DiscoveredDevices": devices,
        }
    )


@dataclass(frozen=True)
class Machine:
    cards: tuple[Card, ...] | None
    driver: str = "580.95.05"
    cuda: str = "13.0"
    says: str = ""
    docker: str | None = field(default_factory=docker_info)
    docker_says: str = ""
    compose: str | None = "2.40.3"
    machine: str = "x86_64"
    memory: int = 64 << 30
    limit: int | None = None
    wsl: bool = False
    image_free: int = 400 << 30
    model_free: int = 400 << 30
    one_disk: bool = True
    port: str | None = None

    @property
    def xml(self) -> str | None:
        if self.cards is None:
            return None
        return smi(*self.cards, driver=self.driver, cuda=self.cuda)

    @property
    def csv(self) -> str:
        return csv(*(self.cards or ()))


RTX_5090 = Card("NVIDIA GeForce RTX 5090", 32607)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", 24564, capability="8.9")
PRO_6000 = Card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, mig="Disabled")
_GOOD = Machine((RTX_5090,))
MACHINES = {
    "5090": _GOOD,
    "5090-laptop-24gb": Machine((Card("NVIDIA GeForce RTX 5090 Laptop GPU", 24463),)),
    "pro-6000": Machine((PRO_6000,)),
    "5080-16gb": Machine((Card("NVIDIA GeForce RTX 5080", 16303),)),
    "dgx-spark": Machine(
        (Card("NVIDIA GB10", None, capability="12.1"),), machine="aarch64", memory=110 << 30
    ),
    "two-5090": Machine((RTX_5090, RTX_5090)),
    "two-cards-mixed": Machine((RTX_5090, RTX_4090)),
    "mig": Machine((replace(PRO_6000, mig="Enabled"),)),
    "no-driver": Machine(None, says="nvidia-smi is not on PATH"),
    "driver-broken": Machine(
        None, says="Failed to initialize NVML: Driver/library version mismatch"
    ),
    "old-driver": Machine((RTX_5090,), driver="570.86.10", cuda="12.8"),
    "driver-without-capability": Machine((replace(RTX_5090, capability=None),)),
    "wsl2": Machine((RTX_5090,), wsl=True, memory=6 << 30),
    "wsl2-no-driver": Machine(None, says="nvidia-smi is not on PATH", wsl=True),
    "rootless-docker": Machine((RTX_5090,), docker=docker_info(rootless=True)),
    "rootless-docker-cdi": Machine(
        (RTX_5090,), docker=docker_info(rootless=True, nvidia=False, cdi=True)
    ),
    "no-docker": Machine((RTX_5090,), docker=None, docker_says="docker is not on PATH"),
    "docker-denied": Machine(
        (RTX_5090,),
        docker=None,
        docker_says="permission denied while trying to connect to the Docker daemon socket",
    ),
    "no-toolkit": Machine((RTX_5090,), docker=docker_info(nvidia=False)),
    "old-compose": Machine((RTX_5090,), compose="2.24.6"),
    "no-compose": Machine((RTX_5090,), compose=None),
    "another-vllm": Machine(
        (replace(RTX_5090, used=20000, processes=((4242, "C", "VLLM::EngineCore", 19400),)),)
    ),
    "desktop": Machine(
        (replace(RTX_5090, used=2600, processes=((900, "G", "/usr/bin/gnome-shell", 400),)),)
    ),
    "one-small-disk": Machine((RTX_5090,), image_free=30 << 30, model_free=30 << 30),
    "two-small-disks": Machine(
        (RTX_5090,), image_free=30 << 30, model_free=30 << 30, one_disk=False
    ),
    "port-taken": Machine((RTX_5090,), port="Address already in use"),
    "small-cgroup": Machine((RTX_5090,), limit=4 << 30),
    "arm-with-5090": Machine((RTX_5090,), machine="aarch64"),
}
