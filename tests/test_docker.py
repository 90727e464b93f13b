"""With real Docker, BuildKit and a real registry: two ways to the overlay image, one file tree."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imagebuild import release, upstream
from imagebuild.digest import sha256_bytes
from tests.support import tiny as tinies
from tests.support.baseimage import BaseImage, installed
from tests.support.command import ROOT, Command
from tests.support.tiny import LINE, LOCAL_VERSION

if TYPE_CHECKING:
    from tests.support.tiny import Tiny

pytestmark = pytest.mark.docker
LAYER = f"vllm-{LOCAL_VERSION}-linux-amd64.layer.tar.gz"
BUSYBOX = "/bin/busybox"  # Debian's busybox-static: one file that needs no other
SITE = "/usr/local/lib/python3.12/dist-packages"  # as the tiny line pins it
APPLETS = ("sh", "tar", "rm", "grep", "gzip")


def _registry() -> str:
    return os.environ["VLLM_SM120_TEST_REGISTRY"]


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(w) for w in command], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _tools() -> bytes:
    """Return a layer with a shell and tar, for the `RUN` of Dockerfile.overlay."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        program = archive.gettarinfo(os.path.realpath(BUSYBOX), "bin/busybox")
        program.mode = 0o755
        with Path(BUSYBOX).open("rb") as file:
            archive.addfile(program, file)
        for applet in APPLETS:
            for folder in ("bin", "usr/local/bin"):
                link = tarfile.TarInfo(f"{folder}/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "/bin/busybox"
                archive.addfile(link)
        for name in ("dev", "proc", "sys", "tmp"):  # every base has them; a `RUN` mounts there
            folder_entry = tarfile.TarInfo(name)
            folder_entry.type, folder_entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder_entry)
    return out.getvalue()


@pytest.fixture
def base(tmp_path: Path) -> tuple[str, str]:
    """Push a stand-in for the official image; return its reference and its digest."""
    image = BaseImage(tmp_path / "base", first=_tools(), site=SITE)
    ref = f"{_registry()}/stand-in/vllm-openai:{LINE}"
    source = f"oci:{image.root}"
    _run("skopeo", "copy", "--all", "--quiet", "--dest-tls-verify=false", source, f"docker://{ref}")
    return ref, f"sha256:{image.index}"


@pytest.fixture
def tiny(tmp_path: Path, base: tuple[str, str]) -> Tiny:
    tiny = tinies.make(tmp_path / "project")
    pin = {"ref": base[0], "digest": base[1]}
    tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(image=pin))
    tiny.relock()
    return tiny


def _file_tree(context: Path, dockerfile: Path, *arguments: str) -> dict[str, tuple[object, ...]]:
    """Return what Docker makes of a Dockerfile: each file's type, mode, owner, content and time."""
    out = context.parent / f"{dockerfile.name}.tar"
    _run(
        *("docker", "buildx", "build", "--quiet", "--no-cache", "--provenance=false"),
        *("--network=host", f"--output=type=tar,dest={out}", f"--file={dockerfile}"),
        *arguments,
        context,
    )
    found: dict[str, tuple[object, ...]] = {}
    with tarfile.open(out) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            content = sha256_bytes(file.read()) if file else member.linkname
            time = member.mtime if member.isfile() else None
            key = member.name.removeprefix("./").rstrip("/")
            found[key] = (member.type, member.mode, member.uid, member.gid, content, time)
    return found


def _ours(context: Path, ref: str) -> dict[str, tuple[object, ...]]:
    plain = context.parent / "Dockerfile.plain"
    plain.write_text(f"FROM {ref}\n")
    return _file_tree(context, plain)


def test_the_image_from_a_registry_and_dockerfile_overlay_have_the_same_file_tree(
    tiny: Tiny, base: tuple[str, str], tmp_path: Path
) -> None:
    command = Command.on(tiny, tmp_path)
    command.ok("--target", "layer", "--target", "image", "--export")
    made = release.load(tiny.project.dist / "release.json").outputs[1]
    assert isinstance(made, release.ImageOutput)
    assert made.content == "complete"
    ref = f"{_registry()}/stand-in/ours"
    layout = f"oci:{tiny.project.dist / made.folder}"
    _run("skopeo", "copy", "--quiet", "--dest-tls-verify=false", layout, f"docker://{ref}:test")
    ours = _ours(tiny.project.dist, f"{ref}@{made.manifest}")

    theirs = _file_tree(
        tiny.project.dist,
        ROOT / "Dockerfile.overlay",
        f"--build-arg=BASE={base[0].rsplit(':', 1)[0]}@{base[1]}",
        f"--build-arg=LAYER={LAYER}",
    )
    stock = _ours(tiny.project.dist, f"{base[0].rsplit(':', 1)[0]}@{base[1]}")
    assert theirs != stock
    assert theirs == ours


def test_nothing_of_the_stock_files_is_left_in_the_image(
    tiny: Tiny, base: tuple[str, str], tmp_path: Path
) -> None:
    command = Command.on(tiny, tmp_path)
    command.ok("--target", "layer")
    shutil.copyfile(ROOT / "Dockerfile.overlay", tmp_path / "Dockerfile.overlay")
    found = _file_tree(
        tiny.project.dist,
        tmp_path / "Dockerfile.overlay",
        f"--build-arg=BASE={base[0].rsplit(':', 1)[0]}@{base[1]}",
        f"--build-arg=LAYER={LAYER}",
    )
    site = tiny.line.site_packages.lstrip("/")
    stock = {path for path in installed(SITE) if ".pyc" in path or ".dist-info" in path}
    replaced = {path for path in tiny.pins.produced if f"{site}/{path}" in installed(SITE)}
    assert stock
    assert replaced
    names = {path.rpartition("/")[2] for path in found}
    for path in replaced:
        stem = path.rpartition("/")[2].removesuffix(".py")
        assert f"{stem}.cpython-312.pyc" not in names or stem == "__init__"
    assert not any(path.startswith(f"{site}/vllm-{tinies.VERSION}.dist-info") for path in found)
    assert not any(name.startswith(".wh.") for name in names)


def test_docker_shows_the_labels_and_verify_accepts_the_layout(tiny: Tiny, tmp_path: Path) -> None:
    command = Command.on(tiny, tmp_path)
    command.ok("--target", "image", "--export")
    folder = tiny.project.dist / f"image-{LINE}-linux-amd64"
    text = command.ok("verify", str(folder))
    assert "BAD" not in text
    ref = f"{_registry()}/stand-in/labelled:test"
    _run("skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{folder}", f"docker://{ref}")
    shown = _run("skopeo", "inspect", "--tls-verify=false", f"docker://{ref}")
    assert '"io.github.vllm-sm120.upstream.version": "1.2.3"' in shown
    assert upstream.PLATFORMS[0].split("/")[1] in shown
