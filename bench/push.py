"""What a push costs: bytes over the wire and memory, with a large base that is generated.

`python -m bench.push [--gib N]` needs `docker-registry` on PATH and N GiB of disk for a minute. The
push and the check run in processes of their own, so that their peaks are theirs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.__main__ import ROOT
from imagebuild.artifacts.layer import Layer, LayerFile, serialize
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.images import oci
from imagebuild.images.image import Image, overlay_image
from imagebuild.images.ocibase import read_base
from imagebuild.images.publish import Publisher
from imagebuild.images.reference import parse_reference
from imagebuild.images.registry import Registry
from imagebuild.progress import Silent
from imagebuild.verifying.verify import Report
from imagebuild.verifying.verify_image import read_entry
from imagebuild.verifying.verify_registry import RegistrySubject
from tests.support.real_registry import RealRegistry, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAYERS = 4
_BLOCK = 1 << 20
_EPOCH = 1793614376
_NAME = "vllm/vllm-openai"


@dataclass(frozen=True)
class Generated:
    """A base whose layers are made up while they are read: the same bytes each time.

    Attributes:
        documents: manifest and config, by digest.
        digest: the manifest's.
        seeds: each layer's seed, by digest.
    """

    documents: dict[Sha256, bytes]
    digest: Sha256
    seeds: dict[Sha256, int]
    label: str = "generated"

    @classmethod
    def of(cls, size: int) -> Generated:
        """Return a base of `size` bytes in all."""
        each = size // _LAYERS
        seeds = {_digest(_blocks(seed, each)): seed for seed in range(_LAYERS)}
        config = oci.canonical(
            {
                "architecture": "amd64",
                "os": "linux",
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{d}" for d in seeds]},
            }
        )
        layers = [{"mediaType": oci.LAYER, "digest": f"sha256:{d}", "size": each} for d in seeds]
        place = {"digest": f"sha256:{sha256_bytes(config)}", "size": len(config)}
        manifest = oci.canonical(
            {
                "schemaVersion": 2,
                "mediaType": oci.MANIFEST,
                "config": {"mediaType": oci.CONFIG, **place},
                "layers": layers,
            }
        )
        documents = {sha256_bytes(data): data for data in (config, manifest)}
        return cls(documents, sha256_bytes(manifest), seeds)

    def manifest(self, digest: Sha256) -> bytes:
        """Return a document."""
        return self.documents[digest]

    def blob(self, digest: Sha256, size: int) -> Iterator[bytes]:
        """Yield a layer, or a document."""
        if digest in self.documents:
            yield self.documents[digest]
        else:
            yield from _blocks(self.seeds[digest], size)


def _blocks(seed: int, size: int) -> Iterator[bytes]:
    block = hashlib.shake_256(str(seed).encode()).digest(_BLOCK)
    for _ in range(size // _BLOCK):
        yield block


def _digest(chunks: Iterator[bytes]) -> Sha256:
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
    return Sha256(found.hexdigest())


def _image(base: Generated, folder: Path) -> Image:
    path = folder / "layer"
    content = {"site/vllm/overlay.py": LayerFile(os.urandom(_BLOCK))}
    with path.open("wb") as file:
        digests = serialize(content, _EPOCH, file.write)
    read = read_base(base, base.digest, "linux/amd64")
    return overlay_image(read, Layer(path, digests), {}, created_by="bench", epoch=_EPOCH)


def _child(size: int, target: str, origin: str, folder: Path) -> None:
    """Push, and print what it took; then read everything again as `verify` does."""
    base = Generated.of(size)
    image = _image(base, folder)
    reference = parse_reference(target)
    with Publisher(reference, base, origin, Silent()) as publisher:
        traffic = publisher.push([image], None).traffic
    with Registry(reference.repository) as source:
        report = Report(target)
        subject = RegistrySubject(source, image.digest)
        entry = read_entry(source, subject.index().manifests[0])
        subject.check_layers(report, entry.manifest, Silent())
        report.require()
    found = {"layer": image.layer.size, "uploaded": traffic.uploaded, "mounted": traffic.mounted}
    sys.stdout.write(json.dumps(found))


def _run(size: int, target: str, origin: str, folder: Path) -> tuple[dict[str, int], int]:
    command = [sys.executable, "-m", "bench.push", "--child", str(size), target, origin]
    process = subprocess.Popen([*command, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
    out = process.communicate()[0] if process.stdout is None else process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    found: dict[str, int] = json.loads(out)
    return found, usage.ru_maxrss * 1024


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.push", description=__doc__)
    parser.add_argument("--gib", type=int, default=2, help="the base's size (default: %(default)s)")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        size, target, origin, folder = arguments.child
        _child(int(size), target, origin, Path(folder))
        return
    size = arguments.gib << 30
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with RealRegistry(folder / "registry") as registry:
            rows = []
            for what, origin in (("elsewhere", "docker.io"), ("beside it", None)):
                with Wire(registry.port) as wire:
                    first = f"{wire.host}/{_NAME}:1" if origin else f"{wire.host}/ours/vllm:1"
                    repository = f"{origin or wire.host}/{_NAME}"
                    found, peak = _run(size, first, repository, folder)
                    rows.append((what, found, peak, wire.sent))
    print(f"a base of {arguments.gib} GiB in {_LAYERS} layers, a layer of ours of 1 MiB")
    for what, found, peak, sent in rows:
        ratio = sent / found["layer"]
        print(f"push {what}: {found['mounted']} mounted, {sent / 1e6:.2f} MB sent", end="")
        print(f" = {ratio:.2f} x our layer, peak memory with check {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
