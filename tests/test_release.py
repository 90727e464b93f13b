"""`release.json`: written canonically, read strictly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuild import release
from imagebuild.artifacts.artifact import Artifact
from imagebuild.digest import sha256_file
from imagebuild.errors import LockError
from imagebuild.images.image import overlay_image
from imagebuild.images.ocibase import read_base
from imagebuild.images.ocilayout import LayoutSource
from imagebuild.release import NamedFile, Release, Tool, TreeOutput, Upstream
from tests.support import artifacts
from tests.support.artifacts import AMD64, CREATED_BY, EPOCH
from tests.support.baseimage import BaseImage

if TYPE_CHECKING:
    from collections.abc import Callable

HASH = "a" * 64


def described(folder: Path) -> Release:
    """Return the description of all kinds of outputs, made of real ones."""
    line = artifacts.line()
    base = BaseImage(folder / "base")
    wheel = artifacts.wheel(folder)
    layer = artifacts.layer(folder)
    read = read_base(LayoutSource(base.root), base.index, AMD64)
    image = overlay_image(read, layer, {}, created_by=CREATED_BY, epoch=EPOCH)
    made = Artifact(wheel, sha256_file(wheel), wheel.stat().st_size)
    return Release(
        line="v1.2.3",
        version=line.local_version,
        source_date_epoch=EPOCH,
        tool=Tool("vllm-sm120", "0.1.0"),
        upstream=Upstream(
            version=line.version,
            tag=line.tag,
            commit=line.best_commit,
            sdist=NamedFile(line.sdist.name, line.sdist.sha256),
            wheels={AMD64: NamedFile(line.wheel(AMD64).name, line.wheel(AMD64).sha256)},
            torch=line.torch,
            flashinfer=line.flashinfer,
            cuda=line.cuda,
            python=line.python,
            cuda_archs=line.cuda_archs,
            image="docker.io/vllm/vllm-openai:v1.2.3",
            bases={AMD64: f"sha256:{base.manifests[AMD64]}"},
        ),
        locks={"upstream.lock": HASH, "checksums.lock": HASH},
        patchset=HASH,
        patches=(NamedFile("z.patch", HASH), NamedFile("a.patch", HASH)),
        overlay=(NamedFile("vllm/x.py", HASH),),
        produced=(NamedFile("vllm/x.py", HASH),),
        outputs=(
            release.wheel_output(made, AMD64),
            release.layer_output(layer, AMD64),
            release.image_output(image, "image", "overlay-only", AMD64),
            TreeOutput("tree", (NamedFile("vllm/x.py", HASH),)),
        ),
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    made = described(tmp_path)
    path = tmp_path / release.NAME
    path.write_bytes(release.dump(made))
    assert release.load(path) == made


def test_two_folders_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = (release.dump(described(tmp_path / name)) for name in ("one", "two"))
    assert one == two


def test_it_names_no_folder_and_no_clock(tmp_path: Path) -> None:
    text = release.dump(described(tmp_path)).decode()
    assert str(tmp_path) not in text
    assert "/tmp" not in text
    assert not re.search(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}", text)


def test_keys_are_sorted_and_the_series_keeps_its_order(tmp_path: Path) -> None:
    data = release.dump(described(tmp_path))
    document = json.loads(data)
    assert list(document) == sorted(document)
    assert [patch["name"] for patch in document["patches"]] == ["z.patch", "a.patch"]
    assert data.endswith(b"}\n")


def test_each_output_says_its_kind(tmp_path: Path) -> None:
    document = json.loads(release.dump(described(tmp_path)))
    assert [o["kind"] for o in document["outputs"]] == ["wheel", "layer", "image", "tree"]


def change(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        document[key] = value

    return apply


FAULTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "unknown_key": change("extra", 1),
    "missing_key": lambda document: document.pop("patchset"),
    "bad_hash": change("patchset", "abc"),
    "bad_kind": change("outputs", [{"kind": "boat"}]),
    "absolute_path": change("overlay", [{"name": "/etc/passwd", "sha256": HASH}]),
    "negative_time": change("source-date-epoch", -1),
    "newer_schema": change("schema", release.SCHEMA + 1),
    "no_schema": lambda document: document.pop("schema"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_document_of_another_form_is_refused(fault: str, tmp_path: Path) -> None:
    document = json.loads(release.dump(described(tmp_path)))
    FAULTS[fault](document)
    with pytest.raises(LockError) as raised:
        release.parse(json.dumps(document).encode(), Path("release.json"))
    assert raised.value.file == "release.json"
    if fault == "newer_schema":
        assert "newer schema" in raised.value.summary


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_nothing_but_a_lock_error_comes_of_garbage(data: bytes) -> None:
    with pytest.raises(LockError):
        release.parse(data, Path("release.json"))


def test_a_missing_file_is_a_lock_error(tmp_path: Path) -> None:
    with pytest.raises(LockError):
        release.load(tmp_path / "release.json")
