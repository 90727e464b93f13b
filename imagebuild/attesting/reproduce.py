"""A published release made again and compared; where it differs, the first file that does."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from imagebuild import builder, release
from imagebuild.digest import parse_sha256
from imagebuild.errors import BuildError
from imagebuild.images.oci import Manifest, parse_manifest
from imagebuild.images.registry import Registry
from imagebuild.verifying.verify import Report
from imagebuild.verifying.verify_layer import MAX_LAYER, layer_files
from imagebuild.verifying.verify_wheel import ABSENT

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.attesting.releaselock import Published
    from imagebuild.builder import Build
    from imagebuild.release import LayerOutput


def reproduce(build: Build, published: Published) -> Report:
    """Return how what this machine makes compares with what was published.

    Args:
        build: a build of the same line, for the published platforms.
        published: the entry of `release.lock`.

    Raises:
        BuildError: if it cannot be built here.
    """
    report = Report(f"{published.ref}, {published.date}")
    here = build.project.revision()
    if here != published.revision:
        needs = f"git checkout {published.revision}"
        report.not_checked("the image's digest", needs, f"this is {here or 'a changed checkout'}")
    rows = builder.run(build)
    outputs = [row.output for row in rows]
    layers = {o.platform: o for o in outputs if isinstance(o, release.LayerOutput)}
    for output in outputs:
        match output:
            case release.WheelOutput() if output.platform in published.wheels:
                wanted = published.wheels[output.platform].sha256
                report.compare(f"wheel, {output.platform}", wanted, output.sha256)
            case release.ImageOutput() if output.platform in published.platforms:
                wanted = published.platforms[output.platform]
                _image(report, build, published, output.manifest, layers[output.platform])
            case release.IndexOutput() if here == published.revision:
                report.compare("index", published.digest, output.index)
            case _:
                continue
    return report


def _image(
    report: Report, build: Build, published: Published, manifest: str, ours: LayerOutput
) -> None:
    """Compare an image by digest, and by its layer's files where the digests differ."""
    wanted = published.platforms[ours.platform]
    name = f"image, {ours.platform}"
    if manifest == wanted:
        report.ok(name, manifest)
        return
    if build.project.revision() == published.revision:
        report.bad(name, wanted, manifest)
    path = build.request.dist / ours.file
    try:
        with Registry(published.repository) as source:
            theirs = _layer(source, wanted)
    except (BuildError, ValueError, zlib.error) as error:
        report.not_checked(f"{name}: the layer's files", "the registry", str(error))
        return
    _compare_layers(report, f"{name}: the layer's files", theirs, path)


def _layer(source: Registry, digest: str) -> bytes:
    found = parse_manifest(source.manifest(parse_sha256(digest)), source.label)
    if not isinstance(found, Manifest) or not found.layers or found.layers[-1].size > MAX_LAYER:
        raise ValueError("not an image of ours")
    ours = found.layers[-1]
    return b"".join(source.blob(ours.sha256, ours.size))


def _compare_layers(report: Report, name: str, theirs: bytes, path: Path) -> None:
    """Name the first file that differs, in the order of paths."""
    one, other = (
        layer_files(zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, MAX_LAYER))
        for data in (theirs, path.read_bytes())
    )
    differing = [p for p in sorted({*one, *other}) if one.get(p) != other.get(p)]
    if not differing:
        report.ok(name, f"{len(one)} files")
        return
    first = differing[0]
    missing = ABSENT if first not in one else "another content"
    report.bad(f"{name}: {first}", "the published file", missing if first in other else ABSENT)
