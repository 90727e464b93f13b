"""A patch's metadata: what it must say, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuild.errors import LockError
from imagebuild.patching import metadata
from tests.support import tiny

FILE = Path("a.toml")
HTTPS = "https://github.com/vllm-project/vllm/pull/1"


def parsed(**changed: object) -> metadata.Metadata:
    return metadata.parse(tiny.metadata(**changed), FILE)


def refused(data: bytes) -> LockError:
    with pytest.raises(LockError) as caught:
        metadata.parse(data, FILE)
    assert caught.value.file == "a.toml"
    assert caught.value.next_command
    return caught.value


def test_ordinary_metadata_are_read() -> None:
    meta = parsed()
    assert meta.upstream.status == "pending"
    assert meta.hardware == {"cpu": "verified", "sm90": "unverified", "sm120": "unverified"}


def test_an_unknown_key_is_named() -> None:
    assert "summery" in str(refused(tiny.metadata(summery="x")).found)


def test_an_unknown_key_of_a_check_is_named() -> None:
    checks = [{"file": "vllm/a.py", "contain": "x"}]
    assert "contain" in str(refused(tiny.metadata(drop_when=checks)).found)


@pytest.mark.parametrize(
    "key", ["summary", "why", "area", "origin", "upstream", "drop_when", "tests", "hardware"]
)
def test_a_missing_key_is_named(key: str) -> None:
    assert key.replace("_", "-") in str(refused(tiny.metadata(**{key: None})).found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("why", ""),
        ("why", " \n\t"),
        ("summary", ""),
        ("area", "speed"),
        ("origin", {"kind": "copied"}),
        ("origin", {"kind": "port", "links": ["http://example.org"]}),
        ("origin", {"kind": "port", "links": [HTTPS + "\n"]}),
        ("upstream", {"status": "merged"}),
        ("upstream", {"status": "inappropriate", "reason": ""}),
        ("drop_when", []),
        ("tests", []),
        ("tests", ["test_it"]),
        ("tests", ["tests/patched/test_a.py::test_it\n"]),
        ("hardware", {"cpu": "yes", "sm90": "unverified", "sm120": "unverified"}),
        ("hardware", {"sm100": "verified"}),
    ],
)
def test_a_value_of_another_form_is_refused(key: str, value: object) -> None:
    assert "form it must have" in refused(tiny.metadata(**{key: value})).summary


CONTRADICTIONS: list[tuple[dict[str, object], str]] = [
    ({"summary": "one\ntwo"}, "more than one line"),
    ({"origin": {"kind": "backport"}}, "without origin.links"),
    ({"upstream": {"status": "submitted"}}, "without upstream.ref"),
    ({"upstream": {"status": "backport"}}, "without upstream.ref"),
    ({"upstream": {"status": "denied", "ref": HTTPS}}, "without upstream.reason"),
    ({"upstream": {"status": "inappropriate"}}, "without upstream.reason"),
    ({"drop_when": [{"file": "vllm/a.py"}]}, "0 of contains, lacks, symbol"),
    (
        {"drop_when": [{"file": "vllm/a.py", "contains": "a", "symbol": "b"}]},
        "2 of contains, lacks, symbol",
    ),
    ({"drop_when": [{"file": "/etc/passwd", "contains": "root"}]}, "no path of the tree"),
    ({"drop_when": [{"file": "a/../../b", "contains": "x"}]}, "no path of the tree"),
    ({"drop_when": [{"file": "vllm/a.py", "symbol": "a b"}]}, "no Python name"),
    ({"drop_when": [{"file": "vllm/a.py", "symbol": "a..b"}]}, "no Python name"),
    ({"drop_when": [{"file": "csrc/a.cu", "symbol": "a"}]}, "no Python name"),
    ({"drop_when": [{"file": "vllm/a.py", "lacks": "a"}]}, "lacks without a contains or symbol"),
    (
        {
            "drop_when": [
                {"file": "vllm/a.py", "lacks": "a"},
                {"file": "vllm/b.py", "contains": "b"},
            ]
        },
        "drop-when on vllm/a.py: lacks without",
    ),
    ({"hardware": {"cpu": "verified"}}, "hardware.sm120 is not stated"),
    ({"evidence": []}, "hardware.cpu = 'verified' without evidence"),
    (
        {"hardware": {"cpu": "verified", "sm90": "unverified", "sm120": "verified"}},
        "hardware.sm120 = 'verified' without evidence taken there",
    ),
    ({"kill_switch": {"effect": "off"}}, "exactly one of variable, option"),
    (
        {"kill_switch": {"effect": "off", "variable": "A", "option": "--a"}},
        "exactly one of variable, option",
    ),
    ({"overlay": ["../a.py"]}, "overlay names no path"),
    ({"overlay": ["vllm//a.py"]}, "overlay names no path"),
    ({"overlay": [".git/config"]}, "overlay names no path"),
]


@pytest.mark.parametrize(("changed", "message"), CONTRADICTIONS)
def test_a_contradiction_is_named(changed: dict[str, object], message: str) -> None:
    error = refused(tiny.metadata(**changed))
    assert error.summary == "patch metadata contradicts itself"
    assert message in str(error.found)


def test_all_contradictions_are_named_at_once() -> None:
    error = refused(tiny.metadata(summary="a\nb", overlay=["../a"]))
    assert str(error.found).count(";") == 1


def test_lacks_beside_a_contains_on_the_same_file_is_read() -> None:
    checks = [{"file": "vllm/a.py", "lacks": "a"}, {"file": "vllm/a.py", "contains": "b"}]
    assert len(parsed(drop_when=checks).drop_when) == 2


@pytest.mark.parametrize(
    "path", ["vllm/a.py", "a", "vllm/ünïcode.py", "a b/c", "vllm/.github/x", "vllm/...", "a/.b"]
)
def test_a_plain_path_is_one_of_the_tree(path: str) -> None:
    assert metadata.is_tree_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "/a",
        "//a",
        "a/..",
        "../a",
        "a/../b",
        "./a",
        "a/./b",
        "a//b",
        "a/",
        "a\\b",
        "a\nb",
        "a\0b",
        "a\x1b[2J",
        "a\udcffb",
        ".git/config",
        "vllm/.GIT/hooks/post-checkout",
    ],
)
def test_a_path_that_leads_elsewhere_is_none_of_the_tree(path: str) -> None:
    assert not metadata.is_tree_path(path)
