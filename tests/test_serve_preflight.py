"""Preflight: what each kind of machine is told, by what its tools print."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from serve import profile
from serve.errors import PreflightError
from serve.planning import asking
from serve.preflight import gather, parsing
from serve.preflight.facts import Disk, Driver, Facts, Gpu
from serve.preflight.findings import Finding, Need, choose, findings, refuse, text
from tests.support.preflight_fixtures import MACHINES, RTX_4090, RTX_5090, Machine, docker_info

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
ONE = "qwen3.8-27b-nvfp4"


def _cards(xml: str, csv: str) -> tuple[Driver, tuple[Gpu, ...]]:
    return parsing.gpus(xml, parsing.capabilities(csv))


def facts(machine: Machine) -> Facts:
    xml = machine.xml
    driver, gpus = (None, ()) if xml is None else _cards(xml, machine.csv)
    docker = None if machine.docker is None else parsing.docker(machine.docker, machine.compose)
    return Facts(
        gpus=gpus,
        driver=driver,
        driver_says=machine.says,
        docker=docker,
        docker_says=machine.docker_says,
        machine=machine.machine,
        memory=machine.memory,
        memory_limit=machine.limit,
        wsl=machine.wsl,
        image_disk=Disk("/var/lib/docker", "1", machine.image_free),
        model_disk=Disk("/home/u/.cache", "1" if machine.one_disk else "2", machine.model_free),
        port_taken=machine.port,
    )


def found(name: str, which: str = ONE, gpu: str | None = None) -> tuple[Finding, ...]:
    machine = facts(MACHINES[name])
    named = profile.load(which)
    plan = asking.make(asking.of_profile(named), asking.card_of(named.profile))
    need = Need(plan.need, image=22 * GIB, model=20 * GIB)
    cards = choose(machine, named.profile, gpu)
    return findings(machine, named.profile, cards, need, containers=True)


@pytest.mark.parametrize(
    ("machine", "which", "expected"),
    [
        ("5090", ONE, []),
        ("5090-laptop-24gb", ONE, ["error: card 0 (NVIDIA GeForce RTX 5090 Laptop GPU) has 23.89"]),
        ("pro-6000", ONE, []),
        ("5080-16gb", ONE, ["error: card 0 (NVIDIA GeForce RTX 5080) has 15.92 GiB"]),
        ("dgx-spark", "spark", []),
        (
            "dgx-spark",
            ONE,
            [
                "error: this machine is linux/arm64",
                "error: card 0 (NVIDIA GB10) has compute capability 12.1",
            ],
        ),
        (
            "5090",
            "spark",
            [
                "error: this machine is linux/amd64",
                "error: card 0 (NVIDIA GeForce RTX 5090) has compute capability 12.0",
                "error: card 0 (NVIDIA GeForce RTX 5090) has 31.84 GiB",
            ],
        ),
        ("two-5090", "tp2", []),
        ("two-5090", ONE, ["note: not used: 1 (NVIDIA GeForce RTX 5090)"]),
        ("5090", "tp2", ["error: 1 of 2 cards"]),
        ("two-cards-mixed", ONE, ["note: not used: 1 (NVIDIA GeForce RTX 4090)"]),
        (
            "two-cards-mixed",
            "tp2",
            ["error: 1 of 2 cards", "note: not used: 1 (NVIDIA GeForce RTX 4090)"],
        ),
        (
            "mig",
            ONE,
            ["error: card 0 (NVIDIA RTX PRO 6000 Blackwell Workstation"],
        ),
        ("no-driver", ONE, ["error: no NVIDIA driver answers (nvidia-smi is not on PATH)"]),
        ("driver-broken", ONE, ["error: no NVIDIA driver answers (Failed to initialize NVML"]),
        ("old-driver", ONE, ["error: the driver is 570.86.10, for CUDA 12.8"]),
        (
            "driver-without-capability",
            ONE,
            ["error: card 0 (NVIDIA GeForce RTX 5090) has compute capability unk"],
        ),
        ("wsl2", ONE, ["warning: 6.00 GiB of memory can be used", "note: this is WSL"]),
        ("wsl2-no-driver", ONE, ["error: no NVIDIA driver answers", "note: this is WSL"]),
        ("rootless-docker", ONE, ["warning: Docker runs without root, and without CDI"]),
        ("rootless-docker-cdi", ONE, []),
        ("no-docker", ONE, ["error: Docker does not answer (docker is not on PATH)"]),
        ("docker-denied", ONE, ["error: Docker does not answer (permission denied"]),
        ("no-toolkit", ONE, ["error: Docker knows no way to give a card to a container"]),
        ("old-compose", ONE, ["error: compose is 2.24.6"]),
        ("no-compose", ONE, ["error: compose is missing"]),
        (
            "another-vllm",
            ONE,
            [
                "error: card 0 (NVIDIA GeForce RTX 5090) has 12.31 GiB free",
                "warning: VLLM::EngineCore (4242, 18.95 GiB) computes on card 0",
            ],
        ),
        ("desktop", ONE, []),
        ("one-small-disk", ONE, ["error: 30.00 GiB free at /var/lib/docker"]),
        ("two-small-disks", ONE, []),
        ("port-taken", ONE, ["error: port 8000 of 127.0.0.1: Address already in use"]),
        ("small-cgroup", ONE, ["warning: this control group may use 4.00 GiB of memory"]),
        ("arm-with-5090", ONE, ["error: this machine is linux/arm64"]),
    ],
)
def test_a_machine_is_told_what_stands_in_the_way_and_nothing_else(
    machine: str, which: str, expected: list[str]
) -> None:
    told = [f"{each.level}: {each.what}" for each in found(machine, which)]
    assert len(told) == len(expected), told
    for line, start in zip(told, expected, strict=True):
        assert line.startswith(start)


def test_every_finding_says_why_and_what_to_do() -> None:
    for name in MACHINES:
        for which in profile.names():
            for each in found(name, which):
                assert all(len(part) > 10 for part in (each.what, each.why, each.do)), each


def test_a_windows_driver_is_not_installed_within_wsl() -> None:
    advice = next(each.do for each in found("wsl2-no-driver") if each.level == "error")
    assert "Windows" in advice
    assert "nothing goes into WSL" in advice


def test_two_disks_are_counted_each_for_itself_and_one_for_both() -> None:
    (both,) = found("one-small-disk")
    assert "the image and the model take 42.00 GiB" in both.why


def test_the_card_is_chosen_by_index_or_uuid() -> None:
    machine = facts(MACHINES["two-5090"])
    one = profile.load(ONE).profile
    assert [c.index for c in choose(machine, one, "1")] == [1]
    uuid = machine.gpus[1].uuid
    assert [c.index for c in choose(machine, one, uuid)] == [1]
    assert [c.index for c in choose(machine, profile.load("tp2").profile, None)] == [0, 1]


@pytest.mark.parametrize("wrong", ["7", "GPU-ffffffff-0000-0000-0000-000000000000", "5090"])
def test_a_card_that_is_not_there_is_an_error_that_lists_those_that_are(wrong: str) -> None:
    with pytest.raises(PreflightError) as refused:
        choose(facts(MACHINES["two-5090"]), profile.load(ONE).profile, wrong)
    assert "0 (NVIDIA GeForce RTX 5090, GPU-00000000" in str(refused.value.found)
    assert refused.value.next_command == "nvidia-smi -L"


def test_the_fitting_card_is_taken_where_several_are() -> None:
    machine = Machine((RTX_4090, RTX_5090))
    (card,) = choose(facts(machine), profile.load(ONE).profile, None)
    assert card.name == "NVIDIA GeForce RTX 5090"


def test_errors_refuse_and_warnings_do_not() -> None:
    refuse(found("rootless-docker"))
    with pytest.raises(PreflightError) as refused:
        refuse(found("another-vllm"))
    assert refused.value.exit_code == 51
    assert "warning: VLLM::EngineCore" in str(refused.value.detail)


def test_findings_are_shown_with_why_and_what_to_do() -> None:
    shown = text(found("no-toolkit"))
    assert shown.count("\n  why: ") == shown.count("\n  do:  ") == 1


def test_a_document_with_entities_is_refused() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log>&b;</nvidia_smi_log>'
    with pytest.raises(ValueError, match="entities"):
        parsing.gpus(bomb, {})
    with pytest.raises(ValueError, match=r"syntax error|no element"):
        parsing.gpus("NVIDIA-SMI has failed", {})


def test_a_daemon_that_does_not_answer_says_why() -> None:
    silent = json.dumps({"ServerErrors": ["Cannot connect to the Docker daemon"]})
    with pytest.raises(ValueError, match="Cannot connect"):
        parsing.docker(silent, None)
    assert parsing.docker(docker_info(), "v2.40.3\n").compose == "2.40.3"


def test_versions_are_compared_as_numbers() -> None:
    assert parsing.version("580.9") < parsing.version("580.65.06") < parsing.version("590.1")
    assert parsing.version("v") == ()


def test_kernel_files_are_read() -> None:
    assert parsing.available("MemTotal: 1 kB\nMemAvailable:   2048 kB\n") == 2 << 20
    assert parsing.is_wsl("Linux version 5.15.167.4-microsoft-standard-WSL2")
    assert not parsing.is_wsl("Linux version 6.1.0-13-amd64")
    assert parsing.limit("max\n") is None
    assert parsing.limit("4294967296\n") == 4 << 30


def test_a_port_that_something_listens_on_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert gather.listener("127.0.0.1", taken.getsockname()[1]) == "Address already in use"
        port = taken.getsockname()[1]
    assert gather.listener("127.0.0.1", port) is None


def test_a_machine_without_any_tool_is_facts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    here = gather.gather(profile.load(ONE).profile, containers=True)
    assert here.driver is None
    assert here.driver_says == "nvidia-smi is not on PATH"
    assert here.docker is None
    assert here.memory > 0
