"""Tiny artifacts: a patch set, the official wheel it fits, and what comes of the two."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild import upstream
from imagebuild.artifacts.layer import Layer, write_layer
from imagebuild.artifacts.wheel import write_wheel
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.images.labels import ImageFacts, image_labels
from imagebuild.images.ocilayout import LayoutSource
from imagebuild.patching.produced import Patchset, ProducedFile
from imagebuild.progress import Silent
from imagebuild.verifying.verify_layer import Facts
from tests.support import tiny
from tests.support.tinytree import SDIST_ONLY, TREE

if TYPE_CHECKING:
    from tests.support.baseimage import BaseImage

ROOT = Path(__file__).parents[2]
EPOCH = 1793614376
AMD64: upstream.Platform = "linux/amd64"
ARM64: upstream.Platform = "linux/arm64"
PATCHED = tiny.KERNELS
NEW = "vllm/_overlay.py"
CREATED_BY = "python build.py --target image"
VOUCHED = {path: sha256_bytes(data) for path, data in (TREE | SDIST_ONLY).items()}
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"/usr/local/lib/python{HERE}/dist-packages"


def line(**changed: object) -> upstream.Line:
    """Return the tiny line, for the Python that runs the tests, some keys changed."""
    changed = {"python": HERE, "site_packages": SITE} | changed
    return upstream.parse(tiny.upstream_lock(**changed), Path("upstream.lock")).lines[tiny.LINE]


def official(folder: Path, platform: upstream.Platform = AMD64) -> Path:
    """Write the official wheel into `folder`, under a name that says nothing, like the cache's."""
    path = folder / "official"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tiny.wheel(platform))
    return path


def patched(path: str = PATCHED, data: bytes = b"# patched\n") -> ProducedFile:
    """Return an upstream file with `data` appended."""
    before = (TREE | SDIST_ONLY)[path]
    return ProducedFile(path, before + data, sha256_bytes(before), "patched")


def new(path: str = NEW, data: bytes = b"VERSION = 'ours'\n") -> ProducedFile:
    """Return a file that upstream does not have."""
    return ProducedFile(path, data, None, "overlay")


def patchset(*files: ProducedFile) -> Patchset:
    """Return a patch set; without arguments, one patched, one new and one file of the tests."""
    files = files or (patched(), new(), new("tests/test_ours.py"))
    digests = {"state-index-bounds": Sha256("1" * 64), "kv-scale-warning": Sha256("2" * 64)}
    return Patchset(tiny.LINE, Sha256("3" * 64), digests, files)


def expected(files: Patchset) -> dict[str, Sha256]:
    """Return what `checksums.lock` says of the produced files."""
    return {file.path: file.after for file in files.files}


def wheel(folder: Path, files: Patchset | None = None) -> Path:
    """Write the patched wheel into `folder`."""
    made = write_wheel(
        official(folder / "in"),
        files or patchset(),
        line(),
        AMD64,
        folder,
        epoch=EPOCH,
        progress=Silent(),
    )
    return made.path


def layer(folder: Path, files: Patchset | None = None) -> Layer:
    """Write the overlay layer into `folder`."""
    return write_layer(
        official(folder / "in"),
        files or patchset(),
        line(),
        AMD64,
        folder,
        vouched=VOUCHED,
        epoch=EPOCH,
        progress=Silent(),
    )


def image_facts(base_digest: str) -> ImageFacts:
    """Return what the labels are made of."""
    files = patchset()
    return ImageFacts(
        line=line(),
        patchset=files.sha256,
        patches=tuple(files.patches),
        lock=Sha256("4" * 64),
        base_ref="docker.io/vllm/vllm-openai:v1.2.3",
        base_digest=base_digest,
        source="https://example.org/vllm-sm120",
        revision="5" * 40,
        epoch=EPOCH,
    )


def facts(base: BaseImage | None, folder: Path | None = None) -> Facts:
    """Return what an image is compared with; `folder` gets the official wheel, if given."""
    digest = "sha256:" + (base.manifests[AMD64] if base else "0" * 64)
    return Facts(
        line=line(),
        platform=AMD64,
        expected=expected(patchset()),
        labels=image_labels(image_facts(digest)),
        epoch=EPOCH,
        created_by=CREATED_BY,
        official=None if folder is None else official(folder),
        vouched=None if folder is None else VOUCHED,
        base=None if base is None else LayoutSource(base.root),
        base_digest=None if base is None else base.manifests[AMD64],
    )


def pythons() -> dict[str, Path]:
    """Return this machine's Pythons of 3.11 to 3.13, by version: this one, PATH, pyenv."""
    found = {HERE: Path(sys.executable)}
    for version in ("3.11", "3.12", "3.13"):
        places = [shutil.which(f"python{version}")]
        places += sorted(
            str(p) for p in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
        )
        for place in places:
            if version not in found and place is not None and _runs(place, version):
                found[version] = Path(place)
    return found


def _runs(python: str, version: str) -> bool:
    text = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", text], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version
