"""A registry that misbehaves: a clear error or a right recovery, and never a wrong tag."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from imagebuild.digest import parse_sha256, sha256_bytes
from imagebuild.errors import ArchiveError, BuildError, ChecksumError, RegistryError, TargetError
from imagebuild.fetch.transport import Patience
from imagebuild.images import oci
from imagebuild.images.image import Image, overlay_image
from imagebuild.images.labels import image_labels
from imagebuild.images.ocibase import read_base
from imagebuild.images.ocilayout import LayoutSource
from imagebuild.images.publish import Publisher, Pushed
from imagebuild.images.reference import parse_reference
from imagebuild.images.registry import Registry
from imagebuild.progress import Silent
from imagebuild.verifying.verify_image import entries
from imagebuild.verifying.verify_registry import RegistrySubject, resolve
from tests.support import artifacts
from tests.support.artifacts import AMD64, ARM64, CREATED_BY, EPOCH
from tests.support.baseimage import BaseImage, load
from tests.support.memory_registry import MemoryRegistry
from tests.support.scripted_registry import Answer, Request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BASE, OURS = "vllm/vllm-openai", "ours/vllm"


@dataclass
class Bench:
    """A base in a registry, an image on top of it, and a clock that nobody waits for."""

    base: BaseImage
    image: Image
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)
    waits: list[float] = field(default_factory=list)

    @property
    def patience(self) -> Patience:
        return Patience(attempts=4, sleep=self.waits.append)

    def push(self, fault: Callable[[Request], Answer | None] = lambda _: None) -> Pushed:
        """Push with a fault; whatever happens, no tag may mean anything else than the image."""
        self.registry.fault = fault
        try:
            with self.registry.serve() as server:
                target = parse_reference(f"{server.host}/{OURS}:1")
                with (
                    Registry(f"{server.host}/{BASE}", patience=self.patience) as source,
                    Publisher(
                        target, source, source.repository, Silent(), self.patience
                    ) as publisher,
                ):
                    return publisher.push([self.image], None)
        finally:
            self.registry.fault = lambda _: None
            tagged = self.registry.manifests.get((OURS, "1"))
            assert tagged is None or tagged[0] == self.image.manifest
            if tagged is not None:
                layers = [*self.image.base_layers]
                for digest in [f"sha256:{self.image.layer.digest}", *(x.digest for x in layers)]:
                    held = self.registry.blobs[OURS, digest]
                    assert f"sha256:{sha256_bytes(held)}" == digest

    @property
    def tags(self) -> list[str]:
        return self.registry.tags(OURS)


@pytest.fixture(autouse=True)
def _nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[BaseImage, Image]:
    folder = tmp_path_factory.mktemp("made")
    base = BaseImage(folder / "base", first=os.urandom(5 << 20))
    read = read_base(LayoutSource(base.root), base.index, AMD64)
    labels = image_labels(artifacts.image_facts(f"sha256:{read.digest}"))
    layer = artifacts.layer(folder)
    return base, overlay_image(read, layer, labels, created_by=CREATED_BY, epoch=EPOCH)


@pytest.fixture
def bench(made: tuple[BaseImage, Image]) -> Bench:
    found = Bench(*made)
    found.registry.hold(made[0], BASE)
    return found


def test_without_a_fault_everything_is_there(bench: Bench) -> None:
    pushed = bench.push()
    assert bench.tags == ["1"]
    assert pushed.traffic.mounted == 2
    order = [r.path for r in bench.registry.asked if r.method == "PUT" and "/manifests/" in r.path]
    assert order[-1].endswith("/manifests/1"), "the tag comes last"


def on(
    method: str, part: str, answer: Answer, times: int = 99
) -> Callable[[Request], Answer | None]:
    """Answer requests of a method whose path holds `part`, a number of times."""
    left = [times]

    def fault(request: Request) -> Answer | None:
        if request.method != method or part not in request.path or left[0] == 0:
            return None
        left[0] -= 1
        return answer

    return fault


STEPS = {
    "looking for a blob": ("HEAD", f"{OURS}/blobs/"),
    "opening an upload": ("POST", "uploads/"),
    "finishing an upload": ("PUT", "uploads/"),
    "pushing a manifest": ("PUT", "manifests/sha256"),
    "setting the tag": ("PUT", "manifests/1"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_a_refusal_for_good_is_an_error_that_says_which(
    status: int, step: str, bench: Bench
) -> None:
    if (step, status) == ("looking for a blob", 404):
        return  # that is no refusal: the blob is not there
    with pytest.raises(RegistryError) as raised:
        bench.push(on(*STEPS[step], Answer(status)))
    said = f"{raised.value.found} {raised.value.summary}"
    assert str(status) in said or (status == 401 and "credentials" in said)
    assert bench.tags == []


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_refusal_that_passes_is_waited_for(status: int, step: str, bench: Bench) -> None:
    answer = Answer(status, headers={"Retry-After": "7"})
    bench.push(on(*STEPS[step], answer, times=2))
    assert bench.tags == ["1"]
    if step != "finishing an upload":
        assert bench.waits == [7.0, 7.0]


def test_a_registry_that_wants_an_hour_is_not_waited_for(bench: Bench) -> None:
    with pytest.raises(RegistryError, match="refuses") as raised:
        bench.push(on("HEAD", "blobs/", Answer(429, headers={"Retry-After": "3600"})))
    assert "3600" in str(raised.value.found)
    assert bench.waits == []


@pytest.mark.parametrize("status", [202, 403, 404, 405])
def test_a_refused_mount_becomes_an_upload(status: int, bench: Bench) -> None:
    bench.registry.mounts = False
    pushed = bench.push(on("POST", "mount=", Answer(status), times=0 if status == 202 else 99))
    assert bench.tags == ["1"]
    assert pushed.traffic.mounted == 0
    assert pushed.traffic.uploaded > 5 << 20


def no_mounts(fault: Callable[[Request], Answer | None]) -> Callable[[Request], Answer | None]:
    """Refuse mounts, so that the base's blobs travel, and have `fault` on top."""
    mounts = on("POST", "mount=", Answer(404))
    return lambda request: mounts(request) or fault(request)


def test_an_upload_cut_in_the_middle_goes_on(bench: Bench) -> None:
    cut = on("PATCH", "uploads/", Answer(500), times=1)
    pushed = bench.push(no_mounts(cut))
    assert bench.tags == ["1"]
    assert len([r for r in bench.registry.asked if r.method == "GET" and "uploads" in r.path]) == 1
    assert pushed.traffic.uploaded < (5 << 20) + 2 * (4 << 20)


def test_an_upload_that_the_registry_forgot_starts_anew(bench: Bench) -> None:
    lost = on("PATCH", "uploads/", Answer(500), times=1)
    gone = on("GET", "uploads/", Answer(404), times=1)
    bench.push(no_mounts(lambda request: lost(request) or gone(request)))
    assert bench.tags == ["1"]


def test_an_upload_that_the_registry_refuses_to_go_on_with_starts_anew(bench: Bench) -> None:
    lost = on("PATCH", "uploads/", Answer(500), times=1)
    refused = on("PATCH", "uploads/", Answer(400), times=1)
    bench.push(no_mounts(lambda request: lost(request) or refused(request)))
    assert bench.tags == ["1"]
    assert len({r.path for r in bench.registry.asked if r.method == "PATCH"}) == 2


def test_a_chunk_that_is_refused_before_any_cut_is_an_error(bench: Bench) -> None:
    with pytest.raises(RegistryError, match="refuses a request"):
        bench.push(no_mounts(on("PATCH", "uploads/", Answer(400), times=1)))
    assert bench.tags == []


def test_an_offset_that_cannot_be_is_not_believed(bench: Bench) -> None:
    where = {"Location": f"/v2/{OURS}/blobs/uploads/u0", "Range": "0-99999999"}
    bench.push(no_mounts(on("PATCH", "uploads/", Answer(202, headers=where), times=1)))
    assert bench.tags == ["1"]


@pytest.mark.parametrize("header", ["http://example.org/u", "https://[::1", "ftp://127.0.0.1/u"])
def test_an_upload_to_an_unsafe_address_is_refused(header: str, bench: Bench) -> None:
    with pytest.raises(RegistryError):
        bench.push(on("POST", "uploads/", Answer(202, headers={"Location": header})))
    assert bench.tags == []


def test_an_upload_without_an_address_is_an_error(bench: Bench) -> None:
    with pytest.raises(RegistryError, match="where"):
        bench.push(on("POST", "uploads/", Answer(202)))


def test_a_redirect_loop_while_pushing_ends(bench: Bench) -> None:
    loop = Answer(307, headers={"Location": f"/v2/{OURS}/manifests/1"})
    with pytest.raises(RegistryError, match="circles"):
        bench.push(on("PUT", "manifests/1", loop))
    assert bench.tags == []


def test_a_registry_that_notes_another_digest_is_an_error(bench: Bench) -> None:
    wrong = {"Docker-Content-Digest": "sha256:" + "0" * 64}
    with pytest.raises(RegistryError, match="another manifest"):
        bench.push(on("PUT", "manifests/sha256", Answer(201, headers=wrong)))
    assert bench.tags == []


def test_a_registry_that_keeps_another_manifest_gets_no_tag(bench: Bench) -> None:
    with pytest.raises(ChecksumError):
        bench.push(on("GET", f"{OURS}/manifests/sha256", Answer(200, b"{}")))
    assert bench.tags == []


def test_a_tag_that_someone_moves_right_after_is_an_error(bench: Bench) -> None:
    other = Answer(200, b'{"schemaVersion":2,"config":{},"layers":[]}')
    with pytest.raises(RegistryError, match="right after"):
        bench.push(on("GET", "manifests/1", other))


BODIES: dict[str, tuple[Callable[[bytes], bytes], type[BuildError]]] = {
    "wrong": (lambda data: b"x" + data[1:], ChecksumError),
    "short": (lambda data: data[:-1], ChecksumError),
    "long": (lambda data: data + b"x", ChecksumError),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_base_blob_that_is_not_the_one_asked_for_gets_no_tag(kind: str, bench: Bench) -> None:
    change, error = BODIES[kind]
    layer = bench.image.base_layers[0].digest
    body = Answer(200, change(bench.registry.blobs[BASE, layer]))
    with pytest.raises(error):
        bench.push(no_mounts(on("GET", f"{BASE}/blobs/{layer}", body)))
    assert bench.tags == []


def test_a_body_that_is_cut_short_is_taken_up_again(bench: Bench) -> None:
    layer = bench.image.base_layers[0].digest
    data = bench.registry.blobs[BASE, layer]
    short = Answer(200, data[: len(data) // 2], length=len(data))
    bench.push(no_mounts(on("GET", f"{BASE}/blobs/{layer}", short, times=1)))
    assert bench.tags == ["1"]


def test_a_body_that_is_always_cut_short_is_given_up(bench: Bench) -> None:
    layer = bench.image.base_layers[0].digest
    data = bench.registry.blobs[BASE, layer]
    short = Answer(200, data[: len(data) // 2], length=len(data))
    with pytest.raises(RegistryError, match="does not answer"):
        bench.push(no_mounts(on("GET", f"{BASE}/blobs/{layer}", short)))
    assert bench.tags == []


def read(bench: Bench, fault: Callable[[Request], Answer | None], digest: str) -> None:
    bench.registry.fault = fault
    with (
        bench.registry.serve() as server,
        Registry(f"{server.host}/{BASE}", None, bench.patience, (0.5, 0.5)) as client,
    ):
        read_base(client, parse_sha256(digest), AMD64)


def test_a_slow_body_is_given_up_after_a_while(bench: Bench) -> None:
    slow = Answer(200, bench.base.get(bench.base.index), pause=1.0)
    with pytest.raises(RegistryError, match="does not answer"):
        read(bench, on("GET", "manifests/", slow), bench.base.index)


def test_a_truncated_manifest_is_a_checksum_error(bench: Bench) -> None:
    half = Answer(200, bench.base.get(bench.base.index)[:100])
    with pytest.raises(ChecksumError):
        read(bench, on("GET", "manifests/", half), bench.base.index)


def rewritten(bench: Bench, change: Callable[[dict[str, object]], None], digest: str) -> str:
    document = load(bench.base.get(digest))
    change(document)
    data = oci.canonical(document)
    found = f"sha256:{sha256_bytes(data)}"
    bench.registry.manifests[BASE, found] = (data, "")
    bench.registry.blobs[BASE, found] = data
    return found


def test_a_manifest_of_an_unknown_media_type_is_an_archive_error(bench: Bench) -> None:
    digest = rewritten(bench, lambda d: d.update(mediaType="text/x"), bench.base.index)
    with pytest.raises(ArchiveError, match="media type"):
        read(bench, lambda _: None, digest)


def test_an_index_without_the_platform_is_a_target_error_that_names_both(bench: Bench) -> None:
    def only_arm(document: dict[str, object]) -> None:
        entries = document["manifests"]
        assert isinstance(entries, list)
        document["manifests"] = [e for e in entries if e["platform"]["architecture"] == "arm64"]

    digest = rewritten(bench, only_arm, bench.base.index)
    with pytest.raises(TargetError) as raised:
        read(bench, lambda _: None, digest)
    assert AMD64 in str(raised.value.expected)
    assert ARM64 in str(raised.value.found)


def test_a_config_whose_diff_ids_do_not_fit_is_an_archive_error(bench: Bench) -> None:
    manifest = load(bench.base.get(bench.base.manifests[AMD64]))
    config = load(bench.base.get(manifest["config"]["digest"]))
    config["rootfs"]["diff_ids"].pop()
    data = oci.canonical(config)
    place = {"digest": f"sha256:{sha256_bytes(data)}", "size": len(data)}
    bench.registry.blobs[BASE, place["digest"]] = data  # type: ignore[index]
    digest = rewritten(bench, lambda d: d["config"].update(place), bench.base.manifests[AMD64])  # type: ignore[attr-defined]
    with pytest.raises(ArchiveError, match="does not fit"):
        read(bench, lambda _: None, digest)


def test_an_error_while_pushing_is_one_that_a_person_can_act_on(bench: Bench) -> None:
    with pytest.raises(BuildError) as raised:
        bench.push(on("PUT", "manifests/1", Answer(403)))
    error = raised.value
    assert error.file
    assert error.expected
    assert error.found
    assert error.next_command


def test_a_tag_that_moves_between_two_calls_is_asked_once(bench: Bench) -> None:
    bench.push()
    other = (bench.base.get(bench.base.manifests[ARM64]), oci.MANIFEST)

    def move(request: Request) -> Answer | None:
        if request.path.endswith("/manifests/1"):
            answer = Answer(200, bench.registry.manifests[OURS, "1"][0])
            bench.registry.manifests[OURS, "1"] = other
            return answer
        return None

    bench.registry.asked.clear()
    bench.registry.fault = move
    with bench.registry.serve() as server, Registry(f"{server.host}/{OURS}") as client:
        digest = resolve(client, parse_reference(f"{server.host}/{OURS}:1"))
        (entry,) = entries(client, RegistrySubject(client, digest).index())
    assert digest == bench.image.digest
    assert entry.data == bench.image.manifest
    assert len([r for r in bench.registry.asked if r.path.endswith("/manifests/1")]) == 1
