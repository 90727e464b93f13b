"""`checksums.lock`: the digest of every patch and overlay file, and of every file they produce.

The tool writes it (`build.py lock --write`, `build.py export`); it is read and compared before
anything is applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from imagebuild import schema
from imagebuild.digest import Sha256, sha256_bytes
from imagebuild.errors import ChecksumError, LockError
from imagebuild.schema import Hash, Text, Value

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.patching.series import Series
    from imagebuild.upstream import Line

SCHEMA = 1
WHAT = "checksums.lock"
_HEADER = (
    b"# Written by `python build.py lock --write` and `python build.py export`; not by hand.\n\n"
)


class TargetPin(Value, frozen=True):
    """What one patch does to one file, by content.

    Attributes:
        patch: the patch's name.
        path: the file's path in the tree.
        before: the file's digest when the patch's turn comes.
        after: its digest when the patch is in.
    """

    patch: Text
    path: Text
    before: Hash
    after: Hash


class LineChecksums(Value, frozen=True):
    """The digests of one line.

    Attributes:
        version: the local version that the produced files carry.
        sdist: the sdist on which they were derived.
        patchset: one digest over the series, its patches and overlay files.
        patches: each file of `patches/<line>/` but the series.
        overlay: each overlay file by its path in the tree.
        targets: each patch's files, in series order.
        produced: every file that differs from upstream's, as it is in the end.
    """

    version: Text
    sdist: Hash
    patchset: Hash
    patches: dict[str, Hash]
    overlay: dict[str, Hash]
    targets: tuple[TargetPin, ...]
    produced: dict[str, Hash]


class Checksums(Value, frozen=True):
    """The whole file."""

    schema: int
    lines: dict[str, LineChecksums] = msgspec.field(default_factory=dict)

    def line(self, name: str) -> LineChecksums:
        """Return the digests of a line.

        Raises:
            ChecksumError: if the line has none yet.
        """
        if name not in self.lines:
            raise ChecksumError(
                f"line {name} has no checksums",
                file=WHAT,
                expected=f'[lines."{name}"]',
                found=", ".join(self.lines) or "no lines",
                next_command=f"python build.py lock {name} --write",
            )
        return self.lines[name]


def _contradictions(line: LineChecksums) -> list[str]:
    found = []
    state: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    for pin in line.targets:
        where = f"target {pin.path} of {pin.patch}"
        if (pin.patch, pin.path) in seen:
            found.append(f"{where} stands twice")
        if f"{pin.patch}.patch" not in line.patches:
            found.append(f"{where} is of no known patch")
        if pin.before != state.get(pin.path, pin.before):
            found.append(f"{where} does not start where the patch before it ended")
        if pin.before == pin.after:
            found.append(f"{where} changes nothing")
        seen.add((pin.patch, pin.path))
        state[pin.path] = pin.after
    found += [
        f"{path} ends as {digest[:12]} and is produced as {line.produced.get(path, 'nothing')[:12]}"
        for path, digest in state.items()
        if line.produced.get(path) != digest
    ]
    return found


def parse(data: bytes, path: Path) -> Checksums:
    """Return the lock that `data` holds; `path` is for messages.

    Raises:
        LockError: on anything but a well-formed lock of this schema.
    """
    document = schema.parse_toml(data, path, WHAT)
    schema.check_schema(document, SCHEMA, path, WHAT)
    lock = schema.convert(document, Checksums, path, WHAT)
    for name, line in lock.lines.items():
        contradictions = _contradictions(line)
        if contradictions:
            raise LockError(
                f"the checksums of line {name} contradict themselves",
                file=path,
                expected="what the tool wrote: each target once, each file's digests in a chain",
                found="; ".join(contradictions),
                next_command=f"python build.py lock {name} --write",
            )
    return lock


def load(path: Path) -> Checksums:
    """Return the lock in the file `path`.

    Raises:
        LockError: on anything but a well-formed lock of this schema.
    """
    return parse(schema.read_bytes(path, WHAT), path)


def dump(checksums: Checksums) -> bytes:
    """Return the lock as bytes; the same value gives the same bytes."""
    import tomli_w  # noqa: PLC0415  (only for writing)

    document = msgspec.to_builtins(checksums, order="deterministic")
    for line in document["lines"].values():
        line["targets"] = list(line["targets"])
    return _HEADER + tomli_w.dumps(document).encode()


def patch_files(series: Series) -> dict[str, Sha256]:
    """Return the digest of each patch and metadata file of a series, by file name."""
    found: dict[str, Sha256] = {}
    for patch in series.patches:
        found[f"{patch.name}.patch"] = patch.text.sha256
        found[f"{patch.name}.toml"] = patch.meta_sha256
    return found


def patchset_sha256(series: Series) -> Sha256:
    """Return one digest over what a series does to a tree.

    It covers the line's name, the order, each patch's content and each overlay file's; not the
    metadata, which changes no artifact.
    """
    text = [f"line {series.line}\n"]
    text += [f"patch {patch.name} {patch.text.sha256}\n" for patch in series.patches]
    text += [
        f"overlay {path} {sha256_bytes(series.overlay[path])}\n" for path in sorted(series.overlay)
    ]
    return sha256_bytes("".join(text).encode())


def check_line(pins: LineChecksums, line: Line) -> None:
    """Compare the pins that a line's checksums were derived on with the line itself.

    Raises:
        ChecksumError: if they were derived for another version or on another sdist.
    """
    for what, pinned, found in (
        ("version", pins.version, line.local_version),
        ("sdist", pins.sdist, line.sdist.sha256),
    ):
        if pinned != found:
            raise ChecksumError(
                f"the checksums of line {line.tag} were made for another {what}",
                file=WHAT,
                expected=f"{what} {found}, as in upstream.lock",
                found=f"{what} {pinned}",
                next_command=f"python build.py lock {line.tag} --write",
            )


def check_inputs(pins: LineChecksums, series: Series) -> None:
    """Compare a series' files with the lock.

    Raises:
        ChecksumError: naming the first file that is new, gone or has another digest.
    """
    overlay = {path: sha256_bytes(data) for path, data in series.overlay.items()}
    rooms = (
        (f"patches/{series.line}", pins.patches, patch_files(series)),
        (f"overlay/{series.line}", pins.overlay, overlay),
    )
    for room, pinned, found in rooms:
        for name in sorted({*pinned, *found}):
            if pinned.get(name) == found.get(name):
                continue
            raise ChecksumError(
                "a patch or overlay file is not the one in the lock",
                file=f"{room}/{name}",
                expected=f"sha256 {pinned[name]}" if name in pinned else "no such file",
                found=f"sha256 {found[name]}" if name in found else "no such file",
                next_command=f"git diff -- {room} {WHAT}   (meant? python build.py lock "
                f"{series.line} --write)",
            )
    if pins.patchset != patchset_sha256(series):
        raise ChecksumError(
            "the order of the series is not the one in the lock",
            file=f"patches/{series.line}/series",
            expected=f"patchset {pins.patchset}",
            found=f"patchset {patchset_sha256(series)}",
            next_command=f"git diff -- patches/{series.line}/series",
        )
