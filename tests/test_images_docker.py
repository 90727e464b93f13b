"""The whole way with real Docker and a real registry: build, push, pull, verify, tamper."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import tarfile
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild.digest import sha256_bytes
from imagebuild.images import oci
from imagebuild.images.ocilayout import LayoutSource
from tests.support import tiny as tinies
from tests.support.baseimage import BaseImage
from tests.support.command import Command
from tests.support.tiny import LINE, LOCAL_VERSION
from tests.test_docker import SITE, _registry, _run
from tests.test_verify import Forger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.tiny import Tiny

pytestmark = pytest.mark.docker
BOTH = ("--platform", "linux/amd64", "--platform", "linux/arm64")


@dataclass
class Shop:
    """A project whose base stands in a real registry, and a name to push to beside it."""

    tiny: Tiny
    command: Command
    base: BaseImage
    name: str

    def push(self, *more: str) -> dict[str, Any]:
        """Build and push; return what `--json` says of the push."""
        found = self.command.json("build", "--push", f"{self.name}:test", *more)
        assert "pushed" in found, found
        pushed: dict[str, Any] = found["pushed"]
        return pushed

    def verify(self, subject: str, *more: str) -> dict[str, str]:
        """Return each check's verdict by its name."""
        found = self.command.json("verify", subject, *more)
        assert "checks" in found, found
        verdicts = {check["name"]: check["verdict"] for check in found["checks"]}
        assert found["ok"] == ("bad" not in verdicts.values())
        return verdicts


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    base = BaseImage(tmp_path / "base", site=SITE)
    prefix = f"{_registry()}/shop-{uuid.uuid4().hex[:8]}"
    ref = f"{prefix}/vllm-openai:{LINE}"
    _run(
        *("skopeo", "copy", "--all", "--quiet", "--preserve-digests", "--dest-tls-verify=false"),
        *(f"oci:{base.root}", f"docker://{ref}"),
    )
    tiny = tinies.make(tmp_path / "project")
    pin = {"ref": ref, "digest": f"sha256:{base.index}"}
    tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(image=pin))
    tiny.relock()
    found = Shop(tiny, Command.on(tiny, tmp_path), base, f"{prefix}/ours")
    own = ("DOCKER_HOST", "DOCKER_CONFIG")
    found.command.extra = {name: os.environ[name] for name in own if name in os.environ}
    yield found
    subprocess.run(
        ["docker", "image", "rm", "--force", f"{found.name}:test"], capture_output=True, check=False
    )


def clean(verdicts: dict[str, str]) -> bool:
    return "bad" not in verdicts.values() and verdicts["our layer has its writer's form"] == "ok"


def test_an_image_is_pushed_pulled_and_verified_everywhere(shop: Shop, tmp_path: Path) -> None:
    pushed = shop.push()
    ref = f"{shop.name}@{pushed['digest']}"
    assert pushed["mounted"] == 2
    assert pushed["uploaded"] < 100_000

    verdicts = shop.verify(ref)
    assert clean(verdicts)
    assert verdicts["the image is the official one with this layer"] == "ok"
    assert verdicts["the base's layers are what they are called"] == "ok"
    assert clean(shop.verify(f"{shop.name}:test"))

    by_skopeo = tmp_path / "skopeo"
    _run(
        "skopeo", "copy", "--quiet", "--src-tls-verify=false", f"docker://{ref}", f"oci:{by_skopeo}"
    )
    assert LayoutSource(by_skopeo).index().manifests[0].digest == pushed["digest"]
    assert clean(shop.verify(str(by_skopeo)))

    _run("docker", "pull", "--quiet", ref)
    shown = json.loads(_run("docker", "image", "inspect", ref))[0]
    assert any(entry.endswith(pushed["digest"]) for entry in shown["RepoDigests"])
    labels = shown["Config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == LOCAL_VERSION
    assert clean(shop.verify(f"docker-daemon:{ref}"))

    saved = tmp_path / "saved.tar"
    _run("docker", "image", "save", "--output", saved, ref)
    assert clean(shop.verify(str(saved)))


def test_an_archive_is_read_by_docker_and_skopeo_and_verified(shop: Shop, tmp_path: Path) -> None:
    shop.command.ok("--target", "image", "--export", "archive")
    archive = shop.tiny.project.dist / f"image-{LINE}-amd64.tar"
    verdicts = shop.verify(str(archive))
    assert clean(verdicts)
    assert verdicts["the base's layers are there"] == "ok"

    older = tmp_path / "older.tar"
    _run("skopeo", "copy", "--quiet", f"oci-archive:{archive}", f"docker-archive:{older}")
    verdicts = shop.verify(str(older))
    assert clean(verdicts)
    assert verdicts["the image's id is that of the official one with this layer"] == "ok"

    _run("skopeo", "copy", "--quiet", f"docker-archive:{archive}", f"oci:{tmp_path / 'oci'}")
    said = _run("docker", "load", "--input", archive)
    name = said.rpartition("Loaded image: ")[2].strip()
    assert name == f"vllm-sm120:{LOCAL_VERSION.replace('+', '-')}"
    assert clean(shop.verify(f"docker-daemon:{name}"))
    _run("docker", "image", "rm", "--force", name)


def test_two_platforms_are_pushed_behind_one_index_and_verified(shop: Shop) -> None:
    pushed = shop.push(*BOTH)
    assert set(pushed["platforms"]) == {"linux/amd64", "linux/arm64"}
    assert pushed["digest"] not in pushed["platforms"].values()
    verdicts = shop.verify(f"{shop.name}@{pushed['digest']}")
    assert verdicts["the index is over these images"] == "ok"
    for platform in ("linux/amd64", "linux/arm64"):
        assert verdicts[f"{platform}: the image is the official one with this layer"] == "ok"
    assert "bad" not in verdicts.values()
    shown = json.loads(
        _run("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{shop.name}:test")
    )
    assert shown["annotations"]["org.opencontainers.image.version"] == LOCAL_VERSION
    assert "org.opencontainers.image.base.digest" not in shown["annotations"]
    again = shop.push("--platform", "linux/arm64", "--platform", "linux/amd64")
    assert again["digest"] == pushed["digest"]
    assert again["uploaded"] == 0
    _run("docker", "pull", "--quiet", f"{shop.name}@{pushed['digest']}")
    assert "bad" not in shop.verify(f"docker-daemon:{shop.name}@{pushed['digest']}").values()


def test_pull_writes_what_was_verified(shop: Shop, tmp_path: Path) -> None:
    pushed = shop.push()
    out = tmp_path / "pulled"
    text = shop.command.ok("pull", f"{shop.name}:test", "--to", str(out))
    assert pushed["digest"] in text
    assert LayoutSource(out).index().manifests[0].digest == pushed["digest"]
    verdicts = shop.verify(str(out))
    assert clean(verdicts)
    assert verdicts["layers of the base that are missing"] == "ok"
    assert pushed["digest"] in shop.command.ok("pull", f"{shop.name}:test", "--load")


def flip_a_byte(forger: Forger) -> None:
    """Change one byte of one file of the layer, and mend every digest behind it."""
    layer = gzip.decompress(forger._get(forger.manifest["layers"][-1]["digest"]))
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        entry = next(e for e in archive if e.name.endswith("vllm/v1/worker.py"))
        place = entry.offset_data + entry.size // 2
    changed = bytearray(layer)
    changed[place] ^= 1
    forger.put_layer(gzip.compress(bytes(changed), mtime=0))


def change_a_label(forger: Forger) -> None:
    labels = forger.config["config"]["Labels"]
    labels["io.github.vllm-sm120.upstream.version"] = "1.2.4"


TAMPERED: dict[str, tuple[Callable[[Forger], None], str]] = {
    "one-byte": (flip_a_byte, "files of the patch set: vllm/v1/worker.py"),
    "one-label": (change_a_label, "labels are the facts: io.github.vllm-sm120.upstream.version"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_image_in_the_registry_is_red_everywhere(
    how: str, shop: Shop, tmp_path: Path
) -> None:
    change, name = TAMPERED[how]
    shop.command.ok("--target", "image", "--export")
    layout = shop.tiny.project.dist / f"image-{LINE}-linux-amd64"
    assert clean(shop.verify(str(layout)))
    forger = Forger(layout)
    change(forger)
    forger.finish()
    digest = sha256_bytes(oci.canonical(forger.manifest))
    _run(
        *("skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false"),
        *(f"oci:{layout}", f"docker://{shop.name}:test"),
    )
    ref = f"{shop.name}@sha256:{digest}"
    _run("docker", "pull", "--quiet", ref)
    saved = tmp_path / "saved.tar"
    _run("docker", "image", "save", "--output", saved, ref)
    for subject in (ref, str(layout), str(saved), f"docker-daemon:{ref}"):
        assert shop.verify(subject)[name] == "bad", subject
        assert shop.command.run("verify", subject).returncode == 31
    out = tmp_path / "pulled"
    assert shop.command.run("pull", ref, "--to", str(out)).returncode == 31
    assert not out.exists()


def test_what_is_said_of_an_image_is_attached_signed_and_checked(
    shop: Shop, tmp_path: Path
) -> None:
    shop.command.extra["COSIGN_PASSWORD"] = tmp_path.name
    for name in ("ours", "other"):
        subprocess.run(
            ["cosign", "generate-key-pair", f"--output-key-prefix={name}"],
            cwd=tmp_path,
            env=shop.command.environment,
            capture_output=True,
            check=True,
        )
    pushed = shop.push(*BOTH, "--sign", str(tmp_path / "ours.key"))
    assert len(pushed["attached"]) == 6
    assert pushed["signed"]
    for digest in (pushed["digest"], *pushed["platforms"].values()):
        ref = f"{shop.name}@{digest}"
        verdicts = shop.verify(ref, "--key", str(tmp_path / "ours.pub"))
        assert verdicts["signature"] == "ok"
        assert "bad" not in verdicts.values()
        assert shop.verify(ref, "--key", str(tmp_path / "other.pub"))["signature"] == "bad"
        assert shop.verify(ref)["signature"] == "not checked"
    ref = f"{shop.name}@{pushed['platforms']['linux/arm64']}"
    verdicts = shop.verify(ref)
    for name in ("provenance", "SPDX", "CycloneDX"):
        assert verdicts[f"{name} of the image"] == "ok"
    listed = json.loads(_run("oras", "discover", "--plain-http", "--format=json", ref))
    kinds = sorted(entry["artifactType"] for entry in listed["referrers"])
    assert {*kinds} >= {
        "application/spdx+json",
        "application/vnd.cyclonedx+json",
        "application/vnd.in-toto+json",
    }
    assert len(kinds) == 4, "the fourth is the signature"
    out = tmp_path / "pulled"
    wrong = ("--key", str(tmp_path / "other.pub"))
    assert shop.command.run("pull", ref, "--to", str(out), *wrong).returncode == 31
    assert not out.exists()


def test_a_forged_provenance_is_red(shop: Shop, tmp_path: Path) -> None:
    pushed = shop.push()
    made = shop.tiny.project.dist / f"image-{LINE}-linux-amd64.provenance.json"
    forged = tmp_path / "forged.json"
    forged.write_bytes(made.read_bytes().replace(b'"patches/v1.2.3/', b'"patches/v1.2.4/'))
    assert forged.read_bytes() != made.read_bytes()
    ref = f"{shop.name}@{pushed['digest']}"
    _run(
        *("oras", "attach", "--plain-http", "--disable-path-validation"),
        *("--artifact-type=application/vnd.in-toto+json", ref),
        f"{forged}:application/vnd.in-toto+json",
    )
    assert shop.verify(ref)["provenance of the image"] == "bad"


def test_no_secret_is_in_what_is_published(shop: Shop) -> None:
    secret = uuid.uuid4().hex
    shop.command.extra["SOME_TOKEN"] = secret
    done = shop.command.run("build", "--push", f"{shop.name}:test")
    assert done.returncode == 0, done.stderr
    home = str(shop.command.home).encode()
    for path in shop.tiny.project.dist.rglob("*"):
        data = path.read_bytes() if path.is_file() and path.name != ".build-state.json" else b""
        assert secret.encode() not in data
        assert home not in data, path
    assert secret not in done.stdout + done.stderr


def test_the_same_digest_comes_from_two_folders(shop: Shop, tmp_path: Path) -> None:
    one = shop.push()
    other = shop.command.json("build", "--push", f"{shop.name}:two", "--dist", str(tmp_path / "d"))
    assert other["pushed"]["digest"] == one["digest"]
    assert other["pushed"]["uploaded"] == 0


def test_what_does_not_exist_is_an_error_with_its_own_code(shop: Shop) -> None:
    shop.push()
    assert shop.command.run("verify", f"{shop.name}@sha256:{'0' * 64}").returncode == 32
    assert shop.command.run("verify", f"{shop.name}:nothing").returncode == 32
    assert shop.command.run("verify", "docker-daemon:no/such:image").returncode == 13
    assert shop.command.run("verify", "no-such-file").returncode == 13
    assert shop.command.run("build", "--push", "NOT A REF").returncode == 2
    assert shop.command.run("build", "--push", f"a/b@sha256:{'0' * 64}").returncode == 2
