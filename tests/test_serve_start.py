"""Start, status, stop, upgrade and rollback as flows, and what goes wrong on the way.

The container flows run over a fake `docker` and a fake `nvidia-smi` (tests/support/serving.py),
since there is no card here; the server that answers is tests/support/chatserver. A real server as a
real process is started in tests/test_serve_engine.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from serve.errors import ContainerError, EngineError, PreflightError
from serve.launching import causes, process, state, watching
from tests.support.chatserver import ChatServer, Fault
from tests.support.serving import ROOT, FakeTools, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE = "registry.test/vllm@sha256:" + "a" * 64
OTHER = "registry.test/vllm@sha256:" + "b" * 64
_PROFILE = """\
schema = 1
summary = "A generated model, as if on a card"
line = "v0.33.0"

[model]
source = "generated"
id = "tiny-qwen3.5"
served-name = "tiny-qwen3.5"

[hardware]
platforms = ["linux/amd64", "linux/arm64"]
capabilities = ["12.0"]

[memory]
kv-pin = 1073741824
graphs = 0

[engine]
context = 2048
sequences = 4
kv-dtype = "bfloat16"
state-dtype = "float32"

[service]
port = {port}
"""


@dataclass
class Machine:
    """A user with a home, a fake card, a profile and a port."""

    home: Path
    tools: FakeTools
    profile: Path
    port: int

    def run(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return serve(*arguments, extra=self.environ, timeout=timeout)

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": self.tools.path}

    @property
    def running(self) -> Path:
        return self.home / ".local/state/vllm-sm120/running.json"

    def answering(self, fault: Fault | None = None) -> ChatServer:
        """A server on the profile's port, as soon as it is asked to start."""
        return ChatServer(fault, port=self.port)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    shape = (ROOT / "serve/profiles/tiny-cpu.toml").read_text()
    shape = "[shape]" + shape.split("[shape]")[1].split("[gates]")[0]
    port = free_port()
    path = tmp_path / "here.toml"
    path.write_text(_PROFILE.format(port=port) + "\n" + shape)
    found = Machine(tmp_path / "home", FakeTools(tmp_path / "bin"), path, port)
    found.home.mkdir()
    yield found
    if found.running.is_file():
        running = json.loads(found.running.read_text())
        process.stop(running.get("pid", 0), running.get("ticks", 0), 1)


@contextlib.contextmanager
def started(machine: Machine, image: str = IMAGE) -> Iterator[str]:
    """Start the profile over a fake docker; the server answers once `up` was called."""
    command = [sys.executable, "-m", "serve", "start", str(machine.profile), "--image", image]
    with _server_after_up(machine):
        done = subprocess.run(
            command, env={**machine.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        yield done.stdout


@contextlib.contextmanager
def _server_after_up(machine: Machine) -> Iterator[None]:
    import threading  # noqa: PLC0415

    ended = threading.Event()

    def serve_once_up() -> None:
        calls = machine.tools.folder / "calls"
        while not ended.is_set():
            if calls.exists() and '"up"' in calls.read_text():
                with machine.answering():
                    ended.wait()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=serve_once_up)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_start_checks_pulls_starts_asks_and_says_where(machine: Machine) -> None:
    with started(machine) as out:
        assert f"ready     http://127.0.0.1:{machine.port}/v1  model tiny-qwen3.5" in out
        assert "asked     capital of France: Paris" in out
        calls = machine.tools.calls()
        steps = ("nvidia-smi -q", "config --quiet", "up --detach", "logs --follow")
        order = [next(i for i, c in enumerate(calls) if step in c) for step in steps]
        assert order == sorted(order)
        status = machine.run("status", "--json")
        facts = json.loads(status.stdout)
        assert facts["health"] == "healthy"
        assert facts["served by"] == IMAGE
        assert machine.run("start", str(machine.profile), "--image", IMAGE).returncode == 41
        stopped = machine.run("stop")
        assert stopped.returncode == 0
        assert any("down" in call for call in machine.tools.calls())
    assert not machine.running.exists()


def test_a_profile_that_changed_since_is_not_verified(machine: Machine) -> None:
    with started(machine):
        machine.profile.write_text(machine.profile.read_text() + "\n# another\n")
        done = machine.run("verify")
        assert done.returncode == 50
        assert "changed after the server was started" in done.stderr
        assert machine.run("stop").returncode == 0


def test_only_the_chosen_card_is_given_to_the_container(machine: Machine) -> None:
    with started(machine):
        compose = (machine.home / ".local/state/vllm-sm120/compose.yaml").read_text()
    assert compose.count("GPU-00000000-aaaa") == 1


def test_an_image_that_is_not_here_is_pulled_by_its_digest(machine: Machine) -> None:
    machine.tools.say(("image inspect", {"status": 1, "err": "No such image"}))
    with started(machine):
        assert f"docker pull {IMAGE}" in machine.tools.calls()


def test_nothing_is_pulled_for_a_model_that_is_not_pinned(machine: Machine) -> None:
    machine.tools.say(("image inspect", {"status": 1, "err": "No such image"}))
    done = machine.run("start", "qwen3.8-27b-nvfp4", "--image", IMAGE)
    assert done.returncode == 12
    assert "next:     python -m serve pin qwen3.8-27b-nvfp4 --write" in done.stderr
    assert not any("pull" in call for call in machine.tools.calls())


def test_a_digest_that_is_gone_is_an_error(machine: Machine) -> None:
    machine.tools.say(
        ("image inspect", {"status": 1, "err": "No such image"}),
        ("pull", {"status": 1, "err": "manifest unknown"}),
    )
    done = machine.run("start", str(machine.profile), "--image", IMAGE)
    assert done.returncode == ContainerError.exit_code
    assert "the image cannot be pulled" in done.stderr
    assert not machine.running.exists()


def test_a_dry_run_prints_all_and_does_nothing(machine: Machine) -> None:
    done = machine.run("start", str(machine.profile), "--image", IMAGE, "--dry-run")
    assert done.returncode == 0
    assert f"docker pull {IMAGE}" in done.stdout
    assert "device_ids:" in done.stdout
    called = machine.tools.calls()
    looks = ("docker info", "compose version", "image inspect", "nvidia-smi")
    assert all(any(look in call for look in looks) for call in called)
    assert not (machine.home / ".local").exists()


def test_what_stands_in_the_way_stops_the_start(machine: Machine) -> None:
    machine.tools.say(("info --format", {"status": 1, "err": "Cannot connect to the daemon"}))
    with socket.create_server(("127.0.0.1", machine.port)):
        done = machine.run("start", str(machine.profile), "--image", IMAGE)
    assert done.returncode == PreflightError.exit_code
    assert "2 things stand in the way" in done.stderr
    assert "Cannot connect to the daemon" in done.stderr
    assert f"port {machine.port}" in done.stderr


def test_a_card_that_is_not_there_is_an_error(machine: Machine) -> None:
    done = machine.run("start", str(machine.profile), "--image", IMAGE, "--gpu", "5")
    assert done.returncode == PreflightError.exit_code
    assert "NVIDIA GeForce RTX 5090" in done.stderr


def test_a_server_that_dies_shows_its_last_errors_and_the_cause(machine: Machine) -> None:
    log = "INFO loading\nERROR worker: torch.OutOfMemoryError: CUDA out of memory.\n"
    machine.tools.say(
        ("logs --follow", {"out": log, "hold": 600}), ("--status running", {"out": ""})
    )
    done = machine.run("start", str(machine.profile), "--image", IMAGE)
    assert done.returncode == EngineError.exit_code
    assert "the card's memory is used up" in done.stderr
    assert "CUDA out of memory" in done.stderr
    assert not machine.running.exists()
    assert any("down" in call for call in machine.tools.calls())


def test_a_server_that_never_becomes_healthy_is_stopped_and_says_what_it_did(
    machine: Machine,
) -> None:
    log = "Loading safetensors checkpoint shards:  40% Completed | 2/5\n"
    machine.tools.say(("logs --follow", {"out": log, "hold": 600}))
    done = machine.run("start", str(machine.profile), "--image", IMAGE, "--timeout", "8")
    assert done.returncode == EngineError.exit_code
    assert "still loading weights, 40% Completed" in done.stderr
    assert not machine.running.exists()


def test_a_healthy_server_that_does_not_answer_is_stopped(machine: Machine) -> None:
    import threading  # noqa: PLC0415

    ended = threading.Event()

    def wrong() -> None:
        calls = machine.tools.folder / "calls"
        while not ended.is_set():
            if calls.exists() and '"up"' in calls.read_text():
                with machine.answering(Fault.SERVER_ERROR):
                    ended.wait()
                return
            time.sleep(0.02)

    thread = threading.Thread(target=wrong)
    thread.start()
    try:
        done = machine.run("start", str(machine.profile), "--image", IMAGE)
    finally:
        ended.set()
        thread.join()
    assert done.returncode == EngineError.exit_code
    assert "healthy, but does not answer" in done.stderr
    assert "HTTP 500" in done.stderr
    assert not machine.running.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupt_leaves_nothing_running(machine: Machine, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "serve", "start", str(machine.profile), "--image", IMAGE]
    started_ = subprocess.Popen(
        command, env={**machine.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # As at a terminal: whoever runs the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    end = time.monotonic() + 60
    while not machine.running.exists() and time.monotonic() < end:
        time.sleep(0.02)
    follower = json.loads(machine.running.read_text())
    started_.send_signal(number)
    _, said = started_.communicate(timeout=60)
    assert started_.returncode == 130, said
    assert not machine.running.exists()
    assert not state.alive(follower["pid"], follower["ticks"])
    assert any("down" in call for call in machine.tools.calls())


def test_upgrade_and_rollback_change_the_image_and_remember_it(machine: Machine) -> None:
    with started(machine):
        up = machine.run("upgrade", "--image", OTHER)
        assert up.returncode == 0, up.stderr
        assert json.loads(machine.running.read_text())["earlier"] == [IMAGE]
        assert machine.run("upgrade", "--image", OTHER).returncode == 2
        back = machine.run("rollback")
        assert back.returncode == 0, back.stderr
        running = json.loads(machine.running.read_text())
        assert (running["artefact"], running["earlier"]) == (IMAGE, [])
        assert machine.run("rollback").returncode == 2
        machine.run("stop")


def test_the_cache_is_purged_only_if_somebody_agrees(machine: Machine) -> None:
    volume = "vllm-sm120-cache-" + "a" * 12
    machine.tools.say(("system df", {"out": json.dumps([{"Name": volume, "Size": "3.1GB"}])}))
    with started(machine):
        kept = machine.run("stop", "--purge-cache")
        assert f"kept      {volume} (3.1GB)" in kept.stdout
        assert not any("volume rm" in call for call in machine.tools.calls())
    with started(machine):
        gone = machine.run("stop", "--purge-cache", "--yes")
        assert f"removed   {volume} (3.1GB)" in gone.stdout
        assert f"docker volume rm {volume}" in machine.tools.calls()


@pytest.mark.parametrize("command", ["status", "logs", "stop", "verify", "upgrade", "rollback"])
def test_without_a_server_every_command_says_how_to_start_one(
    machine: Machine, command: str
) -> None:
    done = machine.run(command)
    assert done.returncode == EngineError.exit_code
    assert "next:     python -m serve start PROFILE" in done.stderr


def test_a_state_file_of_another_kind_is_an_error_not_a_crash(machine: Machine) -> None:
    machine.running.parent.mkdir(parents=True)
    machine.running.write_text('{"schema": 1}')
    done = machine.run("status")
    assert done.returncode == EngineError.exit_code
    assert "what is running cannot be told" in done.stderr


@pytest.mark.parametrize(
    ("log", "part"),
    [
        (
            "CUDA error: no kernel image is available for execution on the device",
            "no kernels",
        ),
        (
            "CUDA driver version is insufficient",
            "older than the image's CUDA",
        ),
        (
            "9.2 GiB KV cache is needed, larger than the available KV cache memory",
            "does not hold one request",
        ),
        ("OSError: [Errno 98] Address already in use", "port is taken"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ('could not select device driver "nvidia"', "cannot give the card"),
        ("vllm: error: unrecognized arguments: --gone", "does not know one of the profile's flags"),
        ("Could not find nvcc and default cuda_home", "there is no compiler"),
        ("Failed to connect to NVIDIA artifactory", "stock vLLM"),
    ],
)
def test_a_known_cause_is_named(log: str, part: str) -> None:
    cause = causes.explain(f"INFO something\n{log}\n")
    assert cause is not None
    assert part in cause.what


def test_an_unknown_cause_is_not_guessed() -> None:
    assert causes.explain("ValueError: something else") is None
    assert causes.last_errors("a\nb\nc") == "a\nb\nc"


def test_the_stage_is_the_latest_that_the_log_shows() -> None:
    assert watching.stage("") == "starting"
    assert watching.stage("Starting to load model x") == "loading weights"
    shards = "Loading safetensors checkpoint shards: "
    log = f"{shards} 20% Completed\r{shards} 60% Completed"
    assert watching.stage(log) == "loading weights, 60% Completed"
    assert (
        watching.stage(log + "\nModel loading took 18.3 GiB memory") == "weights loaded, 18.3 GiB"
    )


def test_a_pid_that_another_process_has_now_is_not_stopped() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as sleeping:
        began = state.ticks(sleeping.pid)
        process.stop(sleeping.pid, began + 1)
        assert state.alive(sleeping.pid, began)
        process.stop(sleeping.pid, began)
        assert not state.alive(sleeping.pid, began)


def test_a_process_that_ignores_the_request_is_made_to_end(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); "
        "print(1, flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    pid, began = process.start([sys.executable, "-c", script], os.environ, log)
    while not log.read_text():
        time.sleep(0.02)
    process.stop(pid, began, 0.3)
    assert not state.alive(pid, began)
