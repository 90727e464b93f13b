"""Showing by execution that every drop-when is false where the patch is needed, and true after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from imagebuild.errors import BuildError, LockError, UpstreamedError
from imagebuild.patching import dropwhen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.metadata import DropWhen
    from imagebuild.patching.series import Patch

_TELLING = 16
"""Characters; a shorter text that a drop-when waits for is called weak."""


class Check(msgspec.Struct, frozen=True):
    """One check of a drop-when.

    Attributes:
        text: the check, for people.
        asks: what it asks for, the text or the name.
        positive: whether it asks for something that is there, and not for an absence.
        holds: whether it holds on the line's own release.
    """

    text: str
    asks: str
    positive: bool
    holds: bool


class Proof(msgspec.Struct, frozen=True):
    """What a patch's drop-when says on its line's own release.

    Attributes:
        patch: the patch.
        checks: its checks there.
    """

    patch: str
    checks: tuple[Check, ...]

    @property
    def false_on_own(self) -> bool:
        """Whether the whole does not hold where the patch is needed."""
        return not all(check.holds for check in self.checks)

    @property
    def anchors(self) -> tuple[Check, ...]:
        """The checks for something that upstream must have added before the whole can hold."""
        return tuple(check for check in self.checks if check.positive and not check.holds)

    @property
    def weak(self) -> bool:
        """Whether all that it waits for is a word or two, which can come for other reasons."""
        return all(len(check.asks) < _TELLING for check in self.anchors)


def _asks(check: DropWhen) -> str:
    return " ".join((check.contains or check.lacks or check.symbol or "").split())


def _text(check: DropWhen) -> str:
    verb = "contains" if check.contains else "lacks" if check.lacks else "defines"
    return f"{check.file} {verb} {_asks(check)!r}"


def prove(patch: Patch, own: Tree) -> Proof:
    """Return what the checks of `patch` say on its line's own release."""
    return Proof(
        patch.name,
        tuple(
            Check(_text(check), _asks(check), check.lacks is None, dropwhen.holds(check, own))
            for check in patch.meta.drop_when
        ),
    )


def problem(proof: Proof, line: str, label: str) -> BuildError | None:
    """Return what is wrong with a drop-when, or None.

    It must be false on its own line. And something in it must be missing there: if all that it asks
    for is there already, upstream can make it true by rewording alone, with the fault still in.
    """
    file = f"patches/{line}/{proof.patch}.toml"
    edit = f"$EDITOR {file}"
    if not proof.false_on_own:
        return UpstreamedError(
            f"the drop-when of {proof.patch} holds on its own line",
            file=file,
            expected=f"a drop-when that is false on {label}, which needs the patch",
            found="; ".join(check.text for check in proof.checks),
            next_command=edit,
        )
    if not proof.anchors:
        return LockError(
            f"the drop-when of {proof.patch} would hold as soon as upstream rewords the code",
            file=file,
            expected=f"a contains or symbol that {label} does not have: what the fix brings",
            found="only what is there already, and what must go",
            next_command=edit,
        )
    return None


def known_fix(patch: Patch, line: str, held: Mapping[str, bool]) -> tuple[BuildError, ...]:
    """Return where a drop-when contradicts the release that is known to have the fix.

    Args:
        patch: the patch.
        line: its line.
        held: for each release looked at, whether the drop-when holds there.
    """
    from imagebuild.following.releases import parse  # noqa: PLC0415  (kept out of start-up)

    fixed = patch.meta.upstream.merged_in
    if fixed is None:
        return ()
    file = f"patches/{line}/{patch.name}.toml"
    found: list[BuildError] = []
    for release, holds in held.items():
        expected = parse(release) >= parse(fixed)
        if holds != expected:
            what = "does not hold" if expected else "holds"
            found.append(
                LockError(
                    f"the drop-when of {patch.name} {what} on {release}",
                    file=file,
                    expected=f"true from {fixed} on (upstream.merged-in), and false before",
                    found=f"{str(holds).lower()} on {release}",
                    next_command=f"python build.py status --why {patch.name} {release}",
                )
            )
    return tuple(found)
