"""What comes of finished images: the index over several platforms, the archive, the push."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagebuild import builder, release, state
from imagebuild.attesting import attest
from imagebuild.digest import parse_sha256
from imagebuild.images.reference import Reference, parse_reference
from imagebuild.outputs import image_folder, tag_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from imagebuild.builder import Build, Made, Row
    from imagebuild.images.image import Image
    from imagebuild.images.publish import Pushed
    from imagebuild.state import State


def finish(build: Build, known: State, rows: Sequence[Row]) -> list[Row]:
    """Make what stands over several targets: nothing where an image is missing."""
    outputs = [row.output for row in rows if isinstance(row.output, release.ImageOutput)]
    platforms = build.request.platforms
    if len(outputs) != len(platforms):
        return []
    digests = [output.manifest for output in outputs]
    found = []
    if len(platforms) > 1:
        key = state.key(state.tool_digest(), "index", digests, str(build.request.export))
        made = builder.make(
            build, f"{build.request.line} index", key, known, lambda: _index(build, outputs)
        )
        found.append(builder.Row("index", made[2], made[0], made[1]))
    if build.request.export == "archive":
        key = state.key(state.tool_digest(), "archive", digests)
        made = builder.make(
            build, f"{build.request.line} archive", key, known, lambda: _archive(build, outputs)
        )
        found.append(builder.Row("archive", made[2], made[0], made[1]))
    return found


def images(build: Build, outputs: Sequence[release.ImageOutput]) -> list[Image]:
    """Return the images that stand in the output folder."""
    from imagebuild.images.ocilayout import read_image  # noqa: PLC0415  (kept out of start-up)

    return [
        read_image(image_folder(build, output.platform), parse_sha256(output.base))
        for output in outputs
    ]


def _index(build: Build, outputs: Sequence[release.ImageOutput]) -> Made:
    from imagebuild.images.ocilayout import write_layout  # noqa: PLC0415  (kept out of start-up)

    source = build.sources.image(build.line, build.request.base)
    found = images(build, outputs)
    folder = build.request.dist / f"image-{build.request.line}"
    layout = write_layout(
        found,
        folder,
        name=tag_of(build.line),
        progress=build.progress,
        export=source if build.request.export == "layout" else None,
    )
    return release.index_output(layout, found), _files(folder)


def _archive(build: Build, outputs: Sequence[release.ImageOutput]) -> Made:
    from imagebuild.images.imagearchive import write_archive  # noqa: PLC0415  (kept out of start-up)

    found = images(build, outputs)
    places = "-".join(output.platform.rpartition("/")[2] for output in outputs)
    dest = build.request.dist / f"image-{build.request.line}-{places}.tar"
    source = build.sources.image(build.line, build.request.base)
    made = write_archive(
        found, dest, source, name=tag_of(build.line), epoch=build.epoch, progress=build.progress
    )
    return release.archive_output(made, found), [dest]


def push(build: Build, rows: Sequence[Row], ref: str, key: str | None) -> Pushed:
    """Push the images that a build has made, what is said of them, and signatures.

    Args:
        build: the build.
        rows: what it has made.
        ref: where to push to.
        key: what to sign with; None for no signature.

    Raises:
        UsageError: if `ref` is no reference, or one by digest.
        RegistryError: if the registry does not take it all.
        BuildError: if a base's layer cannot be had.
        TargetError: if cosign does not sign.
    """
    from imagebuild.images.image import index_of  # noqa: PLC0415  (kept out of start-up)
    from imagebuild.images.publish import Publisher  # noqa: PLC0415  (the same)

    outputs = [row.output for row in rows if isinstance(row.output, release.ImageOutput)]
    found = images(build, outputs)
    repository = "" if build.line.image is None else build.line.image.repository
    source = build.sources.image(build.line, build.request.base)
    with Publisher(target(build, ref), source, repository, build.progress) as publisher:
        pushed = publisher.push(found, index_of(found) if len(found) > 1 else None)
        attached = attest.attach_all(build, publisher, rows, found)
    if key is not None:
        from imagebuild.attesting.signing import sign  # noqa: PLC0415  (only on this path)

        digests = dict.fromkeys((pushed.reference.digest, *pushed.platforms.values()))
        sign([f"{pushed.reference.repository}@sha256:{digest}" for digest in digests], key)
    return replace(pushed, attached=attached, signed=key is not None)


def record(build: Build, rows: Sequence[Row], pushed: Pushed) -> None:
    """Note in `release.lock` what was pushed.

    Raises:
        TargetError: if nobody could make it again: the checkout is not a commit.
    """
    import datetime as dt  # noqa: PLC0415  (only on this path)

    from imagebuild.attesting import releaselock  # noqa: PLC0415
    from imagebuild.errors import TargetError  # noqa: PLC0415

    revision = build.project.revision()
    if revision is None:
        raise TargetError(
            "what was pushed is not recorded: nobody could make it again",
            file=build.project.root,
            expected="a clean git checkout",
            found="no checkout, or changed files",
            next_command="git status",
        )
    wheels = [row.output for row in rows if isinstance(row.output, release.WheelOutput)]
    images = [row.output for row in rows if isinstance(row.output, release.ImageOutput)]
    entry = releaselock.Published(
        line=build.request.line,
        version=build.line.local_version,
        date=dt.datetime.now(dt.UTC).date(),
        revision=revision,
        ref=f"{pushed.reference.repository}:{pushed.reference.tag}",
        digest=f"sha256:{pushed.reference.digest}",
        platforms={output.platform: output.manifest for output in images},
        wheels={o.platform: releaselock.Wheel(name=o.file, sha256=o.sha256) for o in wheels},
        attestations={key: f"sha256:{value}" for key, value in pushed.attached.items()},
    )
    releaselock.record(build.project.release_lock, entry)


def target(build: Build, ref: str) -> Reference:
    """Return where to push to; the tag is the version where `ref` has none.

    Raises:
        UsageError: if `ref` is no reference, or names a digest.
    """
    from imagebuild.errors import UsageError  # noqa: PLC0415  (only on this path)

    found = parse_reference(ref)
    if found.digest is not None:
        raise UsageError(
            "one pushes under a tag, not under a digest",
            file=ref,
            expected="REGISTRY/NAME[:TAG]",
            found=f"sha256:{found.digest}",
            next_command=f"python build.py --push {found.repository}",
        )
    return Reference(found.repository, found.tag or tag_of(build.line))


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]
