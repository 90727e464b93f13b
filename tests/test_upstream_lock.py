"""`upstream.lock`: what it takes and what it refuses."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path

import pytest

from imagebuild import upstream
from imagebuild.errors import LockError, UnpinnedError, UsageError
from tests.support import tiny

LOCK = Path("upstream.lock")
ROOT = Path(__file__).parents[1]


def parsed(data: bytes) -> upstream.UpstreamLock:
    return upstream.parse(data, LOCK)


def refused(data: bytes) -> LockError:
    with pytest.raises(LockError) as caught:
        parsed(data)
    assert caught.value.file == "upstream.lock"
    assert caught.value.next_command
    return caught.value


def replaced(old: str, new: str) -> bytes:
    text = tiny.upstream_lock().decode()
    assert old in text
    return text.replace(old, new).encode()


def test_the_tiny_lock_is_read() -> None:
    line = parsed(tiny.upstream_lock()).lines[tiny.LINE]
    assert line.local_version == "1.2.3+sm120.1"
    assert line.wheel("linux/arm64").name == tiny.WHEEL_NAMES["linux/arm64"]


def test_the_projects_own_lock_is_read() -> None:
    lock = upstream.load(ROOT / "upstream.lock")
    assert lock.default in lock.lines


def test_the_release_date_is_the_source_date_epoch() -> None:
    line = parsed(tiny.upstream_lock()).lines[tiny.LINE]
    assert line.source_date_epoch == 1793614376


@pytest.mark.parametrize("name", [None, "v1.2.3", "1.2.3"])
def test_a_line_is_found_by_default_by_name_and_without_its_v(name: str | None) -> None:
    assert parsed(tiny.upstream_lock()).line(name)[0] == "v1.2.3"


@pytest.mark.parametrize("name", ["v9.9.9", "", "-1", "v1.2.3\n"])
def test_an_unknown_line_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="no line") as caught:
        parsed(tiny.upstream_lock()).line(name)
    assert caught.value.expected == "one of v1.2.3"


def test_an_absent_wheel_says_how_to_pin_it() -> None:
    lock = parsed(tiny.upstream_lock(wheels={}))
    with pytest.raises(UnpinnedError, match="linux/amd64") as caught:
        lock.lines[tiny.LINE].wheel("linux/amd64")
    assert caught.value.next_command == "python build.py lock v1.2.3 --write"


@pytest.mark.parametrize("image", [None, {"ref": "docker.io/vllm/vllm-openai:v1.2.3"}])
def test_an_absent_image_digest_says_how_to_pin_it(image: object) -> None:
    lock = parsed(tiny.upstream_lock(image=image))
    with pytest.raises(UnpinnedError, match="not pinned") as caught:
        lock.lines[tiny.LINE].image_digest("linux/amd64")
    assert caught.value.next_command == "python build.py lock v1.2.3 --write"


def test_a_platforms_own_digest_goes_before_the_indexs() -> None:
    index, amd64 = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    image = {"ref": "r/x:v1", "digest": index, "platforms": {"linux/amd64": amd64}}
    line = parsed(tiny.upstream_lock(image=image)).lines[tiny.LINE]
    assert line.image_digest("linux/amd64") == amd64
    assert line.image_digest("linux/arm64") == index


def test_a_newer_schema_says_so_before_anything_else() -> None:
    error = refused(b'schema = 2\nunheard-of = "key"\n')
    assert "newer schema" in error.summary
    assert (error.expected, error.found) == ("schema = 1", "schema = 2")
    assert error.next_command == "git pull"


@pytest.mark.parametrize("schema", ["0", "true", '"1"', "-1"])
def test_another_schema_is_refused(schema: str) -> None:
    assert "no schema" in refused(replaced("schema = 1", f"schema = {schema}")).summary


def test_a_lock_without_schema_is_refused() -> None:
    assert refused(replaced("schema = 1", "")).found == "no schema"


@pytest.mark.parametrize(
    "key",
    ["version", "revision", "tag", "commit-prefix", "released", "torch", "sdist", "wheels"],
)
def test_a_missing_key_is_named(key: str) -> None:
    error = refused(tiny.upstream_lock(**{key.replace("-", "_"): None}))
    assert key in str(error.found)


def test_an_unknown_key_is_named_with_its_place() -> None:
    error = refused(tiny.upstream_lock(shasum="abc"))
    assert "shasum" in str(error.found)
    assert "lines" in str(error.found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("summary", " "),
        ("version", "1.2.3 "),
        ("version", "1.2.3\n"),
        ("revision", 0),
        ("revision", True),
        ("revision", "1"),
        ("commit_prefix", "xyz"),
        ("commit", "0123456ab"),
        ("released", "2026-11-02"),
        ("released", dt.date(2026, 11, 2)),
        ("python", "2.7"),
        ("python", "3.12\n"),
        ("site_packages", "usr/lib"),
        ("site_packages", "/usr/../lib"),
        ("site_packages", "/usr/lib/"),
        ("site_packages", "/usr/lib\n"),
        ("cuda_archs", {"linux/s390x": "12.0"}),
        ("cuda_archs", {"linux/amd64": "sm_120"}),
        ("cuda_archs", {"linux/amd64": "12.0\n"}),
        ("sdist", {"name": "../vllm-1.2.3.tar.gz", "sha256": "0" * 64}),
        ("sdist", {"name": "vllm-1.2.3.tar.gz\n", "sha256": "0" * 64}),
        ("sdist", {"name": "vllm-1.2.3.tar.gz", "sha256": "0" * 64 + "\n"}),
        ("sdist", {"name": "vllm-1.2.3.tar.gz", "sha256": "A" * 64}),
        ("sdist", {"name": "vllm-1.2.3.tar.gz", "sha256": "0" * 63}),
        ("sdist", {"name": "vllm-1.2.3.tar.gz"}),
        ("image", {"ref": "docker.io/vllm/vllm-openai"}),
        ("image", {"ref": "docker.io/vllm/vllm-openai:v1", "digest": "0" * 64}),
        ("image", {"ref": "docker.io/vllm/vllm-openai:v1\n"}),
    ],
)
def test_a_value_of_another_form_is_refused(key: str, value: object) -> None:
    assert "form it must have" in refused(tiny.upstream_lock(**{key: value})).summary


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", "1.2.4"),
        ("tag", "v1.2.4"),
        ("released", dt.datetime(2026, 11, 2, 10, 0, 0)),  # noqa: DTZ001  (that is the point)
        ("released", dt.datetime(1979, 1, 1, tzinfo=dt.UTC)),
        ("commit", "f" * 40),
        ("sdist", {"name": "vllm-1.2.4.tar.gz", "sha256": "0" * 64}),
        ("sdist", {"name": "vllm-1.2.34.tar.gz", "sha256": "0" * 64}),
        ("wheels", {"linux/amd64": {"name": "vllm-1.2.30-x.whl", "sha256": "0" * 64}}),
        ("dockerfile", {"path": "../Dockerfile", "sha256": "0" * 64}),
    ],
)
def test_a_line_that_contradicts_itself_is_refused(key: str, value: object) -> None:
    error = refused(tiny.upstream_lock(**{key: value}))
    assert error.summary == "line v1.2.3 contradicts itself"
    assert key in str(error.found)


def test_a_default_that_is_no_line_is_refused() -> None:
    error = refused(replaced('default = "v1.2.3"', 'default = "v1.2.4"'))
    assert error.found == "v1.2.4"


@pytest.mark.parametrize("default", ["1.2.3", "v1.2", r"v1.2.3\n", "latest"])
def test_a_default_that_is_no_lines_name_is_refused(default: str) -> None:
    assert "default" in str(refused(replaced('default = "v1.2.3"', f'default = "{default}"')).found)


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"a = ", b"a = 1\na = 2\n", b"a = " + b"[" * 100_000, b"a = " + b"9" * 5000],
    ids=["not-utf-8", "cut", "twice", "deep", "endless-number"],
)
def test_what_is_no_toml_is_refused(data: bytes) -> None:
    assert refused(data).summary == "upstream.lock is not TOML"


def test_a_syntax_error_names_its_line() -> None:
    assert "line 2" in str(refused(b"schema = 1\nlines = }\n").found)


def test_a_missing_lock_is_a_lock_error(tmp_path: Path) -> None:
    with pytest.raises(LockError) as caught:
        upstream.load(tmp_path / "upstream.lock")
    assert caught.value.found == "No such file or directory"


def test_a_folder_in_the_locks_place_is_a_lock_error(tmp_path: Path) -> None:
    with pytest.raises(LockError) as caught:
        upstream.load(tmp_path)
    assert caught.value.found == "a folder"


def test_a_pipe_in_the_locks_place_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "upstream.lock")
    with pytest.raises(LockError) as caught:
        upstream.load(tmp_path / "upstream.lock")
    assert caught.value.found == "a pipe"


def test_a_huge_lock_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "upstream.lock"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(LockError) as caught:
        upstream.load(path)
    assert re.fullmatch(r"\d+ bytes", str(caught.value.found))
