"""Docker with buildx and compose, cosign, oras, a registry on loopback, for tests; Debian, as root.

usage: containers.py start DIR | stop DIR

`start` installs what is missing: the distribution's runc and registry, and Docker, containerd,
buildx, compose, cosign and oras from a newer Debian suite, unpacked below DIR and nowhere else,
since Debian 12's own Docker has no buildx. It prints the variables that the tests need, as lines
for `eval`. `stop` ends what `start` started. There is no bridge network: a build that needs one
says `--network=host`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SUITE = os.environ.get("NEWER_SUITE", "forky")
PACKAGES = (
    "docker.io", "docker-cli", "docker-buildx", "docker-compose", "containerd", "cosign", "oras",
)  # fmt: skip
TOOLS = ("runc", "docker-registry", "busybox-static", "ca-certificates", "cmake", "skopeo")
REGISTRY = "127.0.0.1:5055"
PATIENCE = 60  # seconds until the services must answer


def run(*command: str | Path, **options: object) -> str:
    """Run a command; its errors are shown as they are."""
    done = subprocess.run(  # type: ignore[call-overload]
        [str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **options
    )
    return str(done.stdout)


def debian_address() -> str:
    """Return where apt gets Debian from, as apt is configured."""
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    found = [line for line in targets.splitlines() if re.search(r"/debian/?$", line)]
    if not found:
        sys.exit("error: no Debian source is configured\n  next:     apt-get update")
    return min(found)


def install(folder: Path) -> None:
    """Put everything in place; quick if it is there."""
    marker = folder / "installed"
    if marker.exists() and marker.read_text() == " ".join(PACKAGES + TOOLS):
        return
    quiet = {"stderr": subprocess.DEVNULL}
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *TOOLS, **quiet)
    apt = folder / "apt"
    for name in ("sources", "lists/partial", "cache/archives/partial", "debs"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "sources" / "newer.sources").write_text(
        f"Types: deb\nURIs: {debian_address()}\nSuites: {SUITE}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    options = [
        "-qq",
        f"-oDir::Etc::sourceparts={apt / 'sources'}",
        "-oDir::Etc::sourcelist=/dev/null",
        f"-oDir::State::lists={apt / 'lists'}",
        f"-oDir::Cache={apt / 'cache'}",
        "-oAPT::Sandbox::User=root",
    ]
    run("apt-get", *options, "update")
    run("apt-get", *options, "download", *PACKAGES, cwd=apt / "debs")
    root = folder / "root"
    for package in sorted((apt / "debs").glob("*.deb")):
        run("dpkg", "-x", package, root)
    for program in ("usr/bin/runc", "usr/sbin/runc"):
        (root / program).unlink(missing_ok=True)
    plugins = folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    for plugin in (root / "usr/libexec/docker/cli-plugins").iterdir():
        (plugins / plugin.name).unlink(missing_ok=True)
        (plugins / plugin.name).symlink_to(plugin)
    (folder / "config" / "config.json").write_text("{}")
    shutil.rmtree(apt)
    marker.write_text(" ".join(PACKAGES + TOOLS))


def environment(folder: Path) -> dict[str, str]:
    """Return the variables under which a client finds the services."""
    return {
        "DOCKER_HOST": f"unix://{folder / 'docker.sock'}",
        "DOCKER_CONFIG": str(folder / "config"),
        "PATH": f"{folder / 'root/usr/bin'}:{folder / 'root/usr/sbin'}:{os.environ['PATH']}",
        "VLLM_SM120_TEST_REGISTRY": REGISTRY,
    }


def daemon(folder: Path, name: str, *command: str | Path) -> None:
    """Start a service that outlives this process; its log and process id stand in the folder."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | environment(folder),
        )
    (folder / f"{name}.pid").write_text(str(process.pid))


def start(folder: Path) -> None:
    """Start dockerd and the registry, and wait until both answer."""
    install(folder)
    stop(folder)
    daemon(
        folder,
        "dockerd",
        "dockerd",
        f"--data-root={folder / 'data'}",
        f"--exec-root={folder / 'exec'}",
        f"--pidfile={folder / 'dockerd-own.pid'}",
        f"--host=unix://{folder / 'docker.sock'}",
        "--iptables=false",
        "--ip6tables=false",
        "--bridge=none",
        "--feature=containerd-snapshotter=true",
    )
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": REGISTRY},
    }
    (folder / "registry.yml").write_text(json.dumps(settings))
    daemon(folder, "registry", "docker-registry", "serve", folder / "registry.yml")
    deadline = time.monotonic() + PATIENCE
    probes = (["docker", "info"], [sys.executable, "-c", _PROBE, REGISTRY])
    for probe in probes:
        while subprocess.run(
            probe, env=os.environ | environment(folder), capture_output=True, check=False
        ).returncode:
            if time.monotonic() > deadline:
                logs = "".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
                sys.exit(f"error: `{probe[0]}` does not answer\n{logs}")
            time.sleep(0.5)
    for name, value in environment(folder).items():
        print(f"export {name}='{value}'")  # noqa: T201


_PROBE = "import sys, urllib.request; urllib.request.urlopen(f'http://{sys.argv[1]}/v2/')"


def stop(folder: Path) -> None:
    """End what `start` started, if it runs, and wait for its end."""
    for name, program in (("dockerd", "dockerd"), ("registry", "docker-registry")):
        file = folder / f"{name}.pid"
        if file.exists():
            group = int(file.read_text())
            if runs(group, program):
                end(group)
            file.unlink()
    (folder / "dockerd-own.pid").unlink(missing_ok=True)


def runs(process: int, program: str) -> bool:
    """Return whether a process is that program: after a restart the number can be another's."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
    return Path(command.split(b"\0")[0].decode("utf-8", "replace")).name == program


def end(group: int) -> None:
    """End a process group: by asking, then by force."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE / 3
        while time.monotonic() < deadline:
            try:
                os.killpg(group, sign)
            except ProcessLookupError:
                return
            time.sleep(0.2)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["start", where]:
            start(Path(where).absolute())
        case ["stop", where]:
            stop(Path(where).absolute())
        case _:
            sys.exit(__doc__)
