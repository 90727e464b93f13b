"""Provenance and SBOM: valid, the same for the same inputs, attached to any registry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.json import json_parser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from imagebuild.attesting.basepackages import Package, packages
from imagebuild.attesting.provenance import Inputs, statement
from imagebuild.attesting.sbom import Contents, cyclonedx, spdx
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import ArchiveError
from imagebuild.images import oci
from imagebuild.images.ocilayout import LayoutSource
from imagebuild.images.publish import Publisher
from imagebuild.images.reference import parse_reference
from imagebuild.images.referrers import Attachment, attach, fallback_tag, listed, read, subject_of
from imagebuild.images.registry import Registry
from imagebuild.progress import Silent
from imagebuild.release import NamedFile
from tests.support import tiny as tinies
from tests.support.artifacts import AMD64, EPOCH
from tests.support.baseimage import BaseImage, tar
from tests.support.command import Command
from tests.support.memory_registry import MemoryRegistry
from tests.support.tiny import LINE, LOCAL_VERSION

if TYPE_CHECKING:
    from pathlib import Path

CONTENTS = Contents(
    name="vllm-sm120-1.2.3-sm120.1",
    digest=Sha256("0" * 64),
    version=LOCAL_VERSION,
    files={"usr/lib/vllm/a.py": b"a = 1\n", "usr/lib/vllm/b.py": b""},
    epoch=EPOCH,
    base="pkg:oci/vllm-openai@sha256%3A" + "1" * 64 + "?repository_url=docker.io/vllm/vllm-openai",
    packages=(Package("NumPy", "2.1.0"), Package("torch", "2.14.0")),
)


def inputs(tiny: tinies.Tiny) -> Inputs:
    return Inputs.of(
        tiny.project,
        tiny.series,
        tiny.pins,
        tiny.line,
        AMD64,
        epoch=EPOCH,
        revision="5" * 40,
        base="sha256:" + "1" * 64,
    )


def test_a_statement_names_every_input(tmp_path: Path) -> None:
    tiny = tinies.make(tmp_path / "project")
    data = statement(inputs(tiny), NamedFile("x.whl", "2" * 64), (NamedFile("layer", "3" * 64),))
    found = json.loads(data)
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert found["subject"] == [{"name": "x.whl", "digest": {"sha256": "2" * 64}}]
    definition = found["predicate"]["buildDefinition"]
    assert definition["buildType"].startswith("https://")
    assert definition["externalParameters"]["line"] == LINE
    digests = {
        dependency["name"]: next(iter(dependency.get("digest", {"": ""}).values()))
        for dependency in definition["resolvedDependencies"]
    }
    assert digests[tinies.SDIST_NAME] == tiny.line.sdist.sha256
    assert digests[tinies.WHEEL_NAMES[AMD64]] == tiny.line.wheels[AMD64].sha256
    assert digests["vllm-sm120"] == "5" * 40
    assert "1" * 64 in digests.values()
    assert {"vllm", "torch", "flashinfer-python"} <= digests.keys()
    for patch in tiny.series.patches:
        assert digests[f"patches/{LINE}/{patch.name}.patch"] == patch.text.sha256
    for path, digest in tiny.pins.overlay.items():
        assert digests[f"overlay/{LINE}/{path}"] == digest
    for lock in (tiny.project.upstream_lock, tiny.project.checksums_lock):
        assert digests[lock.name] == sha256_bytes(lock.read_bytes())
    assert found["predicate"]["runDetails"]["builder"]["id"].startswith("https://")
    assert data == statement(
        inputs(tiny), NamedFile("x.whl", "2" * 64), (NamedFile("layer", "3" * 64),)
    )


def test_cyclonedx_is_valid_by_its_own_schema_and_the_same_again() -> None:
    data = cyclonedx(CONTENTS)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None
    found = json.loads(data)
    assert found["specVersion"] == "1.6"
    assert {c["name"] for c in found["components"]} == {"vllm", "vllm-openai", "NumPy", "torch"}
    assert data == cyclonedx(CONTENTS)


def test_spdx_is_valid_and_the_same_again(tmp_path: Path) -> None:
    data = spdx(CONTENTS)
    path = tmp_path / "sbom.spdx.json"
    path.write_bytes(data)
    document = json_parser.parse_from_file(str(path))
    assert validate_full_spdx_document(document) == []
    assert {f.name for f in document.files} == {f"./{name}" for name in CONTENTS.files}
    assert json.loads(data)["spdxVersion"] == "SPDX-2.3"
    assert data == spdx(CONTENTS)


def test_the_bases_packages_are_read_from_its_layers(tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base")
    manifest = oci.parse_manifest(base.get(base.manifests[AMD64]), "base")
    assert isinstance(manifest, oci.Manifest)
    found = packages(LayoutSource(base.root), manifest.layers, Silent())
    assert found == (Package("vllm", "1.2.3"),)


def layer(base: BaseImage, contents: dict[str, bytes]) -> oci.Descriptor:
    data = tar(contents)
    digest = base.put(data)
    return oci.Descriptor(media_type=oci.LAYER, digest=f"sha256:{digest}", size=len(data))


def test_a_package_that_a_later_layer_takes_away_is_not_there(tmp_path: Path) -> None:
    base = BaseImage(tmp_path / "base")
    one = layer(
        base,
        {
            "site/a-1.dist-info/METADATA": b"Name: a\nVersion: 1\n\nName: not this\n",
            "site/b-1.dist-info/METADATA": b"Name: b\nVersion: 1\n",
            "other/c-1.dist-info/METADATA": b"Name: c\nVersion: 1\n",
            "site/d-1.dist-info/METADATA": b"no fields",
        },
    )
    two = layer(
        base,
        {
            "site/.wh.a-1.dist-info": b"",
            "site/a-2.dist-info/METADATA": b"Name: a\nVersion: 2\n",
            "other/.wh..wh..opq": b"",
        },
    )
    found = packages(LayoutSource(base.root), (one, two), Silent())
    assert found == (Package("a", "2"), Package("b", "1"))


def test_an_image_on_a_base_at_hand_lists_its_packages_but_not_the_vllm_it_replaces(
    tmp_path: Path,
) -> None:
    base = BaseImage(
        tmp_path / "base",
        first=tar({"usr/lib/python3/torch-2.14.0.dist-info/METADATA": TORCH}),
    )
    tiny = tinies.make(tmp_path / "project")
    pin = {"ref": f"registry.example.org/vllm:{LINE}", "digest": f"sha256:{base.index}"}
    tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(image=pin))
    tiny.relock()
    Command.on(tiny, tmp_path).ok("--target", "image", "--base", str(base.root))
    stem = f"image-{LINE}-linux-amd64"
    found = json.loads((tiny.project.dist / f"{stem}.cyclonedx.json").read_bytes())
    names = {(c["name"], c.get("version")) for c in found["components"]}
    assert names == {("vllm", None), ("vllm", LOCAL_VERSION), ("torch", "2.14.0")}
    path = tiny.project.dist / f"{stem}.spdx.json"
    document = json_parser.parse_from_file(str(path))
    assert validate_full_spdx_document(document) == []
    assert "torch" in {package.name for package in document.packages}
    ours = {file.name for file in document.files}
    assert any(name.endswith("/vllm/v1/worker.py") for name in ours)
    assert not any("/.wh." in name for name in ours)


TORCH = b"Metadata-Version: 2.4\nName: torch\nVersion: 2.14.0\n"
IMAGE = b'{"schemaVersion":2,"config":{},"layers":[]}'


@pytest.mark.parametrize("referrers", [True, False], ids=["referrers API", "tag"])
def test_attachments_are_listed_by_registries_old_and_new(
    referrers: bool,  # noqa: FBT001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    registry = MemoryRegistry(referrers=referrers)
    subject = subject_of(IMAGE, oci.MANIFEST)
    both = [Attachment(f"application/x{n}", b"data%d" % n, {"n": str(n)}) for n in range(2)]
    with registry.serve() as server:
        target = parse_reference(f"{server.host}/ours:1")
        source = LayoutSource(tmp_path)
        with Publisher(target, source, "docker.io/x/y", Silent()) as publisher:
            publisher.document(IMAGE, oci.MANIFEST)
            for attachment in (*both, both[0]):
                attach(publisher, subject, attachment)
        with Registry(f"{server.host}/ours") as client:
            entries = listed(client, subject.sha256)
            assert [e.artifact_type for e in entries] == ["application/x0", "application/x1"]
            assert [read(client, e, subject.sha256)[1] for e in entries] == [b"data0", b"data1"]
            with pytest.raises(ArchiveError, match="another image"):
                read(client, entries[0], Sha256("0" * 64))
    assert (fallback_tag(subject.sha256) in registry.tags("ours")) != referrers


def test_a_build_leaves_the_same_documents_in_two_folders(tmp_path: Path) -> None:
    tiny = tinies.make(tmp_path / "project")
    command = Command.on(tiny, tmp_path)
    command.ok("--target", "wheel")
    command.ok("--target", "wheel", "--dist", str(tmp_path / "other"))
    names = sorted(p.name for p in tiny.project.dist.glob("*.json") if not p.name.startswith("."))
    assert len(names) == 4
    for name in names:
        one, other = (d / name for d in (tiny.project.dist, tmp_path / "other"))
        assert one.read_bytes() == other.read_bytes()
    again = command.json("--target", "wheel")
    assert all(row["unchanged"] for row in again["targets"])
