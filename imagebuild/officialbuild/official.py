"""The official Dockerfile over the patched tree, as one description for Docker's buildx.

The description is a bake file: what is printed, checked and built is the same file with another
last step. Bases go in by digest, and a BuildKit source policy denies every image that is not one of
them, wherever the Dockerfile may name it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from imagebuild.errors import UnpinnedError
from imagebuild.images.labels import ImageFacts, image_labels

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from imagebuild.builder import Build
    from imagebuild.upstream import ImagePin, Line

TARGET = "vllm-openai"
NAME = "official"
_JOB = 8 << 30
_REST = 4 << 30


@dataclass(frozen=True)
class Machine:
    """What the build runs on.

    Attributes:
        cores: processors that may be used.
        memory: bytes of memory in all.
    """

    cores: int
    memory: int

    @classmethod
    def here(cls) -> Machine:
        """Return this machine."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(len(os.sched_getaffinity(0)), memory)


@dataclass(frozen=True)
class Options:
    """What a person chooses.

    Attributes:
        builder: a buildx builder, such as a remote one; None for the current one.
        cache_from, cache_to: buildx's build caches.
        arguments: more build arguments, such as those of sccache.
        jobs, threads: instead of what the formula gives.
        push: a reference to push to.
        load: whether Docker gets the image.
        output: a folder that gets the image as an OCI archive.
        network: the network of the build's steps, such as `host`; None for buildx's own choice.
    """

    builder: str | None = None
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    jobs: int | None = None
    threads: int | None = None
    push: str | None = None
    load: bool = False
    output: Path | None = None
    network: str | None = None


@dataclass(frozen=True)
class Parallel:
    """How much is compiled at once.

    Attributes:
        jobs: files at once (`max_jobs`).
        threads: architectures of one file at once (`nvcc_threads`).
        why: the formula with its numbers.
    """

    jobs: int
    threads: int
    why: str


def parallel(machine: Machine, archs: str, options: Options) -> Parallel:
    """Return how much to compile at once.

    One nvcc of the SM120 FP4 kernels takes 7.3 GB: 8 GiB a file, 4 GiB for the rest of the machine,
    and no more files than cores. Threads only help over several architectures.
    """
    room = max(1, (machine.memory - _REST) // _JOB)
    jobs = options.jobs or max(1, min(machine.cores, room))
    threads = options.threads or len(archs.split(";"))
    why = (
        f"max_jobs = min({machine.cores} cores, ({machine.memory >> 30} - {_REST >> 30}) GiB / "
        f"{_JOB >> 30} GiB) = {jobs}; nvcc_threads = {threads} architectures"
    )
    return Parallel(jobs, threads, why)


def pinned(pin: ImagePin, argument: str, line: Line) -> str:
    """Return a base image by digest.

    Raises:
        UnpinnedError: if nobody has resolved it.
    """
    if pin.digest is None:
        raise UnpinnedError(
            f"a base image of the official Dockerfile is not pinned for {line.tag}",
            file="upstream.lock",
            expected=f'[lines."{line.tag}".bases.{argument}] digest = "sha256:…"',
            found=f"{pin.ref}, no digest",
            next_command=f"python build.py lock {line.tag} --write",
        )
    return f"{pin.repository}@{pin.digest}"


@dataclass(frozen=True)
class Plan:
    """What buildx is given.

    Attributes:
        context: the patched tree.
        dockerfile: upstream's own, in it.
        bases: each base image by digest, by the build argument that names it.
        bake: the bake file.
        policy: the source policy.
        parallel: how much is compiled at once.
        builder: the builder; None for the current one.
        output: the folder that gets the image; None for none.
    """

    context: Path
    dockerfile: str
    bases: dict[str, str]
    bake: dict[str, Any]
    policy: dict[str, Any]
    parallel: Parallel
    builder: str | None = None
    output: Path | None = None

    @property
    def target(self) -> dict[str, Any]:
        """The one target of the bake file."""
        found: dict[str, Any] = self.bake["target"][NAME]
        return found

    def write(self, folder: Path) -> dict[str, str]:
        """Write bake file and policy; return the variable under which buildx finds the policy."""
        (folder / "bake.json").write_text(json.dumps(self.bake, indent=2, sort_keys=True))
        policy = folder / "policy.json"
        policy.write_text(json.dumps(self.policy, indent=2, sort_keys=True))
        return {"EXPERIMENTAL_BUILDKIT_SOURCE_POLICY": str(policy)}

    def command(self, folder: Path, *more: str) -> list[str]:
        """Return the command over what `write` has written, with another last step each time."""
        builder = [f"--builder={self.builder}"] if self.builder else []
        paths = [f"--allow=fs.read={self.context}", f"--allow=fs.read={folder}"]
        paths += [] if self.output is None else [f"--allow=fs.write={self.output}"]
        paths += ["--allow=network.host"] if self.target.get("network") == "host" else []
        file = f"--file={folder / 'bake.json'}"
        return ["docker", "buildx", "bake", file, *paths, *builder, *more, NAME]


def plan(build: Build, context: Path, options: Options, machine: Machine) -> Plan:
    """Return what buildx is given for a line's official image.

    Args:
        build: the build; its platforms are built together.
        context: the patched tree.
        options: what a person chooses.
        machine: what the build runs on.

    Raises:
        UnpinnedError: if a base is not pinned.
    """
    line, request = build.line, build.request
    bases = {name: pinned(pin, name, line) for name, pin in sorted(line.bases.items())}
    archs = ";".join(
        dict.fromkeys(a for p in request.platforms for a in line.cuda_archs[p].split(";"))
    )
    chosen = parallel(machine, archs, options)
    labels = image_labels(_facts(build, archs))
    arguments = {
        "CUDA_VERSION": line.cuda,
        "PYTHON_VERSION": line.python,
        "torch_cuda_arch_list": archs.replace(";", " "),
        "max_jobs": str(chosen.jobs),
        "nvcc_threads": str(chosen.threads),
        "VLLM_BUILD_COMMIT": line.best_commit,
        "VLLM_IMAGE_TAG": line.local_version.replace("+", "-"),
        "SOURCE_DATE_EPOCH": str(build.epoch),
        **options.arguments,
        **bases,
    }
    target: dict[str, Any] = {
        "context": str(context),
        "dockerfile": line.dockerfile.path,
        "target": TARGET,
        "platforms": list(request.platforms),
        "args": arguments,
        "labels": labels,
        "attest": ["type=provenance,mode=max,version=v1"],
        "output": _outputs(options),
    }
    if not options.load:
        target["annotations"] = [f"index,manifest:{key}={text}" for key, text in labels.items()]
    if options.network is not None:
        target["network"] = options.network
    if options.push:
        target["tags"] = [options.push]
    caches = {"cache-from": options.cache_from, "cache-to": options.cache_to}
    target |= {key: list(found) for key, found in caches.items() if found}
    return Plan(
        context,
        line.dockerfile.path,
        bases,
        {"target": {NAME: target}},
        policy(bases.values()),
        chosen,
        options.builder,
        options.output,
    )


def policy(images: Any) -> dict[str, Any]:  # noqa: ANN401  (any iterable of references)
    """Return a BuildKit source policy that denies every image but these, which go by digest.

    The rules are read in order, and the last that matches decides (moby/buildkit,
    docs/build-repro.md, "Source policies").
    """
    deny = {"identifier": "docker-image://*", "matchType": "WILDCARD"}
    allow = [{"identifier": f"docker-image://{image}", "matchType": "EXACT"} for image in images]
    return {
        "rules": [
            {"action": "DENY", "selector": deny},
            *({"action": "ALLOW", "selector": selector} for selector in allow),
        ]
    }


def _outputs(options: Options) -> list[str]:
    found = []
    if options.push:
        found.append("type=image,push=true,store=false,rewrite-timestamp=true")
    if options.load:
        found.append("type=docker")
    if options.output is not None:
        dest = options.output / "image-official.tar"
        found.append(f"type=oci,dest={dest},rewrite-timestamp=true")
    return found or ["type=cacheonly"]


def _facts(build: Build, archs: str) -> ImageFacts:
    from imagebuild.digest import sha256_file  # noqa: PLC0415  (kept out of start-up)
    from imagebuild.project import SOURCE  # noqa: PLC0415  (the same)

    final = build.line.bases.get("FINAL_BASE_IMAGE")
    return ImageFacts(
        line=build.line,
        patchset=build.patchset.sha256,
        patches=tuple(build.patchset.patches),
        lock=sha256_file(build.project.checksums_lock),
        base_ref="" if final is None else final.ref,
        base_digest="" if final is None or final.digest is None else final.digest,
        source=SOURCE,
        revision=build.project.revision(),
        epoch=build.epoch,
        cuda_archs=archs,
    )
