"""A stand-in for the official image, and the way a container runtime unpacks layers."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import marshal
import os
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.images.oci import (
    CONFIG,
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    INDEX,
    LAYER_GZIP,
    MANIFEST,
    canonical,
)
from tests.support.artifacts import AMD64, ARM64, SITE
from tests.support.tinytree import TREE, VERSION

if TYPE_CHECKING:
    from pathlib import Path


class BaseImage:
    """A stand-in for the official image in an OCI layout: vLLM installed, bytecode compiled.

    Attributes:
        root: the layout.
        manifests: the digest of each platform's manifest.
        index: the digest of the index over them.
    """

    def __init__(
        self,
        root: Path,
        *,
        docker: bool = False,
        history: bool = True,
        first: bytes | None = None,
        site: str = SITE,
    ) -> None:
        """Write the layout.

        Args:
            root: a new folder.
            docker: in Docker's media types instead of OCI's.
            history: whether the configs have a history.
            first: the tar of the first layer; by default one small file.
            site: where vLLM is installed.
        """
        self.root = root
        self._first = first
        self._site = site
        self._docker = docker
        self._history = history
        (root / "blobs" / "sha256").mkdir(parents=True)
        (root / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
        self.manifests = {platform: self._image(platform) for platform in (AMD64, ARM64)}
        entries = [self._entry(digest, platform) for platform, digest in self.manifests.items()]
        kind = DOCKER_INDEX if docker else INDEX
        document = {"schemaVersion": 2, "mediaType": kind, "manifests": entries}
        self.index = self.put(canonical(document))
        top = {"mediaType": kind, "digest": f"sha256:{self.index}", "size": self._size(self.index)}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]}
        (root / "index.json").write_bytes(canonical(index))

    def put(self, data: bytes) -> Sha256:
        """Add a blob."""
        digest = sha256_bytes(data)
        (self.root / "blobs" / "sha256" / digest).write_bytes(data)
        return digest

    def get(self, digest: str) -> bytes:
        """Return a blob."""
        return (self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()

    def _size(self, digest: str) -> int:
        return len(self.get(digest))

    def _entry(self, digest: str, platform: str) -> dict[str, object]:
        system, architecture = platform.split("/")
        return {
            "mediaType": DOCKER_MANIFEST if self._docker else MANIFEST,
            "digest": f"sha256:{digest}",
            "size": self._size(digest),
            "platform": {"os": system, "architecture": architecture},
        }

    def _image(self, platform: str) -> Sha256:
        first = self._first or tar({"etc/os-release": f"NAME={platform}\n".encode()})
        tars = [first, tar(installed(self._site))]
        blobs = [self.put(gzip.compress(data, mtime=0)) for data in tars]
        system, architecture = platform.split("/")
        config: dict[str, object] = {
            "architecture": architecture,
            "os": system,
            "created": "2026-11-02T00:00:00Z",
            "config": {
                "Entrypoint": ["vllm", "serve"],
                "Env": ["PATH=/usr/local/bin"],
                "Labels": {"maintainer": "upstream", "org.opencontainers.image.version": "24.04"},
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256_bytes(t)}" for t in tars]},
        }
        if self._history:
            config["history"] = [
                {"created_by": "ADD rootfs"},
                {"created_by": "ENV PATH", "empty_layer": True},
                {"created_by": "RUN uv pip install"},
            ]
        settings = self.put(canonical(config))
        docker = "application/vnd.docker.image.rootfs.diff.tar.gzip"
        manifest = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST if self._docker else MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json"
                if self._docker
                else CONFIG,
                "digest": f"sha256:{settings}",
                "size": self._size(settings),
            },
            "layers": [
                {
                    "mediaType": docker if self._docker else LAYER_GZIP,
                    "digest": f"sha256:{blob}",
                    "size": self._size(blob),
                }
                for blob in blobs
            ],
        }
        return self.put(canonical(manifest))


def tar(contents: dict[str, bytes]) -> bytes:
    """Return a tar of files, as other tools write it: no folders, times of their own."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, data in contents.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(data), 1793500000
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def installed(site: str = SITE) -> dict[str, bytes]:
    """Return stock vLLM as the official image has it, with bytecode that never looks at its source.

    Such bytecode (PEP 552, unchecked) is the worst that an image can hold. It is this Python's, and
    named after the Python of `site`.
    """
    root = site.lstrip("/")
    tag = "cpython-" + site.split("/python")[1].split("/", maxsplit=1)[0].replace(".", "")
    found: dict[str, bytes] = {}
    for path, data in TREE.items():
        found[f"{root}/{path}"] = data
        if path.endswith(".py"):
            code = compile(data, path, "exec", dont_inherit=True)
            head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
            body = importlib.util.source_hash(data) + marshal.dumps(code)
            folder, _, name = path.rpartition("/")
            stem = f"{root}/{folder}/__pycache__/{name.removesuffix('.py')}"
            for level in ("", ".opt-1", ".opt-2"):
                found[f"{stem}.{tag}{level}.pyc"] = head + body
    info = f"{root}/vllm-{VERSION}.dist-info"
    found[f"{info}/METADATA"] = f"Metadata-Version: 2.4\nName: vllm\nVersion: {VERSION}\n".encode()
    found[f"{info}/INSTALLER"] = b"uv"
    return found


def apply_layer(blob: bytes, folder: Path, *, whiteouts: bool = True) -> None:
    """Unpack a gzipped layer over `folder` as the OCI image spec says, or deaf to whiteouts."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob)), mode="r:") as archive:
        entries = [(entry, archive.extractfile(entry)) for entry in archive]
        for entry, _ in entries:
            place = folder / entry.name
            if place.name.startswith(".wh.") and whiteouts:
                hidden = place.with_name(place.name.removeprefix(".wh."))
                shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink(missing_ok=True)
        for entry, file in entries:
            place = folder / entry.name
            if entry.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif file is not None and not place.name.startswith(".wh."):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.read())
                os.utime(place, (entry.mtime, entry.mtime))


def load(data: bytes) -> dict[str, Any]:
    """Return a JSON object."""
    found = json.loads(data)
    assert isinstance(found, dict)
    return found
