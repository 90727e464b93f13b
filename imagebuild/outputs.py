"""How each target is made from a running build, and what the build as a whole says of itself."""

from __future__ import annotations

import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from imagebuild import files, release
from imagebuild.digest import parse_sha256, sha256_file
from imagebuild.project import SOURCE
from imagebuild.release import NamedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuild.artifacts.layer import Layer
    from imagebuild.builder import Build
    from imagebuild.release import Output, Release
    from imagebuild.upstream import Line, Platform

CREATED_BY = "python build.py --target image"


class Writer(Protocol):
    """How a target is made."""

    def inputs(self, build: Build, platform: Platform) -> list[str]:
        """Return what this target depends on beside the locks, for deciding whether it is current.

        Raises:
            UnpinnedError: if it needs a pin that nobody has resolved.
        """

    def write(self, build: Build, platform: Platform) -> tuple[Output, list[Path]]:
        """Make the target; return its entry for `release.json` and its files."""


class _Wheel:
    def inputs(self, build: Build, platform: Platform) -> list[str]:
        return [build.line.wheel(platform).sha256]

    def write(self, build: Build, platform: Platform) -> tuple[Output, list[Path]]:
        from imagebuild.artifacts.wheel import write_wheel  # noqa: PLC0415  (kept out of start-up)

        request = build.request
        made = write_wheel(
            build.official_wheel(platform),
            build.patchset,
            build.line,
            platform,
            request.dist,
            epoch=build.epoch,
            progress=build.progress,
        )
        return release.wheel_output(made, platform), [made.path]


class _Layer:
    def inputs(self, build: Build, platform: Platform) -> list[str]:
        return [build.line.wheel(platform).sha256]

    def write(self, build: Build, platform: Platform) -> tuple[Output, list[Path]]:
        made = write_layer(build, platform)
        return release.layer_output(made, platform), [made.path]


class _Image:
    def inputs(self, build: Build, platform: Platform) -> list[str]:
        return [
            build.line.image_digest(platform),
            build.project.revision() or "",
            str(sha256_file(build.project.checksums_lock)),
            str(build.request.export_whole),
        ]

    def write(self, build: Build, platform: Platform) -> tuple[Output, list[Path]]:
        from imagebuild.images.image import overlay_image  # noqa: PLC0415  (kept out of start-up)
        from imagebuild.images.labels import ImageFacts, image_labels  # noqa: PLC0415
        from imagebuild.images.ocibase import read_base  # noqa: PLC0415
        from imagebuild.images.ocilayout import write_layout  # noqa: PLC0415

        request, line = build.request, build.line
        digest = parse_sha256(line.image_digest(platform))
        source = build.sources.image(line, request.base)
        base = read_base(source, digest, platform)
        facts = ImageFacts(
            line=line,
            patchset=build.patchset.sha256,
            patches=tuple(build.patchset.patches),
            lock=sha256_file(build.project.checksums_lock),
            base_ref=line.image.ref if line.image else "",
            base_digest=f"sha256:{base.digest}",
            source=SOURCE,
            revision=build.project.revision(),
            epoch=build.epoch,
        )
        image = overlay_image(
            base,
            write_layer(build, platform),
            image_labels(facts),
            created_by=CREATED_BY,
            epoch=build.epoch,
        )
        folder = image_folder(build, platform)
        layout = write_layout(
            [image],
            folder,
            name=tag_of(line),
            progress=build.progress,
            export=source if request.export_whole else None,
        )
        made = release.image_output(image, folder.name, layout.kind, platform)
        return made, [path for path in sorted(folder.rglob("*")) if path.is_file()]


class _Tree:
    def inputs(self, build: Build, platform: Platform) -> list[str]:
        del platform
        return [build.line.sdist.sha256]

    def write(self, build: Build, platform: Platform) -> tuple[Output, list[Path]]:
        del platform
        folder = build.request.dist / f"vllm-{build.line.local_version}"
        with files.storing(folder):
            outer = Path(tempfile.mkdtemp(prefix=".tree.", suffix=".tmp", dir=build.request.dist))
            try:
                new = outer / "new"
                build.upstream.extract(new, build.progress)
                for file in build.patchset.files:
                    files.write_atomic(new / file.path, file.data)
                if folder.exists():
                    folder.rename(outer / "old")
                new.rename(folder)
            finally:
                shutil.rmtree(outer, ignore_errors=True)
        named = tuple(NamedFile(file.path, file.after) for file in build.patchset.files)
        paths = [folder / file.path for file in build.patchset.files]
        return release.TreeOutput(folder.name, named), paths


def image_folder(build: Build, platform: Platform) -> Path:
    """Return the layout of a platform's image."""
    return build.request.dist / f"image-{build.request.line}-{platform.replace('/', '-')}"


def tag_of(line: Line) -> str:
    """Return the tag of a line's image: tags hold no `+`."""
    return line.local_version.replace("+", "-")


WRITERS: dict[str, Writer] = {
    "tree": _Tree(),
    "wheel": _Wheel(),
    "layer": _Layer(),
    "image": _Image(),
}


def write_layer(build: Build, platform: Platform) -> Layer:
    """Write the overlay layer into the output folder."""
    from imagebuild.artifacts.layer import write_layer as write  # noqa: PLC0415  (kept out of start-up)

    vouched = {path: entry.sha256 for path, entry in build.upstream.manifest().items()}
    return write(
        build.official_wheel(platform),
        build.patchset,
        build.line,
        platform,
        build.request.dist,
        vouched={path: parse_sha256(digest) for path, digest in vouched.items()},
        epoch=build.epoch,
        progress=build.progress,
    )


def describe(build: Build, outputs: Sequence[Output]) -> Release:
    """Return the document over a build's outputs; everything in it comes from the locks."""
    line, pins = build.line, build.pins
    project = build.project
    bases = {o.platform: o.base for o in outputs if isinstance(o, release.ImageOutput)}
    return release.Release(
        line=build.request.line,
        version=line.local_version,
        source_date_epoch=build.epoch,
        tool=release.Tool("vllm-sm120", metadata.version("vllm-sm120")),
        upstream=release.Upstream(
            version=line.version,
            tag=line.tag,
            commit=line.best_commit,
            sdist=NamedFile(line.sdist.name, line.sdist.sha256),
            wheels={p: NamedFile(pin.name, pin.sha256) for p, pin in line.wheels.items()},
            torch=line.torch,
            flashinfer=line.flashinfer,
            cuda=line.cuda,
            python=line.python,
            cuda_archs=line.cuda_archs,
            image=None if line.image is None else line.image.ref,
            bases=bases,
        ),
        locks={
            path.name: sha256_file(path) for path in (project.upstream_lock, project.checksums_lock)
        },
        patchset=pins.patchset,
        patches=tuple(
            NamedFile(f"{patch.name}.patch", patch.text.sha256) for patch in build.series.patches
        ),
        overlay=tuple(NamedFile(path, digest) for path, digest in sorted(pins.overlay.items())),
        produced=tuple(NamedFile(path, digest) for path, digest in sorted(pins.produced.items())),
        outputs=tuple(outputs),
    )
