"""`checksums.lock`: written by the tool, compared before anything is applied."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from imagebuild.errors import ChecksumError, LockError
from imagebuild.patching import checksums
from imagebuild.patching.checksums import Checksums, LineChecksums, TargetPin
from tests.support import tiny

LOCK = Path("checksums.lock")
A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "project")


@pytest.fixture(scope="module")
def pins(project: tiny.Tiny) -> LineChecksums:
    return project.pins


def line(**changed: object) -> LineChecksums:
    values: dict[str, object] = {
        "version": "1.2.3+sm120.1",
        "sdist": A,
        "patchset": A,
        "patches": {"one.patch": A, "one.toml": A, "two.patch": A, "two.toml": A},
        "overlay": {},
        "targets": (
            TargetPin(patch="one", path="vllm/x.py", before=A, after=B),
            TargetPin(patch="two", path="vllm/x.py", before=B, after=C),
        ),
        "produced": {"vllm/x.py": C},
    }
    return LineChecksums(**{**values, **changed})  # type: ignore[arg-type]


def dumped(entry: LineChecksums) -> bytes:
    return checksums.dump(Checksums(schema=1, lines={"v1.2.3": entry}))


def refused(data: bytes) -> LockError:
    with pytest.raises(LockError) as caught:
        checksums.parse(data, LOCK)
    assert caught.value.file == "checksums.lock"
    assert caught.value.next_command
    return caught.value


def test_what_is_written_is_read_back(project: tiny.Tiny) -> None:
    lock = checksums.load(project.project.checksums_lock)
    assert checksums.parse(checksums.dump(lock), LOCK) == lock


def test_the_same_value_gives_the_same_bytes_in_any_order_of_keys() -> None:
    one, other = line(), line(patches=dict(reversed(line().patches.items())))
    assert one == other
    assert dumped(one) == dumped(other)


def test_the_lock_says_at_its_top_that_no_hand_writes_it() -> None:
    assert dumped(line()).startswith(b"# Written by `python build.py lock --write`")


def test_the_files_of_the_project_are_those_in_the_lock(project: tiny.Tiny) -> None:
    checksums.check_inputs(project.pins, project.series)
    checksums.check_line(project.pins, project.line)


def test_a_line_without_checksums_says_how_to_make_them() -> None:
    with pytest.raises(ChecksumError, match="no checksums") as caught:
        Checksums(schema=1).line("v1.2.3")
    assert caught.value.next_command == "python build.py lock v1.2.3 --write"


@pytest.mark.parametrize(
    "path",
    [
        "patches/v1.2.3/state-index-bounds.toml",
        "overlay/v1.2.3/vllm/v1/scale_report.py",
    ],
)
def test_a_changed_file_is_named_with_both_digests(tmp_path: Path, path: str) -> None:
    project = tiny.make(tmp_path / "project")
    file = project.project.root / path
    file.write_bytes(file.read_bytes() + b"# more\n")
    with pytest.raises(ChecksumError) as caught:
        checksums.check_inputs(project.pins, project.series)
    assert caught.value.file == path
    assert "sha256" in str(caught.value.expected)
    assert "sha256" in str(caught.value.found)
    assert caught.value.expected != caught.value.found


def test_a_changed_patch_is_named(tmp_path: Path) -> None:
    project = tiny.make(tmp_path / "project")
    file = project.project.patches(tiny.LINE) / "state-index-bounds.patch"
    file.write_bytes(file.read_bytes().replace(b"max(count - 1, 0)", b"max(count - 1, 1)"))
    with pytest.raises(ChecksumError) as caught:
        checksums.check_inputs(project.pins, project.series)
    assert caught.value.file == "patches/v1.2.3/state-index-bounds.patch"


def test_another_order_of_the_series_is_refused(project: tiny.Tiny, pins: LineChecksums) -> None:
    series = project.series
    turned = dataclasses.replace(series, patches=series.patches[::-1])
    with pytest.raises(ChecksumError, match="order"):
        checksums.check_inputs(pins, turned)


def test_a_patch_that_the_lock_does_not_know_is_refused(
    project: tiny.Tiny, pins: LineChecksums
) -> None:
    fewer = {name: digest for name, digest in pins.patches.items() if "clear" not in name}
    with pytest.raises(ChecksumError) as caught:
        checksums.check_inputs(msgspec.structs.replace(pins, patches=fewer), project.series)
    assert caught.value.expected == "no such file"


def test_a_patch_that_only_the_lock_knows_is_refused(
    project: tiny.Tiny, pins: LineChecksums
) -> None:
    more = {**pins.patches, "gone.patch": A}
    with pytest.raises(ChecksumError) as caught:
        checksums.check_inputs(msgspec.structs.replace(pins, patches=more), project.series)
    assert caught.value.file == "patches/v1.2.3/gone.patch"
    assert caught.value.found == "no such file"


@pytest.mark.parametrize(("what", "value"), [("version", "1.2.3+sm120.2"), ("sdist", A)])
def test_checksums_made_for_another_line_are_refused(
    project: tiny.Tiny, pins: LineChecksums, what: str, value: str
) -> None:
    with pytest.raises(ChecksumError, match=f"another {what}"):
        checksums.check_line(msgspec.structs.replace(pins, **{what: value}), project.line)


def test_metadata_do_not_change_the_patch_sets_digest(project: tiny.Tiny) -> None:
    series = project.series
    other = tuple(dataclasses.replace(p, meta_sha256=p.text.sha256) for p in series.patches)
    assert checksums.patchset_sha256(series) == checksums.patchset_sha256(
        dataclasses.replace(series, patches=other)
    )


@pytest.mark.parametrize(
    "change", [{"line": "v1.2.4"}, {"patches": ()}, {"overlay": {}}, {"overlay": {"vllm/a": b""}}]
)
def test_everything_that_changes_artifacts_changes_the_patch_sets_digest(
    project: tiny.Tiny, change: dict[str, object]
) -> None:
    series = project.series
    changed = dataclasses.replace(series, **change)  # type: ignore[arg-type]
    assert checksums.patchset_sha256(series) != checksums.patchset_sha256(changed)


def test_a_sound_chain_is_read() -> None:
    assert checksums.parse(dumped(line()), LOCK).lines["v1.2.3"] == line()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"targets": line().targets[::-1]}, "does not start where"),
        ({"targets": (line().targets[0],) * 2, "produced": {"vllm/x.py": B}}, "twice"),
        ({"patches": {"two.patch": A, "two.toml": A}}, "of no known patch"),
        ({"produced": {}}, "produced as nothing"),
        ({"produced": {"vllm/x.py": B}}, "ends as cccccccccccc"),
        (
            {
                "targets": (TargetPin(patch="one", path="vllm/x.py", before=A, after=A),),
                "produced": {"vllm/x.py": A},
            },
            "changes nothing",
        ),
    ],
)
def test_a_chain_that_contradicts_itself_is_refused(
    broken: dict[str, object], message: str
) -> None:
    error = refused(dumped(line(**broken)))
    assert message in str(error.found)


def test_a_newer_schema_says_so() -> None:
    assert "newer schema" in refused(b"schema = 7\n").summary


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sdist = ", "sdists = "),
        (f'sdist = "{A}"', 'sdist = "abc"'),
        (f'sdist = "{A}"', f'sdist = "{A}\\n"'),
        ("before = ", "b4 = "),
    ],
)
def test_a_key_or_value_of_another_form_is_refused(old: str, new: str) -> None:
    data = dumped(line()).decode()
    assert old in data
    assert "form it must have" in refused(data.replace(old, new).encode()).summary
