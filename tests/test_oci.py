"""OCI images: the base read strictly, our layer on top, and layouts written whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import ArchiveError, ChecksumError, LockError, StorageError, TargetError
from imagebuild.images import oci
from imagebuild.images.image import Image, overlay_image
from imagebuild.images.labels import image_labels
from imagebuild.images.ocibase import Base, read_base
from imagebuild.images.ocilayout import LAYOUT, LayoutSource, write_layout
from imagebuild.progress import Silent
from tests.support import artifacts
from tests.support.artifacts import AMD64, ARM64, CREATED_BY, EPOCH
from tests.support.baseimage import BaseImage, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagebuild.upstream import Platform


@pytest.fixture(params=["oci", "docker"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> BaseImage:
    return BaseImage(tmp_path / "base", docker=request.param == "docker")


@pytest.fixture
def plain(tmp_path: Path) -> BaseImage:
    return BaseImage(tmp_path / "base")


def image(base: BaseImage, folder: Path, platform: Platform = AMD64) -> Image:
    read = read_base(LayoutSource(base.root), base.manifests[platform], platform)
    labels = image_labels(artifacts.image_facts(f"sha256:{read.digest}"))
    made = artifacts.layer(folder)
    return overlay_image(read, made, labels, created_by=CREATED_BY, epoch=EPOCH)


def tree(folder: Path) -> dict[str, str]:
    """Return the digest of every file below `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def replaced(base: BaseImage, change: dict[str, Any], *, config: bool = False) -> Sha256:
    """Add a manifest that differs from amd64's in some keys, or whose config does."""
    manifest = load(base.get(base.manifests[AMD64]))
    if not config:
        return base.put(oci.canonical(manifest | change))
    data = oci.canonical(load(base.get(manifest["config"]["digest"])) | change)
    manifest["config"] |= {"digest": f"sha256:{base.put(data)}", "size": len(data)}
    return base.put(oci.canonical(manifest))


def read(base: BaseImage, digest: Sha256, platform: Platform = AMD64) -> Base:
    return read_base(LayoutSource(base.root), digest, platform)


@pytest.mark.parametrize("platform", [AMD64, ARM64])
def test_an_index_leads_to_the_platforms_manifest(base: BaseImage, platform: Platform) -> None:
    found = read(base, base.index, platform)
    assert found.digest == base.manifests[platform]
    assert f"{found.config.os}/{found.config.architecture}" == platform


def test_another_platforms_digest_names_both(base: BaseImage) -> None:
    with pytest.raises(LockError, match="another platform") as raised:
        read(base, base.manifests[ARM64], AMD64)
    assert (raised.value.expected, raised.value.found) == ("linux/amd64", "linux/arm64")


def test_an_index_without_the_platform_says_what_it_has(plain: BaseImage) -> None:
    document = load(plain.get(plain.index))
    document["manifests"] = document["manifests"][:1]
    with pytest.raises(TargetError, match="no manifest for linux/arm64") as raised:
        read(plain, plain.put(oci.canonical(document)), ARM64)
    assert raised.value.found == "linux/amd64"


def test_an_index_with_the_platform_twice_is_refused(plain: BaseImage) -> None:
    document = load(plain.get(plain.index))
    document["manifests"] *= 2
    with pytest.raises(TargetError, match="several"):
        read(plain, plain.put(oci.canonical(document)))


def test_attestations_in_an_index_are_no_platform(plain: BaseImage) -> None:
    document = load(plain.get(plain.index))
    unknown = {"os": "unknown", "architecture": "unknown"}
    document["manifests"].append(document["manifests"][0] | {"platform": unknown})
    assert read(plain, plain.put(oci.canonical(document))).digest == plain.manifests[AMD64]


def test_arm64_is_v8_whether_it_says_so_or_not() -> None:
    v8 = oci.TargetPlatform(os="linux", architecture="arm64", variant="v8")
    assert v8.matches(ARM64)
    assert not oci.TargetPlatform(os="linux", architecture="arm64", variant="v7").matches(ARM64)
    assert not oci.TargetPlatform(os="linux", architecture="amd64", variant="v3").matches(AMD64)


def test_a_damaged_manifest_has_another_digest(plain: BaseImage) -> None:
    path = plain.root / "blobs" / "sha256" / plain.manifests[AMD64]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ChecksumError) as raised:
        read(plain, plain.manifests[AMD64])
    assert raised.value.expected == f"sha256:{plain.manifests[AMD64]}"


def test_a_missing_manifest_is_named(plain: BaseImage) -> None:
    with pytest.raises(ArchiveError, match="lacks a file"):
        read(plain, Sha256("e" * 64))


def test_a_linked_blob_is_not_followed(plain: BaseImage, tmp_path: Path) -> None:
    path = plain.root / "blobs" / "sha256" / plain.manifests[AMD64]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArchiveError, match="lacks a file"):
        read(plain, plain.manifests[AMD64])


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{", b"\xff{}", b'{"schemaVersion":2}', b"[" * 100_000),
        b'{"schemaVersion":2,"schemaVersion":2,"manifests":[]}',
        b'{"mediaType":"application/vnd.docker.distribution.manifest.v1+prettyjws"}',
        b'{"schemaVersion":2,"manifests":[{"mediaType":"x","digest":"md5:1","size":1}]}',
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes, plain: BaseImage) -> None:
    with pytest.raises(ArchiveError):
        read(plain, plain.put(data))


def test_an_unknown_layer_type_is_refused(plain: BaseImage) -> None:
    manifest = load(plain.get(plain.manifests[AMD64]))
    manifest["layers"][0]["mediaType"] = "application/x-squashfs"
    with pytest.raises(ArchiveError, match="unknown media type") as raised:
        read(plain, replaced(plain, {"layers": manifest["layers"]}))
    assert raised.value.found == "application/x-squashfs"


def test_an_index_inside_an_index_is_refused(plain: BaseImage) -> None:
    document = load(plain.get(plain.index))
    document["manifests"][0]["digest"] = f"sha256:{plain.index}"
    with pytest.raises(ArchiveError, match="index stands inside"):
        read(plain, plain.put(oci.canonical(document)))


def test_diff_ids_that_do_not_fit_the_layers_are_refused(plain: BaseImage) -> None:
    rootfs = {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}
    with pytest.raises(ArchiveError, match="does not fit") as raised:
        read(plain, replaced(plain, {"rootfs": rootfs}, config=True))
    assert (raised.value.expected, raised.value.found) == ("2 layers", "1")


def test_a_history_that_does_not_fit_is_refused(plain: BaseImage) -> None:
    with pytest.raises(ArchiveError, match="history"):
        read(plain, replaced(plain, {"history": [{}]}, config=True))


def test_a_config_of_an_absurd_size_is_not_read(plain: BaseImage) -> None:
    manifest = load(plain.get(plain.manifests[AMD64]))
    manifest["config"]["size"] = 1 << 40
    with pytest.raises(ArchiveError, match="absurd size"):
        read(plain, replaced(plain, {"config": manifest["config"]}))


def test_something_that_is_no_container_image_is_refused(plain: BaseImage) -> None:
    manifest = load(plain.get(plain.manifests[AMD64]))
    manifest["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json"
    with pytest.raises(ArchiveError, match="not a container image"):
        read(plain, replaced(plain, {"config": manifest["config"]}))


def test_the_image_is_the_base_with_one_more_layer(base: BaseImage, tmp_path: Path) -> None:
    made = image(base, tmp_path)
    manifest, config = load(made.manifest), load(made.config)
    stock = load(base.get(base.manifests[AMD64]))
    stock_config = load(base.get(stock["config"]["digest"]))
    digests = [layer["digest"] for layer in manifest["layers"]]
    assert digests[:-1] == [layer["digest"] for layer in stock["layers"]]
    assert digests[-1] == f"sha256:{made.layer.digest}"
    diff_ids = config["rootfs"]["diff_ids"]
    assert diff_ids == [*stock_config["rootfs"]["diff_ids"], f"sha256:{made.layer.diff_id}"]
    assert config["history"][:-1] == stock_config["history"]
    assert config["history"][-1] == {
        "comment": "vllm-sm120",
        "created": "2026-11-02T10:12:56Z",
        "created_by": CREATED_BY,
    }
    assert config["created"] == "2026-11-02T10:12:56Z"
    assert config["config"]["Entrypoint"] == ["vllm", "serve"]
    assert config["config"]["Labels"]["maintainer"] == "upstream"
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == "1.2.3+sm120.1"
    assert manifest["annotations"]["io.github.vllm-sm120.upstream.version"] == "1.2.3"
    assert manifest["config"]["digest"] == f"sha256:{made.config_digest}"


def test_what_is_written_is_oci_whatever_the_base_is(tmp_path: Path) -> None:
    made = []
    for docker in (False, True):
        base = BaseImage(tmp_path / f"base-{docker}", docker=docker)
        read = read_base(LayoutSource(base.root), base.manifests[AMD64], AMD64)
        layer = artifacts.layer(tmp_path)
        made.append(overlay_image(read, layer, {}, created_by=CREATED_BY, epoch=EPOCH))
    assert made[0].manifest == made[1].manifest
    kinds = {layer["mediaType"] for layer in load(made[1].manifest)["layers"]}
    assert kinds == {"application/vnd.oci.image.layer.v1.tar+gzip"}


def test_notes_of_the_bases_own_build_are_dropped(plain: BaseImage, tmp_path: Path) -> None:
    notes = {
        "container": "1",
        "container_config": {"Labels": {}},
        "docker_version": "28",
        "id": "x",
    }
    digest = replaced(plain, notes, config=True)
    layer = artifacts.layer(tmp_path)
    made = overlay_image(read(plain, digest), layer, {}, created_by=CREATED_BY, epoch=EPOCH)
    assert notes.keys() & load(made.config).keys() == {"id"}


def test_a_base_without_history_gets_none(tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base", history=False)
    assert "history" not in load(image(base, tmp_path).config)


def test_canonical_json_is_sorted_compact_and_utf8() -> None:
    assert oci.canonical({"b": 1, "a": ["ü", None]}) == '{"a":["ü",null],"b":1}'.encode()


def test_a_layout_without_the_bases_layers_says_so(base: BaseImage, tmp_path: Path) -> None:
    made = image(base, tmp_path)
    layout = write_layout([made], tmp_path / "out", name="1.2.3-sm120.1", progress=Silent())
    index = LayoutSource(layout.path).index()
    assert layout.kind == "overlay-only"
    assert index.annotations == {LAYOUT: "overlay-only"}
    assert index.manifests[0].digest == f"sha256:{layout.digest}" == f"sha256:{made.digest}"
    blobs = {path.name for path in (layout.path / "blobs" / "sha256").iterdir()}
    assert blobs == {made.digest, made.config_digest, made.layer.digest}


def test_an_exported_layout_has_every_blob(base: BaseImage, tmp_path: Path) -> None:
    made = image(base, tmp_path)
    source = LayoutSource(base.root)
    out = tmp_path / "out"
    layout = write_layout([made], out, name="x", progress=Silent(), export=source)
    assert layout.kind == "complete"
    assert layout.digest == made.digest
    blobs = {path.name: path for path in (out / "blobs" / "sha256").iterdir()}
    wanted = {layer["digest"].removeprefix("sha256:") for layer in load(made.manifest)["layers"]}
    assert blobs.keys() == wanted | {made.digest, made.config_digest}
    assert all(sha256_bytes(path.read_bytes()) == name for name, path in blobs.items())


def test_several_platforms_stand_behind_one_index(base: BaseImage, tmp_path: Path) -> None:
    images = [image(base, tmp_path / p.replace("/", "-"), p) for p in (AMD64, ARM64)]
    layout = write_layout(images, tmp_path / "out", name="x", progress=Silent())
    (top,) = LayoutSource(layout.path).index().manifests
    document = load((layout.path / "blobs" / "sha256" / top.sha256).read_bytes())
    platforms = [entry["platform"]["architecture"] for entry in document["manifests"]]
    assert platforms == ["amd64", "arm64"]


def test_two_layouts_of_one_image_are_the_same_files(plain: BaseImage, tmp_path: Path) -> None:
    found = []
    for folder, mask in (("one", 0o077), ("two", 0o000)):
        before = os.umask(mask)
        try:
            made = image(plain, tmp_path / folder)
            write_layout([made], tmp_path / folder / "out", name="x", progress=Silent())
        finally:
            os.umask(before)
        out = tmp_path / folder / "out"
        modes = {path.relative_to(out): path.stat().st_mode for path in out.rglob("*")}
        found.append((tree(out), modes))
    assert found[0] == found[1]


def test_a_layout_that_is_there_is_replaced(plain: BaseImage, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "stale").write_bytes(b"x")
    write_layout([image(plain, tmp_path)], out, name="x", progress=Silent())
    assert not (out / "stale").exists()
    assert (out / "index.json").is_file()
    assert not list(tmp_path.glob(".out.*"))


def test_a_base_layer_that_is_not_its_digest_leaves_the_old_layout(
    plain: BaseImage, tmp_path: Path
) -> None:
    made = image(plain, tmp_path)
    out = tmp_path / "out"
    write_layout([made], out, name="x", progress=Silent())
    before = tree(out)
    layer = made.base_layers[0]
    (plain.root / "blobs" / "sha256" / layer.sha256).write_bytes(b"other")
    with pytest.raises(ChecksumError):
        write_layout([made], out, name="x", progress=Silent(), export=LayoutSource(plain.root))
    assert tree(out) == before
    assert not list(tmp_path.glob(".out.*"))


def test_a_full_disk_leaves_the_old_layout(plain: BaseImage, tmp_path: Path) -> None:
    made = image(plain, tmp_path)
    out = tmp_path / "out"
    write_layout([made], out, name="x", progress=Silent())
    before = tree(out)

    class Full:
        label = "full"

        def manifest(self, digest: Sha256) -> bytes:
            raise NotImplementedError(digest)

        def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
            yield digest.encode()
            raise OSError(28, "No space left on device", str(size))

    with pytest.raises(StorageError, match="disk is full"):
        write_layout([made], out, name="x", progress=Silent(), export=Full())
    assert tree(out) == before
    assert not list(tmp_path.glob(".out.*"))


def test_a_killed_writer_leaves_no_layout_and_the_next_run_succeeds(
    plain: BaseImage, tmp_path: Path
) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from imagebuild.images.ocilayout import LayoutSource, write_layout\n"
        "from imagebuild.progress import Silent\n"
        "from tests.support.baseimage import BaseImage\n"
        "from tests import test_oci\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "class Slow(LayoutSource):\n"
        "    def blob(self, digest, size):\n"
        "        print('writing', flush=True)\n"
        "        time.sleep(600)\n"
        "        yield b''\n"
        "base = BaseImage(folder / 'other')\n"
        "made = test_oci.image(base, folder)\n"
        "source = Slow(base.root)\n"
        "write_layout([made], folder / 'out', name='x', progress=Silent(), export=source)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=artifacts.ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.glob(".out.*.tmp"))
    write_layout([image(plain, tmp_path)], tmp_path / "out", name="x", progress=Silent())
    assert (tmp_path / "out" / "index.json").is_file()
    assert not list(tmp_path.glob(".out.*"))


@pytest.mark.parametrize("name", ["oci-layout", "index.json"])
def test_a_folder_that_is_no_layout_is_refused(name: str, plain: BaseImage) -> None:
    (plain.root / name).unlink()
    with pytest.raises(ArchiveError):
        LayoutSource(plain.root).index()


def test_a_layout_of_another_version_is_refused(plain: BaseImage) -> None:
    (plain.root / "oci-layout").write_bytes(b'{"imageLayoutVersion":"2.0.0"}')
    with pytest.raises(ArchiveError, match="not an OCI layout"):
        LayoutSource(plain.root).index()


@pytest.mark.containers
def test_skopeo_reads_what_we_write(base: BaseImage, tmp_path: Path) -> None:
    made = image(base, tmp_path)
    out = tmp_path / "out"
    source = LayoutSource(base.root)
    write_layout([made], out, name="1.2.3-sm120.1", progress=Silent(), export=source)
    skopeo = shutil.which("skopeo")
    assert skopeo is not None
    command = [skopeo, "inspect", "--override-arch", "amd64", f"oci:{out}:1.2.3-sm120.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["Digest"] == f"sha256:{made.digest}"
    assert seen["Labels"]["org.opencontainers.image.version"] == "1.2.3+sm120.1"
    assert seen["Layers"][-1] == f"sha256:{made.layer.digest}"
    copied = ["copy", "--insecure-policy", f"oci:{out}:1.2.3-sm120.1", f"oci:{tmp_path}/copy:x"]
    done = subprocess.run([skopeo, *copied], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (top,) = LayoutSource(tmp_path / "copy").index().manifests
    assert top.digest == f"sha256:{made.digest}"
