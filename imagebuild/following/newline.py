"""A new release line: its pins as far as they can be resolved now, and its series' files."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from imagebuild import upstream
from imagebuild.errors import BuildError, ChecksumError, SourceError, UsageError
from imagebuild.fetch import release_facts
from imagebuild.following import releases
from imagebuild.upstream import (
    PLATFORMS,
    REPOSITORY,
    DockerfilePin,
    FilePin,
    ImagePin,
    Line,
    UpstreamLock,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagebuild.fetch.package_index import IndexFile
    from imagebuild.fetch.sdist import SdistTree
    from imagebuild.fetch.sources import Sources
    from imagebuild.following.carry import Carried

_MACHINES: dict[upstream.Platform, str] = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


@dataclass(frozen=True)
class NewLine:
    """A line that is not in the lock yet.

    Attributes:
        line: its pins.
        unresolved: each pin that could not be resolved, with the reason; it is absent.
    """

    line: Line
    unresolved: tuple[tuple[str, str], ...]


def nearest(lock: UpstreamLock, version: str) -> str:
    """Return the line whose series a release gets: the newest before it, else the oldest after."""
    wanted = releases.parse(version)
    others = {name: releases.parse(line.version) for name, line in lock.lines.items()}
    others.pop(f"v{version}", None)
    if not others:
        raise UsageError(
            "no other line to take the series from",
            file=upstream.WHAT,
            expected="a line of another release",
            found=", ".join(lock.lines),
            next_command="python build.py show",
        )
    before = [name for name, other in others.items() if other < wanted]
    return max(before, key=others.__getitem__) if before else min(others, key=others.__getitem__)


def _wheels(listed: Iterable[IndexFile]) -> dict[upstream.Platform, FilePin]:
    found: dict[upstream.Platform, FilePin] = {}
    for platform, machine in _MACHINES.items():
        wheels = [file for file in listed if file.name.endswith(f"{machine}.whl")]
        if len(wheels) == 1 and wheels[0].sha256 is not None:
            found[platform] = FilePin(name=wheels[0].name, sha256=wheels[0].sha256)
    return found


@dataclass
class _Resolver:
    """Asks for the pins that only the network knows; what does not answer is noted."""

    sources: Sources
    unresolved: list[tuple[str, str]]

    def commit(self, tag: str, prefix: str) -> str | None:
        try:
            found = self.sources.remote_tag(REPOSITORY, tag)
        except SourceError as error:
            self.unresolved.append(("commit", f"{error.summary} ({error.found})"))
            return None
        if not found.startswith(prefix):
            raise ChecksumError(
                "upstream's tag is not the commit that the sdist was made from",
                file=f"{REPOSITORY}, tag {tag}",
                expected=f"{prefix}…, as the sdist says",
                found=found,
                next_command="find out which of the two is wrong before any build",
            )
        return found

    def image(self, key: str, ref: str, known: Iterable[ImagePin]) -> ImagePin:
        pin = ImagePin(ref=ref)
        try:
            resolved = self.sources.resolve_image(pin)
        except BuildError as error:
            same = next((old for old in known if old.ref == ref and old.digest), None)
            if same is not None:
                return same
            self.unresolved.append((key, f"{error.summary} ({error.found})"))
            return pin
        there = {p: f"sha256:{d}" for p, d in resolved.platforms.items() if p in PLATFORMS}
        return ImagePin(ref=ref, digest=f"sha256:{resolved.digest}", platforms=there)


def resolve(
    version: str, old: Line, lock: UpstreamLock, tree: SdistTree, sources: Sources
) -> NewLine:
    """Return the line of a release.

    Args:
        version: the release.
        old: the line that the series comes from; gives what is no pin (architectures, paths).
        lock: the other lines; where one pins a base image's very tag, its digest is taken.
        tree: the release's sdist.
        sources: where pins are asked for.

    Raises:
        SourceError: if the index has no such release, or the sdist has an unknown form.
        ChecksumError: if upstream's tag is not the commit that the sdist names.
    """
    listed = sources.release_files(version)
    facts = release_facts.read(tree)
    sdist = FilePin(name=f"{releases.PROJECT}-{version}.tar.gz", sha256=tree.sha256)
    uploaded = next((file.uploaded for file in listed if file.name == sdist.name), None)
    if uploaded is None:
        raise SourceError(
            "the package index does not say when the release was uploaded",
            file=sdist.name,
            expected="an upload time (PEP 700), the default of SOURCE_DATE_EPOCH",
            found="none",
            next_command="python -m pip config list",
        )
    ask = _Resolver(sources, [])
    wheels = _wheels(listed)
    ask.unresolved += [
        (f"wheels.{platform}", "the index has no one wheel for it")
        for platform in PLATFORMS
        if platform not in wheels
    ]
    image = None
    if old.image is not None:
        ref = f"{old.image.repository}:v{version}"
        image = ask.image("image", ref, ())
    pinned = [pin for line in lock.lines.values() for pin in line.bases.values()]
    bases = {name: ask.image(f"bases.{name}", ref, pinned) for name, ref in facts.bases.items()}
    line = Line(
        summary=f"vLLM {version}, carried over from {old.tag}",
        version=version,
        revision=1,
        tag=f"v{version}",
        commit_prefix=facts.commit_prefix,
        commit=ask.commit(f"v{version}", facts.commit_prefix),
        released=uploaded.astimezone(dt.UTC).replace(microsecond=0),
        torch=facts.torch,
        flashinfer=facts.flashinfer,
        cuda=facts.cuda,
        python=facts.python,
        cuda_archs=old.cuda_archs,
        site_packages=old.site_packages.replace(f"python{old.python}", f"python{facts.python}"),
        sdist=sdist,
        wheels=wheels,
        dockerfile=DockerfilePin(path=release_facts.DOCKERFILE, sha256=facts.dockerfile),
        image=image,
        bases=bases,
    )
    return NewLine(line, tuple(ask.unresolved))


def _plain(value: object) -> object:
    """Return a value without what is absent or empty."""
    if isinstance(value, dict):
        cleaned = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item not in (None, {})}
    return value


def as_toml(line: Line) -> str:
    """Return a line's tables for the end of `upstream.lock`."""
    import tomli_w  # noqa: PLC0415  (only for writing)

    document = _plain(msgspec.to_builtins(line, builtin_types=(dt.datetime,)))
    return "\n" + tomli_w.dumps({"lines": {line.tag: document}})


def metadata(data: bytes, result: Carried, old: Line) -> bytes:
    """Return a patch's metadata for the new line: the evidence says what it was taken on.

    Nothing is claimed on the new release: each `verified` becomes `unverified` until it is shown
    there, and what was measured before stays, with the versions that it was measured on.
    """
    import tomlkit  # noqa: PLC0415  (keeps comments; only needed here)

    document = tomlkit.parse(data.decode())
    for entry in document.get("evidence", []):
        if "inputs" not in entry:
            inputs = tomlkit.inline_table()
            for name in ("vllm", "torch", "flashinfer", "cuda"):
                inputs.add(name, old.version if name == "vllm" else getattr(old, name))
            inputs.add("patch", result.old.text.sha256)
            entry.add("inputs", inputs)
    hardware = document["hardware"]
    for name in list(hardware):
        hardware[name] = "unverified"
    return tomlkit.dumps(document).encode()


def series_file(
    source: str, version: str, results: Iterable[Carried], missing: Iterable[str]
) -> bytes:
    """Return the new line's series: the order, and in comments what is not in it and why.

    Args:
        source: the line that it was carried over from.
        version: the new line's version.
        results: what became of each patch.
        missing: the patches that are pending in the old line already.
    """
    lines = [f"# carried over from {source} by `python build.py bump {version}`"]
    lines += [f"# missing: {name}: pending in {source}" for name in missing]
    for result in results:
        if result.decision in ("left out", "pending"):
            reason = " ".join(result.reason.split())
            lines.append(
                f"# {result.decision}: {result.old.name}: {result.outcome} in {version}: {reason}"
            )
    lines += [result.old.name for result in results if result.new is not None]
    return "".join(f"{line}\n" for line in lines).encode()
