"""The official Dockerfile over the patched tree: its plan, and where stand-ins stop it."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import tomlkit

from imagebuild.officialbuild import dockerfile, official
from imagebuild.officialbuild.archgate import covered
from imagebuild.officialbuild.official import Machine, Options, parallel, policy
from imagebuild.officialbuild.official_run import run
from imagebuild.project import cache_root
from tests.support import tiny as tinies
from tests.support.baseimage import BaseImage
from tests.support.command import ROOT, Command
from tests.test_docker import _registry, _run, _tools

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINE = "v0.33.0"
BASES = ("BUILD_BASE_IMAGE", "FINAL_BASE_IMAGE")
DOCKERFILE = """\
# syntax=docker/dockerfile:1
# a comment with https://comment.example.org
ARG VERSION=1
ARG BASE=registry.example.org/base:${VERSION}
FROM ${BASE} AS build
RUN curl https://one.example.org/x \\
    # https://comment.example.org
    && curl http://two.example.org/y
FROM build AS second
COPY --from=build /a /b
COPY --from=tools:2 /a /b
FROM scratch
RUN --mount=type=bind,from=second,source=/x true
RUN --mount=type=bind,from=other/mount:3,source=/x true
COPY --from=0 /a /b
"""


def test_every_image_from_outside_is_found_wherever_it_is_named() -> None:
    found = dockerfile.externals(DOCKERFILE, {"VERSION": "9"})
    assert [image.image for image in found] == [
        "docker.io/docker/dockerfile:1",
        "registry.example.org/base:9",
        "docker.io/library/tools:2",
        "docker.io/other/mount:3",
    ]
    assert not any(image.pinned for image in found)
    given = {"BASE": "registry.example.org/base@sha256:" + "0" * 64}
    assert dockerfile.externals(DOCKERFILE, given)[1].pinned


def test_the_hosts_that_steps_name_are_listed_and_comments_are_not() -> None:
    assert dockerfile.hosts(DOCKERFILE) == ("one.example.org", "two.example.org")


@pytest.mark.parametrize(
    ("cores", "gib", "archs", "jobs", "threads"),
    [
        (2, 24, "12.0", 2, 1),
        (64, 24, "12.0", 2, 1),
        (64, 512, "12.0;12.1", 63, 2),
        (1, 4, "12.0", 1, 1),
    ],
)
def test_what_is_compiled_at_once_follows_cores_and_memory(
    cores: int, gib: int, archs: str, jobs: int, threads: int
) -> None:
    found = parallel(Machine(cores, gib << 30), archs, Options())
    assert (found.jobs, found.threads) == (jobs, threads)
    assert f"= {jobs}" in found.why
    chosen = parallel(Machine(cores, gib << 30), archs, Options(jobs=5, threads=7))
    assert (chosen.jobs, chosen.threads) == (5, 7)


def test_family_code_covers_its_major_version() -> None:
    assert covered("12.1", ["12.0f"])
    assert covered("12.1", ["9.0a", "12.1a"])
    assert not covered("12.1", ["12.0a"])
    assert not covered("12.1", ["9.0a", "10.0f"])


@pytest.fixture
def project(tmp_path: Path) -> Callable[[dict[str, tuple[str, str] | None]], Command]:
    """Return this project with other base images: reference and digest of each, or None."""

    def make(bases: dict[str, tuple[str, str] | None]) -> Command:
        root = tmp_path / "project"
        for name in ("patches", "overlay"):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name)
        for name in ("build.py", "checksums.lock", "upstream.lock"):
            shutil.copyfile(ROOT / name, root / name)
        lock: Any = tomlkit.parse((root / "upstream.lock").read_text())
        table = lock["lines"][LINE]["bases"]
        for name, pin in bases.items():
            if pin is None:
                del table[name]["digest"]
            else:
                table[name]["ref"], table[name]["digest"] = pin
        (root / "upstream.lock").write_text(tomlkit.dumps(lock))
        command = Command(root, tmp_path / "home", "https://index.example.org/simple")
        command.extra = {"VLLM_SM120_CACHE": str(cache_root())}
        for name in ("DOCKER_HOST", "DOCKER_CONFIG"):
            command.extra |= {name: value} if (value := os.environ.get(name)) else {}
        return command

    return make


@pytest.mark.upstream
def test_a_base_that_nobody_has_pinned_is_refused(
    project: Callable[[dict[str, tuple[str, str] | None]], Command],
) -> None:
    done = project({"FINAL_BASE_IMAGE": None}).run(LINE, "--target", "official", "--dry-run")
    assert done.returncode == 12
    assert "FINAL_BASE_IMAGE" in done.stderr


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, tuple[str, str] | None]:
    """Push stand-ins for the two bases: a shell, and nothing that a build needs."""
    found: dict[str, tuple[str, str] | None] = {}
    for name in BASES:
        base = BaseImage(tmp_path / name, first=_tools())
        ref = f"{_registry()}/stand-in/{name.lower()}:1"
        _run(
            *("skopeo", "copy", "--all", "--quiet", "--preserve-digests"),
            *("--dest-tls-verify=false", f"oci:{base.root}", f"docker://{ref}"),
        )
        found[name] = (ref, f"sha256:{base.index}")
    return found


@pytest.mark.docker
@pytest.mark.upstream
def test_a_dry_run_proves_the_plan_on_upstreams_own_dockerfile(
    project: Callable[[dict[str, tuple[str, str] | None]], Command],
    stand_ins: dict[str, tuple[str, str] | None],
) -> None:
    command = project(stand_ins)
    both = ("--platform", "linux/amd64", "--platform", "linux/arm64")
    found = command.json(LINE, "--target", "official", "--dry-run", *both)
    assert found["ok"], found
    checks = {check["name"]: (check["verdict"], check["found"]) for check in found["checks"]}
    for name in BASES:
        assert checks[f"pinned: ${{{name}}}"][0] == "ok"
    assert checks["upstream's CMake keeps the architectures"] == (
        "ok",
        "12.0; 12.1 -> 12.0, FP4 kernels for 12.0f",
    )
    assert checks["hosts that the steps name"][1].split(", ") == [
        "astral.sh",
        "bootstrap.pypa.io",
        "download.pytorch.org",
        "github.com",
    ]
    assert checks["targets of the Dockerfile"] == ("ok", "16, vllm-openai among them")
    assert checks["warnings of the Dockerfile"][0] == "ok"
    for key in ("args", "labels", "platforms", "target"):
        assert checks[f"bake: {key}"][0] == "ok"
    arguments = found["plan"]["target"]["official"]["args"]
    assert arguments["torch_cuda_arch_list"] == "12.0 12.1"
    labels = found["plan"]["target"]["official"]["labels"]
    assert labels["io.github.vllm-sm120.cuda.archs"] == "12.0;12.1"
    actions = [rule["action"] for rule in found["policy"]["rules"]]
    assert actions == ["DENY", "ALLOW", "ALLOW"]


@pytest.mark.docker
@pytest.mark.upstream
def test_the_real_build_starts_and_stops_where_the_stand_ins_have_no_package_manager(
    project: Callable[[dict[str, tuple[str, str] | None]], Command],
    stand_ins: dict[str, tuple[str, str] | None],
) -> None:
    command = project(stand_ins)
    done = command.run(LINE, "--target", "official", "--network", "host", "--json")
    assert done.returncode == 30, done.stderr
    found = json.loads(done.stdout)
    assert found["summary"] == "the official build stops"
    # The first step of `base` asks dnf, that of `vllm-runtime-base` apt: whichever comes first.
    assert "dnf: not found" in found["detail"] or "apt-get: not found" in found["detail"]


@pytest.mark.docker
def test_a_build_to_its_end_is_pushed_and_written_with_labels_annotations_and_provenance(
    stand_ins: dict[str, tuple[str, str] | None], tmp_path: Path
) -> None:
    pin = stand_ins["FINAL_BASE_IMAGE"]
    assert pin is not None
    tiny = tinies.make(tmp_path / "project")
    bases = {"FINAL_BASE_IMAGE": {"ref": pin[0], "digest": pin[1]}}
    tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(bases=bases))
    tiny.relock()
    command = Command.on(tiny, tmp_path)
    for name in ("DOCKER_HOST", "DOCKER_CONFIG"):
        command.extra |= {name: value} if (value := os.environ.get(name)) else {}
    name = f"{_registry()}/stand-in/official"
    out = tmp_path / "out"
    out.mkdir()
    made = command.json("--target", "official", "--push", f"{name}:1", "--output", str(out))
    assert "digest" in made, made
    assert (out / "image-official.tar").stat().st_size > 0
    digest = made["digest"]
    found = json.loads(_inspect("--raw", f"{name}@{digest}"))
    assert found["annotations"]["io.github.vllm-sm120.upstream.version"] == tinies.VERSION
    kinds = [entry.get("annotations", {}) for entry in found["manifests"]]
    assert [k.get("vnd.docker.reference.type") for k in kinds] == [None, "attestation-manifest"]
    manifest = json.loads(_inspect("--raw", f"{name}@{found['manifests'][0]['digest']}"))
    assert manifest["annotations"]["io.github.vllm-sm120.cuda.archs"] == "12.0"
    config = json.loads(_inspect("--config", f"{name}@{digest}"))
    assert "BUILT_FOR=12.0" in config["config"]["Env"]
    labels = config["config"]["Labels"]
    assert labels["io.github.vllm-sm120.patchset.sha256"] == tiny.pins.patchset
    assert labels["org.opencontainers.image.base.digest"] == pin[1]
    statement = json.loads(_inspect("--raw", f"{name}@{found['manifests'][1]['digest']}"))
    predicate = statement["layers"][0]["annotations"]["in-toto.io/predicate-type"]
    assert predicate == "https://slsa.dev/provenance/v1"


def _inspect(what: str, ref: str) -> str:
    return _run("skopeo", "inspect", what, "--tls-verify=false", f"docker://{ref}")


@pytest.mark.docker
def test_an_image_that_is_not_pinned_is_denied_wherever_the_dockerfile_names_it(
    stand_ins: dict[str, tuple[str, str] | None], tmp_path: Path
) -> None:
    pin = stand_ins["FINAL_BASE_IMAGE"]
    assert pin is not None
    by_digest = f"{pin[0].rsplit(':', 1)[0]}@{pin[1]}"
    for image, allowed in ((by_digest, True), (pin[0], False)):
        (tmp_path / "Dockerfile").write_text(f"FROM scratch\nCOPY --from={image} /bin /bin\n")
        target = {
            "context": str(tmp_path),
            "dockerfile": "Dockerfile",
            "output": ["type=cacheonly"],
        }
        plan = official.Plan(
            tmp_path,
            "Dockerfile",
            {},
            {"target": {"official": target}},
            policy([by_digest]),
            parallel(Machine(1, 1 << 30), "12.0", Options()),
        )
        done = run(plan.command(tmp_path), plan.write(tmp_path))
        assert (done.returncode == 0) == allowed, done.stderr
        assert ("denied by policy" in done.stderr) != allowed
