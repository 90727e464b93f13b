"""Reading from a registry: a real one on loopback, and one that misbehaves in every known way."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import ArchiveError, ChecksumError, RegistryError, TargetError
from imagebuild.fetch.transport import Patience
from imagebuild.images import oci
from imagebuild.images.docker_credentials import Credentials, docker_config
from imagebuild.images.ocibase import read_base
from imagebuild.images.registry import Registry
from tests.support.artifacts import AMD64, ARM64
from tests.support.baseimage import BaseImage, load
from tests.support.real_registry import RealRegistry
from tests.support.scripted_registry import Answer, Request, ScriptedRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME = "vllm/vllm-openai"
MANIFEST = b'{"schemaVersion":2,"config":{},"layers":[]}'
DIGEST = sha256_bytes(MANIFEST)


@pytest.fixture(autouse=True)
def _nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's own Docker configuration and proxies out."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


QUICK = Patience(attempts=3, sleep=lambda _: None)


def ask(
    script: Callable[[Request], Answer],
    credentials: Credentials | None = None,
    timeout: tuple[float, float] = (10, 60),
) -> bytes:
    """Return the manifest `DIGEST` from a registry with that script."""
    with (
        ScriptedRegistry(script) as server,
        Registry(f"{server.host}/{NAME}", credentials, QUICK, timeout) as client,
    ):
        return client.manifest(DIGEST)


def base_script(base: BaseImage) -> Callable[[Request], Answer]:
    """Serve a layout's blobs as manifests and as blobs."""

    def script(request: Request) -> Answer:
        path = base.root / "blobs" / "sha256" / request.path.rpartition(":")[2]
        return Answer(200, path.read_bytes()) if path.is_file() else Answer(404)

    return script


@pytest.mark.parametrize("docker", [False, True])
def test_the_base_is_read_through_its_index(docker: bool, tmp_path: Path) -> None:  # noqa: FBT001
    base = BaseImage(tmp_path / "base", docker=docker)
    with ScriptedRegistry(base_script(base)) as server:
        with Registry(f"{server.host}/{NAME}") as client:
            found = read_base(client, base.index, ARM64)
        assert found.digest == base.manifests[ARM64]
        assert len(found.config.rootfs.diff_ids) == 2
        manifests = [r for r in server.requests if "/manifests/" in r.path]
        assert all(r.accept and oci.INDEX in r.accept for r in manifests)
        assert all(r.authorization is None for r in server.requests)
        assert not [r for r in server.requests if "/blobs/" in r.path][1:], "layers are not read"


def test_an_index_without_the_platform_is_a_target_error(tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base")
    document = load(base.get(base.index))
    document["manifests"] = document["manifests"][:1]
    digest = base.put(oci.canonical(document))
    with (
        ScriptedRegistry(base_script(base)) as server,
        Registry(f"{server.host}/{NAME}") as client,
        pytest.raises(TargetError, match=ARM64),
    ):
        read_base(client, digest, ARM64)


def test_a_tag_resolves_to_the_index_and_its_platforms(tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base")

    def script(request: Request) -> Answer:
        assert request.path == f"/v2/{NAME}/manifests/v1.2.3"
        return Answer(200, base.get(base.index))

    with ScriptedRegistry(script) as server, Registry(f"{server.host}/{NAME}") as client:
        found = client.resolve("v1.2.3")
    assert found.digest == base.index
    assert found.platforms == base.manifests


def bearer(realm: str, *, token: dict[str, str] | None = None) -> Callable[[Request], Answer]:
    """Ask for a token as Docker's registries do; `realm` is relative to the server."""

    def script(request: Request) -> Answer:
        if request.path.startswith("/token"):
            return Answer(200, json.dumps(token or {"token": "t0ken"}).encode())
        if request.authorization == "Bearer t0ken":
            return Answer(200, MANIFEST)
        value = f'Bearer realm="{realm}",service="reg",scope="repository:{NAME}:pull"'
        return Answer(401, headers={"WWW-Authenticate": value})

    return script


def token_dance(
    credentials: Credentials | None = None, token: dict[str, str] | None = None
) -> list[Request]:
    """Go through a token server on the same address and return what was asked."""
    realm: list[str] = []

    def script(request: Request) -> Answer:
        return bearer(realm[0], token=token)(request)

    with ScriptedRegistry(script) as server:
        realm.append(f"http://{server.host}/token")
        with Registry(f"{server.host}/{NAME}", credentials) as client:
            assert client.manifest(DIGEST) == MANIFEST
            assert client.manifest(DIGEST) == MANIFEST
        return server.requests


def test_a_token_is_fetched_once_and_used_again() -> None:
    requests = token_dance()
    assert [r.path.split("?")[0] for r in requests] == [
        f"/v2/{NAME}/manifests/sha256:{DIGEST}",
        "/token",
        f"/v2/{NAME}/manifests/sha256:{DIGEST}",
        f"/v2/{NAME}/manifests/sha256:{DIGEST}",
    ]
    assert "service=reg" in requests[1].path
    assert "scope=repository" in requests[1].path
    assert requests[1].authorization is None


def test_credentials_go_to_the_token_server() -> None:
    requests = token_dance(Credentials("user", "pass"))
    assert requests[1].authorization == "Basic " + base64.b64encode(b"user:pass").decode()
    assert requests[0].authorization is None


def test_an_access_token_is_a_token_too() -> None:
    assert len(token_dance(token={"access_token": "t0ken"})) == 4


def test_basic_authentication_is_met() -> None:
    def script(request: Request) -> Answer:
        if request.authorization == "Basic " + base64.b64encode(b"user:pass").decode():
            return Answer(200, MANIFEST)
        return Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    assert ask(script, Credentials("user", "pass")) == MANIFEST
    with pytest.raises(RegistryError, match="refuses"):
        ask(script, Credentials("user", "wrong"))


CHALLENGES = {
    "basic": 'Basic realm="x"',
    "none": "",
    "unknown": "Negotiate",
    "plain_http": 'Bearer realm="http://example.org/token"',
    "no_realm": "Bearer",
    "file": 'Bearer realm="file:///etc/passwd"',
}


@pytest.mark.parametrize("challenge", CHALLENGES)
def test_a_challenge_that_nobody_can_meet_is_refused(challenge: str) -> None:
    with pytest.raises(RegistryError):
        ask(lambda _: Answer(401, headers={"WWW-Authenticate": CHALLENGES[challenge]}))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "a\\nb"}'])
def test_an_answer_without_a_token_is_refused(body: bytes) -> None:
    realm: list[str] = []

    def script(request: Request) -> Answer:
        if request.path.startswith("/token"):
            return Answer(200, body)
        return bearer(realm[0])(request)

    with ScriptedRegistry(script) as server:
        realm.append(f"http://{server.host}/token")
        with (
            Registry(f"{server.host}/{NAME}") as client,
            pytest.raises(RegistryError, match="lets nobody in"),
        ):
            client.manifest(DIGEST)


@pytest.mark.parametrize("status", [400, 403, 404, 429, 500, 503])
def test_a_refusal_is_a_registry_error_that_says_so(status: int) -> None:
    with pytest.raises(RegistryError) as raised:
        ask(lambda _: Answer(status, b"{}"))
    assert raised.value.found is not None
    assert raised.value.found.startswith(str(status))
    assert raised.value.expected == "200 OK"
    assert raised.value.next_command


def test_a_wrong_manifest_is_a_checksum_error() -> None:
    with pytest.raises(ChecksumError) as raised:
        ask(lambda _: Answer(200, MANIFEST + b" "))
    assert raised.value.expected == f"sha256:{DIGEST}"


def test_a_digest_in_the_answers_header_is_not_believed() -> None:
    header = {"Docker-Content-Digest": f"sha256:{DIGEST}"}
    with pytest.raises(ChecksumError):
        ask(lambda _: Answer(200, b"{}", header))


def test_a_truncated_manifest_is_no_manifest() -> None:
    with pytest.raises(ChecksumError):
        ask(lambda _: Answer(200, MANIFEST[:-1]))
    with pytest.raises(RegistryError, match="does not answer"):
        ask(lambda _: Answer(200, MANIFEST[:-1], length=len(MANIFEST)))


def test_a_manifest_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ArchiveError, match="too large"):
        ask(lambda _: Answer(200, bytes(oci.MAX_DOCUMENT + 1)))


def test_an_unknown_media_type_is_refused() -> None:
    data = b'{"mediaType":"application/vnd.docker.distribution.manifest.v1+json"}'
    with (
        ScriptedRegistry(lambda _: Answer(200, data)) as server,
        Registry(f"{server.host}/{NAME}") as client,
        pytest.raises(ArchiveError, match="unknown media type"),
    ):
        read_base(client, sha256_bytes(data), AMD64)


def test_redirects_are_followed_without_our_credentials() -> None:
    with ScriptedRegistry(lambda _: Answer(200, MANIFEST)) as storage:

        def script(request: Request) -> Answer:
            if request.authorization is None:
                return Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})
            return Answer(307, headers={"Location": f"http://{storage.host}/blob"})

        assert ask(script, Credentials("user", "pass")) == MANIFEST
        assert [request.authorization for request in storage.requests] == [None]


def test_a_redirect_in_circles_ends() -> None:
    def script(request: Request) -> Answer:
        return Answer(302, headers={"Location": request.path + "x"})

    with pytest.raises(RegistryError, match="circles"):
        ask(script)


@pytest.mark.parametrize("url", ["http://example.org/blob", "ftp://example.org/", "file:///x"])
def test_a_redirect_to_an_unsafe_address_is_refused(url: str) -> None:
    with pytest.raises(RegistryError, match="unsafe"):
        ask(lambda _: Answer(302, headers={"Location": url}))


def test_a_redirect_that_is_no_address_is_refused() -> None:
    with pytest.raises(RegistryError):
        ask(lambda _: Answer(302, headers={"Location": "https://[::1"}))


def test_nobody_at_the_address_is_a_registry_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        Registry(f"127.0.0.1:{port}/{NAME}", patience=QUICK) as client,
        pytest.raises(RegistryError, match="does not answer"),
    ):
        client.manifest(DIGEST)


def test_a_registry_that_says_nothing_is_given_up() -> None:
    def script(_: Request) -> Answer:
        time.sleep(0.6)
        return Answer(200, MANIFEST)

    with pytest.raises(RegistryError, match="does not answer"):
        ask(script, timeout=(0.2, 0.2))


def blob(data: bytes, digest: Sha256, size: int) -> bytes:
    with (
        ScriptedRegistry(lambda _: Answer(200, data)) as server,
        Registry(f"{server.host}/{NAME}") as client,
    ):
        return b"".join(client.blob(digest, size))


def test_a_blob_is_checked_as_it_comes() -> None:
    data = bytes(range(256)) * 10_000
    digest = sha256_bytes(data)
    assert blob(data, digest, len(data)) == data
    with pytest.raises(ChecksumError):
        blob(data[:-1], digest, len(data))
    with pytest.raises(ChecksumError):
        blob(data + b"x", digest, len(data))
    with pytest.raises(ChecksumError):
        blob(b"x" + data[1:], digest, len(data))


def test_credentials_come_from_dockers_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    auth = {"auth": base64.b64encode(b"user:pa:ss").decode()}
    hub = "https://index.docker.io/v1/"
    (folder / "config.json").write_text(json.dumps({"auths": {"reg:5000": auth, hub: auth}}))
    assert docker_config("reg:5000") == Credentials("user", "pa:ss")
    assert docker_config("docker.io") == Credentials("user", "pa:ss")
    assert docker_config("elsewhere") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"auths": {"reg": {}}}', '{"auths": {"reg": 1}}']
)
def test_a_configuration_without_credentials_gives_none(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    assert docker_config("reg") is None


def test_credentials_do_not_print() -> None:
    assert "secret" not in repr(Credentials("user", "secret"))


@pytest.fixture
def real(tmp_path: Path) -> Iterator[str]:
    """The distribution project's own registry, on a free port of loopback."""
    with RealRegistry(tmp_path / "registry") as registry:
        yield registry.host


def push(base: BaseImage, host: str) -> str:
    repository = f"{host}/{NAME}"
    source = f"oci:{base.root}"
    target = f"docker://{repository}:v1.2.3"
    command = ["skopeo", "copy", "--all", "--insecure-policy", "--dest-tls-verify=false"]
    done = subprocess.run(
        [*command, "--preserve-digests", source, target],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return repository


@pytest.mark.containers
def test_a_real_registry_gives_the_base(real: str, tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base")
    with Registry(push(base, real)) as client:
        resolved = client.resolve("v1.2.3")
        assert (resolved.digest, resolved.platforms) == (base.index, base.manifests)
        found = read_base(client, resolved.digest, AMD64)
        layer = found.manifest.layers[1]
        assert b"".join(client.blob(layer.sha256, layer.size)) == base.get(layer.digest)
    assert found.digest == base.manifests[AMD64]


@pytest.mark.containers
def test_a_real_registry_refuses_what_it_does_not_have(real: str) -> None:
    with Registry(f"{real}/{NAME}") as client, pytest.raises(RegistryError) as raised:
        client.manifest(DIGEST)
    assert raised.value.found == "404 Not Found"
