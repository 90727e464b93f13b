"""A drop-when is false where the patch is needed, and nothing but the fix makes it true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from imagebuild.errors import LockError, UpstreamedError
from imagebuild.fetch.tree import MemoryTree
from imagebuild.following import proofs
from imagebuild.patching import apply
from imagebuild.patching.apply import Outcome
from imagebuild.patching.series import Series
from tests.support import mutations, patching, tiny, upstreams
from tests.support.tinytree import TREE

if TYPE_CHECKING:
    from imagebuild.patching.series import Patch

KERNELS = tiny.KERNELS


def patch(*checks: dict[str, str], **upstream: str) -> Patch:
    status = {"status": "pending", **upstream}
    return patching.series(tiny.BOUNDS, drop_when=list(checks), upstream=status).patches[0]


def wrong(*checks: dict[str, str]) -> object:
    proof = proofs.prove(patch(*checks), MemoryTree(TREE))
    return proofs.problem(proof, tiny.LINE, tiny.SDIST_NAME)


def test_a_drop_when_that_waits_for_the_fix_is_proven() -> None:
    assert wrong({"file": KERNELS, "contains": "max(count - 1, 0)"}) is None


def test_a_drop_when_that_holds_on_its_own_line_is_an_error() -> None:
    error = wrong({"file": KERNELS, "symbol": "read_state"})
    assert isinstance(error, UpstreamedError)
    assert "holds on its own line" in error.summary
    assert error.next_command == f"$EDITOR patches/{tiny.LINE}/state-index-bounds.toml"


def test_a_drop_when_that_rewording_alone_makes_true_is_an_error() -> None:
    error = wrong(
        {"file": KERNELS, "symbol": "read_state"}, {"file": KERNELS, "lacks": "column = count - 1"}
    )
    assert isinstance(error, LockError)
    assert "as soon as upstream rewords" in error.summary


def test_a_drop_when_that_waits_for_a_short_word_is_called_weak() -> None:
    weak = proofs.prove(patch({"file": KERNELS, "contains": "max("}), MemoryTree(TREE))
    assert (weak.weak, proofs.problem(weak, tiny.LINE, "x")) == (True, None)
    telling = {"file": KERNELS, "contains": "column = max(count - 1, 0)"}
    assert not proofs.prove(patch(telling), MemoryTree(TREE)).weak


@pytest.mark.parametrize(
    ("held", "errors"),
    [
        ({"1.2.3": False, "1.3.0": False, "1.4.0": True, "1.5.0": True}, []),
        ({"1.4.0": False}, ["does not hold on 1.4.0"]),
        ({"1.3.0": True}, ["holds on 1.3.0"]),
        ({"1.10.0": False}, ["does not hold on 1.10.0"]),
    ],
)
def test_a_known_fix_is_where_the_drop_when_begins_to_hold(
    held: dict[str, bool], errors: list[str]
) -> None:
    merged = patch({"file": KERNELS, "contains": "max("}, **{"merged-in": "1.4.0"})
    found = proofs.known_fix(merged, tiny.LINE, held)
    assert [error.summary.partition("bounds ")[2] for error in found] == errors


def test_without_a_known_fix_nothing_is_expected() -> None:
    plain = patch({"file": KERNELS, "contains": "max("})
    assert proofs.known_fix(plain, tiny.LINE, {"1.4.0": True}) == ()


@pytest.mark.parametrize("name", mutations.NAMES)
def test_no_mutation_of_the_release_looks_like_the_fix(name: str) -> None:
    (fix,) = upstreams.fix().patches
    survivors = [
        mutant.label
        for mutant in mutations.of(fix, MemoryTree(TREE), name)
        if apply.plan(Series(tiny.LINE, (fix,), {}), mutant).reports[0].outcome
        is Outcome.UPSTREAMED
    ]
    assert survivors == []


def test_the_mutations_catch_a_drop_when_that_rewording_makes_true() -> None:
    """The guard fires: without its anchors the same drop-when is fooled."""
    loose = patch(
        {"file": KERNELS, "symbol": "read_state"},
        {"file": KERNELS, "lacks": "column = count - 1\n"},
        {"file": tiny.WORKER, "symbol": "StateCopier"},
        {"file": tiny.WORKER, "lacks": "offset = accepted - 1\n"},
    )
    fooled = {
        name
        for name in mutations.NAMES
        for mutant in mutations.of(loose, MemoryTree(TREE), name)
        if apply.plan(Series(tiny.LINE, (loose,), {}), mutant).reports[0].outcome
        is Outcome.UPSTREAMED
    }
    assert fooled == {"names changed"}


def test_each_mutation_changes_the_release() -> None:
    (fix,) = upstreams.fix().patches
    for name in mutations.NAMES:
        mutants = list(mutations.of(fix, MemoryTree(TREE), name))
        assert mutants, name
        for mutant in mutants:
            assert any(mutant.read(path) != TREE[path] for path in fix.targets), name


def test_the_fix_itself_is_seen() -> None:
    """Otherwise a drop-when that never holds would pass all of the above."""
    (fix,) = upstreams.fix().patches
    fixed = MemoryTree(tiny.BOUNDS.put_in(TREE))
    outcome = apply.plan(Series(tiny.LINE, (fix,), {}), fixed).reports[0].outcome
    assert outcome is Outcome.UPSTREAMED
