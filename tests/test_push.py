"""Pushing to a real registry: what travels, what is mounted, and what a broken wire leaves."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import TYPE_CHECKING

import pytest

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import ChecksumError, RegistryError, UsageError
from imagebuild.fetch.transport import Patience
from imagebuild.images.image import Image, index_of, overlay_image
from imagebuild.images.labels import image_labels
from imagebuild.images.ocibase import read_base
from imagebuild.images.ocilayout import LayoutSource
from imagebuild.images.publish import Publisher, Pushed
from imagebuild.images.reference import Reference, parse_reference
from imagebuild.images.registry import Registry
from imagebuild.progress import Silent
from tests.support import artifacts
from tests.support.artifacts import AMD64, ARM64, CREATED_BY, EPOCH
from tests.support.baseimage import BaseImage
from tests.support.real_registry import RealRegistry, Wire
from tests.test_registry import push as push_base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagebuild import upstream
    from imagebuild.images.ocibase import Source

BIG = os.urandom(1 << 20)
QUICK = Patience(attempts=4, sleep=lambda _: None)


@pytest.fixture(autouse=True)
def _nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealRegistry]:
    with RealRegistry(tmp_path / "registry") as registry:
        yield registry


def image(base: BaseImage, folder: Path, platform: upstream.Platform = AMD64) -> Image:
    """Return an overlay image whose layer is large beside a request's headers."""
    read = read_base(LayoutSource(base.root), base.index, platform)
    files = artifacts.patchset(artifacts.patched(), artifacts.new(data=BIG))
    labels = image_labels(artifacts.image_facts(f"sha256:{read.digest}"))
    layer = artifacts.layer(folder, files)
    return overlay_image(read, layer, labels, created_by=CREATED_BY, epoch=EPOCH)


def send(
    images: list[Image], target: str, base: Source, repository: str, patience: Patience = QUICK
) -> Pushed:
    index = index_of(images) if len(images) > 1 else None
    with Publisher(parse_reference(target), base, repository, Silent(), patience) as publisher:
        return publisher.push(images, index)


def tags(host: str, name: str) -> list[str]:
    with urllib.request.urlopen(f"http://{host}/v2/{name}/tags/list") as answer:
        return list(json.load(answer)["tags"] or [])


@pytest.mark.containers
def test_beside_the_official_image_only_our_layer_and_config_travel(
    real: RealRegistry, tmp_path: Path
) -> None:
    base = BaseImage(tmp_path / "base", first=os.urandom(8 << 20))
    made = image(base, tmp_path)
    push_base(base, real.host)
    with Wire(real.port) as wire, Registry(f"{wire.host}/vllm/vllm-openai") as source:
        pushed = send([made], f"{wire.host}/ours/vllm:1", source, source.repository)
        assert pushed.traffic.mounted == 2
        assert pushed.traffic.uploaded == made.layer.size + len(made.config)
        assert made.layer.size < wire.sent <= 2 * made.layer.size
        sent = wire.sent
        again = send([made], f"{wire.host}/ours/vllm:1", source, source.repository)
        assert (again.traffic.uploaded, again.traffic.present) == (0, 4)
        assert wire.sent - sent < made.layer.size / 10
    with Registry(f"{real.host}/ours/vllm") as client:
        assert client.resolve("1").digest == made.digest
        for layer in made.base_layers:
            assert sum(map(len, client.blob(layer.sha256, layer.size))) == layer.size


@pytest.mark.containers
def test_elsewhere_the_base_is_copied_in_chunks(real: RealRegistry, tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base", first=os.urandom(9 << 20))
    made = image(base, tmp_path)
    source = LayoutSource(base.root)
    pushed = send([made], f"{real.host}/ours/vllm:1", source, "docker.io/vllm/vllm-openai")
    assert (pushed.traffic.mounted, pushed.traffic.blobs) == (0, 4)
    with Registry(f"{real.host}/ours/vllm") as client:
        found = read_base(client, made.digest, AMD64)
        for layer in found.manifest.layers:
            assert sum(map(len, client.blob(layer.sha256, layer.size))) == layer.size


@pytest.mark.containers
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_wire_that_breaks_in_the_middle_is_gone_over_again(
    share: float, real: RealRegistry, tmp_path: Path
) -> None:
    base = BaseImage(tmp_path / "base", first=os.urandom(9 << 20))
    made = image(base, tmp_path)
    with Wire(real.port, cut=int(share * (9 << 20))) as wire:
        pushed = send([made], f"{wire.host}/ours/vllm:1", LayoutSource(base.root), "docker.io/x/y")
        assert wire.cuts == 1
    with Registry(f"{real.host}/ours/vllm") as client:
        assert client.resolve("1").digest == pushed.reference.digest == made.digest
        for layer in read_base(client, made.digest, AMD64).manifest.layers:
            assert sum(map(len, client.blob(layer.sha256, layer.size))) == layer.size


@pytest.mark.containers
def test_two_platforms_stand_behind_one_index(real: RealRegistry, tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base")
    both = [image(base, tmp_path / p.replace("/", "-"), p) for p in (AMD64, ARM64)]
    pushed = send(both, f"{real.host}/ours/vllm:1", LayoutSource(base.root), "docker.io/x/y")
    with Registry(f"{real.host}/ours/vllm") as client:
        found = client.resolve("1")
    assert found.digest == pushed.reference.digest
    assert found.platforms == {AMD64: both[0].digest, ARM64: both[1].digest}


class Damaged:
    """The base, with one layer's content wrong and of the right length."""

    def __init__(self, base: BaseImage) -> None:
        self._inner = LayoutSource(base.root)
        self.label = "damaged"

    def manifest(self, digest: Sha256) -> bytes:
        return self._inner.manifest(digest)

    def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
        data = b"x" + b"".join(self._inner.blob(digest, size))[1:]
        yield data
        if sha256_bytes(data) != digest:
            raise ChecksumError("a blob is not the one asked for", found=sha256_bytes(data))


@pytest.mark.containers
@pytest.mark.parametrize("size", [1 << 10, 9 << 20], ids=["one-request", "chunks"])
def test_a_damaged_base_gets_no_tag(size: int, real: RealRegistry, tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base", first=os.urandom(size))
    made = image(base, tmp_path)
    with pytest.raises(ChecksumError):
        send([made], f"{real.host}/ours/vllm:1", Damaged(base), "docker.io/x/y")
    with Registry(f"{real.host}/ours/vllm", patience=QUICK) as client, pytest.raises(RegistryError):
        client.resolve("1")


@pytest.mark.containers
def test_a_layer_changed_after_it_was_written_is_not_pushed(
    real: RealRegistry, tmp_path: Path
) -> None:
    base = BaseImage(tmp_path / "base")
    made = image(base, tmp_path)
    data = bytearray(made.layer.path.read_bytes())
    data[len(data) // 2] ^= 1
    made.layer.path.write_bytes(data)
    with pytest.raises(ChecksumError, match="changed after"):
        send([made], f"{real.host}/ours/vllm:1", LayoutSource(base.root), "docker.io/x/y")


@pytest.mark.containers
def test_a_tag_that_meant_something_else_is_told(real: RealRegistry, tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base")
    one, other = image(base, tmp_path / "a"), image(base, tmp_path / "b", ARM64)
    target = f"{real.host}/ours/vllm:1"
    first = send([one], target, LayoutSource(base.root), "docker.io/x/y")
    second = send([other], target, LayoutSource(base.root), "docker.io/x/y")
    assert (first.replaced, second.replaced) == (None, one.digest)
    assert tags(real.host, "ours/vllm") == ["1"]


REFERENCES = {
    "vllm/vllm-openai:v1": Reference("docker.io/vllm/vllm-openai", "v1"),
    "debian": Reference("docker.io/library/debian"),
    "localhost/a": Reference("localhost/a"),
    "127.0.0.1:5055/a/b-c_d:T": Reference("127.0.0.1:5055/a/b-c_d", "T"),
    "[::1]:5000/a:T": Reference("[::1]:5000/a", "T"),
    f"ghcr.io/a/b:1@sha256:{'0' * 64}": Reference("ghcr.io/a/b", "1", Sha256("0" * 64)),
}


@pytest.mark.parametrize("text", REFERENCES)
def test_a_reference_is_read_as_docker_reads_it(text: str) -> None:
    assert parse_reference(text) == REFERENCES[text]
    assert parse_reference(str(REFERENCES[text])) == REFERENCES[text]


@pytest.mark.parametrize("text", ["", "A/b", "a//b", "a:", "a@sha256:00", "a b", "a/b:x y", "-a/b"])
def test_what_is_no_reference_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(text)
