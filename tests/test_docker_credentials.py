"""Credentials as Docker keeps them: in its file, in a helper, as an identity token."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from imagebuild.errors import RegistryError
from imagebuild.images.docker_credentials import Credentials, docker_config
from imagebuild.images.registry import Registry
from tests.support.scripted_registry import Answer, Request, ScriptedRegistry
from tests.test_registry import DIGEST, MANIFEST, NAME

if TYPE_CHECKING:
    from pathlib import Path

HELPER = f"""#!{sys.executable}
import json, pathlib, sys
asked = sys.stdin.read()
pathlib.Path(__file__).with_name("asked").write_text(sys.argv[1] + " " + asked)
answers = json.loads(pathlib.Path(__file__).with_name("answers.json").read_text())
if asked not in answers:
    sys.exit("credentials not found in native keychain")
print(json.dumps(answers[asked]))
"""


class Docker:
    """A user's Docker configuration and one credential helper on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        helper = folder / "docker-credential-test"
        helper.write_text(HELPER)
        helper.chmod(0o755)
        monkeypatch.setenv("DOCKER_CONFIG", str(folder))
        monkeypatch.setenv("PATH", str(folder), prepend=":")

    def config(self, **document: object) -> None:
        (self.folder / "config.json").write_text(json.dumps(document))

    def helper(self, **answers: dict[str, str]) -> None:
        (self.folder / "answers.json").write_text(
            json.dumps({key.replace("_", "."): value for key, value in answers.items()})
        )


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    return Docker(tmp_path, monkeypatch)


def test_a_helper_for_one_registry_is_asked_for_that_one(docker: Docker) -> None:
    docker.config(credHelpers={"ghcr.io": "test"})
    docker.helper(ghcr_io={"Username": "user", "Secret": "pass"})
    assert docker_config("ghcr.io") == Credentials("user", "pass")
    assert (docker.folder / "asked").read_text() == "get ghcr.io"
    assert docker_config("quay.io") is None


def test_the_store_for_all_is_asked_and_the_file_is_the_fallback(docker: Docker) -> None:
    stored = {"auth": base64.b64encode(b"file:word").decode()}
    docker.config(credsStore="test", auths={"quay.io": stored, "ghcr.io": {}})
    docker.helper(ghcr_io={"Username": "user", "Secret": "pass"})
    assert docker_config("ghcr.io") == Credentials("user", "pass")
    assert docker_config("quay.io") == Credentials("file", "word")


@pytest.mark.parametrize("name", ["../evil", "no/such", "missing", "", 1])
def test_a_helper_that_cannot_be_gives_nothing(name: object, docker: Docker) -> None:
    docker.config(credsStore=name)
    assert docker_config("ghcr.io") is None


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"Username": "a"}', "no json"])
def test_a_helper_that_answers_nonsense_gives_nothing(answer: str, docker: Docker) -> None:
    docker.config(credsStore="test")
    (docker.folder / "docker-credential-test").write_text(f"#!/bin/sh\necho '{answer}'\n")
    assert docker_config("ghcr.io") is None


def test_an_identity_token_is_exchanged_for_an_access_token(docker: Docker) -> None:
    asked: list[Request] = []
    realm: list[str] = []

    def script(request: Request) -> Answer:
        asked.append(request)
        if request.path.startswith("/token"):
            return Answer(200, b'{"access_token": "t0ken"}')
        if request.authorization == "Bearer t0ken":
            return Answer(200, MANIFEST)
        return Answer(401, headers={"WWW-Authenticate": f'Bearer realm="{realm[0]}",service="reg"'})

    with ScriptedRegistry(script) as server:
        realm.append(f"http://{server.host}/token")
        docker.config(auths={server.host: {"identitytoken": "id-t0ken"}})
        assert docker_config(server.host) == Credentials("", "", "id-t0ken")
        with Registry(f"{server.host}/{NAME}") as client:
            assert client.manifest(DIGEST) == MANIFEST
    assert asked[1].method == "POST"
    form = parse_qs(asked[1].body.decode())
    assert form["grant_type"] == ["refresh_token"]
    assert form["refresh_token"] == ["id-t0ken"]
    assert form["scope"] == [f"repository:{NAME}:pull"]
    assert "id-t0ken" not in asked[1].path


def test_an_identity_token_is_no_password(docker: Docker) -> None:
    def script(_: Request) -> Answer:
        return Answer(401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    with ScriptedRegistry(script) as server:
        docker.config(auths={server.host: {"identitytoken": "id-t0ken"}})
        with (
            Registry(f"{server.host}/{NAME}") as client,
            pytest.raises(RegistryError, match="without credentials"),
        ):
            client.manifest(DIGEST)
