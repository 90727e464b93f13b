"""Evidence stands on versions; when they change it expires, and nothing is claimed by it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from imagebuild import upstream
from imagebuild.digest import Sha256
from imagebuild.errors import LockError
from imagebuild.fetch.release_facts import ReleaseFacts
from imagebuild.following import skew
from imagebuild.patching import metadata
from tests.support import patching, tiny

if TYPE_CHECKING:
    from imagebuild.patching.series import Patch

LINE = upstream.parse(tiny.upstream_lock(), Path("upstream.lock")).lines[tiny.LINE]


def patch(*entries: dict[str, Any], cpu: str = "verified") -> Patch:
    evidence = [
        {
            "hardware": "cpu",
            "what": "the test",
            "on": "a CPU",
            "when": dt.date(2026, 11, 4),
            **entry,
        }
        for entry in entries
    ]
    hardware = {"cpu": cpu, "sm90": "unverified", "sm120": "unverified"}
    return patching.series(tiny.BOUNDS, evidence=evidence, hardware=hardware).patches[0]


def test_evidence_beside_its_line_needs_no_versions() -> None:
    assert skew.witness(patch({}), LINE, "cpu") == "verified"


def test_evidence_with_the_present_versions_stands() -> None:
    found = patch({"inputs": {"vllm": "1.2.3", "torch": "2.14.0", "cuda": "13.0.3"}})
    assert skew.witness(found, LINE, "cpu") == "verified"
    assert skew.expired(found, LINE) == {}


@pytest.mark.parametrize(
    ("what", "old"),
    [("vllm", "1.2.0"), ("torch", "2.13.0"), ("flashinfer", "0.6.0"), ("cuda", "12.9.1")],
)
def test_evidence_expires_with_each_of_its_inputs(what: str, old: str) -> None:
    found = patch({"inputs": {what: old}})
    assert skew.witness(found, LINE, "cpu").startswith("unverified since")
    (change,) = skew.expired(found, LINE)["cpu"]
    assert (change.what, change.old) == (what, old)


def test_evidence_expires_with_the_patch_itself() -> None:
    found = patch({"inputs": {"patch": "0" * 64}})
    assert skew.witness(found, LINE, "cpu") == "unverified since 2026-11-04"


def test_expired_evidence_names_the_release_that_it_was_taken_on() -> None:
    found = patch({"inputs": {"vllm": "1.2.0"}})
    assert skew.witness(found, LINE, "cpu") == "unverified since 1.2.0"


def test_new_evidence_takes_the_place_of_what_expired() -> None:
    assert skew.witness(patch({"inputs": {"vllm": "1.2.0"}}, {}), LINE, "cpu") == "verified"


def test_what_was_never_shown_is_plainly_unverified() -> None:
    assert skew.witness(patch({}), LINE, "sm120") == "unverified"


def test_evidence_never_outweighs_a_statement_of_unverified() -> None:
    assert skew.witness(patch({}, cpu="unverified"), LINE, "cpu") == "unverified"


def test_pins_that_a_release_has_otherwise_are_named() -> None:
    facts = ReleaseFacts("0" * 9, "2.15.0", LINE.flashinfer, "13.1.0", "3.12", Sha256("0" * 64), {})
    assert [str(s) for s in skew.pins(LINE, facts)] == [
        "torch 2.14.0 -> 2.15.0",
        "cuda 13.0.3 -> 13.1.0",
    ]


def test_unknown_inputs_are_an_error() -> None:
    with pytest.raises(LockError):
        metadata.parse(
            tiny.metadata(
                evidence=[
                    {
                        "hardware": "cpu",
                        "what": "x",
                        "on": "y",
                        "when": dt.date(2026, 1, 1),
                        "inputs": {"driver": "580"},
                    }
                ]
            ),
            Path("a.toml"),
        )
