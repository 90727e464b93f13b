"""Refreshing pins: what index, release, repository and registry say now.

Content that is pinned never moves: another digest for a pinned file is an error, not a difference.
A tag can move, and then the difference is shown. What does not answer is listed, and its pin stays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from imagebuild.errors import BuildError, ChecksumError
from imagebuild.fetch import release_facts
from imagebuild.upstream import PLATFORMS, REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagebuild.fetch.sources import Sources
    from imagebuild.fetch.tree import Tree
    from imagebuild.upstream import ImagePin, Line, Platform

_TAGS: dict[Platform, str] = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


@dataclass(frozen=True)
class Difference:
    """One pin that is not what its source says now.

    Attributes:
        key: where it stands below the line, such as `("image", "digest")`.
        old: the present value; None if absent.
        new: what the source says.
        source: who says so.
    """

    key: tuple[str, ...]
    old: Any
    new: Any
    source: str


@dataclass
class Refreshed:
    """What came of one line.

    Attributes:
        line: its name.
        differences: what `--write` takes over.
        unresolved: the key and the reason of every pin whose source did not answer.
    """

    line: str
    differences: list[Difference] = field(default_factory=list)
    unresolved: list[tuple[str, str]] = field(default_factory=list)

    def compare(self, key: tuple[str, ...], old: object, new: object, source: str) -> None:
        """Note a difference between a pin and its source, if there is one."""
        if old != new:
            self.differences.append(Difference(key, old, new, source))

    def attempt(self, key: str, action: Callable[[], None]) -> None:
        """Run `action`; if its source does not answer, note that and go on."""
        try:
            action()
        except ChecksumError:
            raise
        except BuildError as error:
            self.unresolved.append((key, f"{error.summary} ({error.found})"))


def _content_pin(what: str, pinned: str, found: str, source: str) -> None:
    if pinned != found:
        raise ChecksumError(
            "pinned content is not what its source says",
            file=f"upstream.lock, {what}",
            expected=pinned,
            found=f"{found} ({source})",
            next_command="find out which of the two is wrong before any build",
        )


def _index(line: Line, sources: Sources, out: Refreshed) -> None:
    listed = {file.name: file for file in sources.release_files(line.version)}
    source = "the package index"
    sdist = listed.get(line.sdist.name)
    if sdist is not None and sdist.sha256 is not None:
        _content_pin(f"{out.line} sdist", line.sdist.sha256, sdist.sha256, source)
    if sdist is not None and sdist.uploaded is not None:
        uploaded = sdist.uploaded.replace(microsecond=0)
        out.compare(("released",), line.released, uploaded, source)
    for platform, tag in _TAGS.items():
        wheels = [f for f in listed.values() if f.name.endswith(f"{tag}.whl") and f.sha256]
        pin = line.wheels.get(platform)
        if pin is not None:
            match = listed.get(pin.name)
            if match is not None and match.sha256 is not None:
                _content_pin(f"{out.line} wheel {platform}", pin.sha256, match.sha256, source)
        elif len(wheels) == 1:
            out.compare(("wheels", platform, "name"), None, wheels[0].name, source)
            out.compare(("wheels", platform, "sha256"), None, wheels[0].sha256, source)


def _release(line: Line, tree: Tree, out: Refreshed) -> None:
    facts = release_facts.read(tree)
    source = tree.label
    _content_pin(f"{out.line} dockerfile", line.dockerfile.sha256, facts.dockerfile, source)
    if not facts.commit_prefix.startswith(line.commit_prefix[: len(facts.commit_prefix)]):
        _content_pin(f"{out.line} commit-prefix", line.commit_prefix, facts.commit_prefix, source)
    for name in ("torch", "flashinfer", "cuda", "python"):
        out.compare((name,), getattr(line, name), getattr(facts, name), source)
    for name, ref in facts.bases.items():
        old = line.bases.get(name)
        out.compare(("bases", name, "ref"), None if old is None else old.ref, ref, source)


def _commit(line: Line, sources: Sources, out: Refreshed) -> None:
    found = sources.remote_tag(REPOSITORY, line.tag)
    if not found.startswith(line.commit_prefix):
        raise ChecksumError(
            "upstream's tag is not the commit that the sdist was made from",
            file=f"upstream.lock, {out.line} commit-prefix",
            expected=f"{line.commit_prefix}…",
            found=f"{found} at {REPOSITORY}, tag {line.tag}",
            next_command="find out which of the two is wrong before any build",
        )
    out.compare(("commit",), line.commit, found, f"{REPOSITORY} {line.tag}")


def _image(key: tuple[str, ...], pin: ImagePin, sources: Sources, out: Refreshed) -> None:
    resolved = sources.resolve_image(pin)
    out.compare((*key, "digest"), pin.digest, f"sha256:{resolved.digest}", pin.ref)
    for platform in PLATFORMS:
        new = resolved.platforms.get(platform)
        if new is not None:
            old = pin.platforms.get(platform)
            out.compare((*key, "platforms", platform), old, f"sha256:{new}", pin.ref)


def refresh(name: str, line: Line, sources: Sources) -> Refreshed:
    """Return what is different now for one line.

    Raises:
        ChecksumError: if pinned content is not what its source says.
        SourceError: if the release itself cannot be had.
    """
    out = Refreshed(name)
    if sources.offline:
        out.unresolved.append(("index, commit, images", "--offline"))
        _release(line, sources.sdist(line), out)
        return out
    out.attempt("index", lambda: _index(line, sources, out))
    _release(line, sources.sdist(line), out)
    out.attempt("commit", lambda: _commit(line, sources, out))
    images: list[tuple[tuple[str, ...], ImagePin]] = [
        (("bases", base), pin) for base, pin in line.bases.items()
    ]
    if line.image is not None:
        images.insert(0, (("image",), line.image))
    for key, pin in images:
        out.attempt(".".join(key), functools.partial(_image, key, pin, sources, out))
    return out


def apply(document: Any, results: list[Refreshed]) -> None:  # noqa: ANN401  (tomlkit's)
    """Write the differences into a tomlkit document of `upstream.lock`, comments kept."""
    for result in results:
        for difference in result.differences:
            table = document["lines"][result.line]
            for part in difference.key[:-1]:
                if part not in table:
                    table[part] = {}
                table = table[part]
            table[difference.key[-1]] = difference.new
