"""Downloads: what arrives is what is pinned, and nothing that arrived is fetched twice."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imagebuild.errors import ChecksumError, SourceError
from imagebuild.fetch import download
from imagebuild.fetch.cache import Cache
from imagebuild.upstream import FilePin
from tests.support.simple_index import HTML, JSON, Fault, Sleeps, closed_port, configure, serving
from tests.support.watching import Watching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.simple_index import SimpleIndex

NAME = "vllm-1.2.3.tar.gz"
CONTENT = random.Random(7).randbytes(1_000_000)  # noqa: S311
PIN = FilePin(name=NAME, sha256=hashlib.sha256(CONTENT).hexdigest())
ROOT = Path(__file__).parents[1]
PYTHON = sys.executable


@pytest.fixture(autouse=True)
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare 0.3 s for asking pip: its variables count alone then. Child processes do ask it."""
    monkeypatch.setattr(sys, "executable", "/bin/false")


@pytest.fixture
def index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleIndex]:
    with serving(kind=getattr(request, "param", HTML)) as server:
        server.files = {NAME: CONTENT}
        configure(monkeypatch, index_url=server.url)
        yield server


with_and_without_sizes = pytest.mark.parametrize("index", [JSON, HTML], indirect=True)
with_sizes = pytest.mark.parametrize("index", [JSON], indirect=True)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


def fetch(cache: Cache, sleeps: Sleeps, watching: Watching | None = None) -> Path:
    return download.fetch(PIN, cache, watching or Watching(), patience=sleeps.patience())


def part(cache: Cache) -> Path:
    return cache.root / "blobs" / "sha256" / f"{PIN.sha256}.part"


def blobs(cache: Cache) -> list[str]:
    return sorted(path.name for path in (cache.root / "blobs" / "sha256").iterdir())


def ranges(index: SimpleIndex) -> list[str | None]:
    return [asked.headers.get("Range") for asked in index.file_requests]


@with_and_without_sizes
def test_a_file_comes_from_the_index_once_and_then_from_the_cache(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    watching = Watching()
    path = fetch(cache, sleeps, watching)
    assert path.read_bytes() == CONTENT
    assert watching.steps == [("download", NAME, len(CONTENT))]
    assert watching.done == [len(CONTENT)]
    asked = len(index.asked)
    assert fetch(cache, sleeps) == path
    assert len(index.asked) == asked
    assert blobs(cache) == [PIN.sha256]


@with_and_without_sizes
def test_content_with_the_wrong_hash_is_an_error_and_is_not_kept(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    wrong = b"X" + CONTENT[1:]
    index.faults = [Fault(body=wrong)]
    with pytest.raises(ChecksumError, match="not what is pinned") as caught:
        fetch(cache, sleeps)
    assert caught.value.file == f"http://{index.host}/files/{NAME}"
    assert caught.value.expected == f"sha256:{PIN.sha256}"
    assert caught.value.found == f"sha256:{hashlib.sha256(wrong).hexdigest()}"
    assert caught.value.next_command == "python build.py lock"
    assert blobs(cache) == []
    assert fetch(cache, sleeps).read_bytes() == CONTENT


def test_an_index_that_states_another_hash_is_an_error_before_anything_is_downloaded(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.stated = {NAME: "0" * 64}
    with pytest.raises(ChecksumError, match="states another digest"):
        fetch(cache, sleeps)
    assert index.file_requests == []
    assert blobs(cache) == []


@with_and_without_sizes
def test_a_cut_connection_is_taken_up_where_it_was_cut(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(cut=400_000), Fault(cut=300_000)]
    watching = Watching()
    assert fetch(cache, sleeps, watching).read_bytes() == CONTENT
    first, second, third = ranges(index)
    assert first is None
    assert second is not None
    assert third is not None
    assert 300_000 < int(second[6:-1]) <= 400_000
    assert 600_000 < int(third[6:-1]) <= 700_000
    assert index.file_requests[1].headers["If-Range"].startswith('"')
    assert watching.done[-1] == len(CONTENT)
    assert sleeps == [0.5, 0.5]
    assert blobs(cache) == [PIN.sha256]


@with_sizes
def test_a_body_shorter_than_the_index_says_is_taken_up_even_if_the_server_calls_it_whole(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(body=CONTENT[:500_000], length=False)]
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert ranges(index) == [None, "bytes=500000-"]


@with_and_without_sizes
def test_a_server_that_cuts_without_end_is_given_up_and_the_next_run_goes_on(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(cut=400_000), *[Fault(cut=0)] * 2]
    with pytest.raises(SourceError, match="no network"):
        fetch(cache, sleeps)
    kept = part(cache).stat().st_size
    assert kept > 300_000
    assert blobs(cache)[0] == f"{PIN.sha256}.part"
    watching = Watching()
    assert fetch(cache, sleeps, watching).read_bytes() == CONTENT
    assert ranges(index)[-1] == f"bytes={kept}-"
    assert watching.verbs == ["verify", "download"]
    assert blobs(cache) == [PIN.sha256]


def test_a_server_without_ranges_makes_the_download_start_over(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(cut=400_000), Fault(ranges=False)]
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert len(index.file_requests) == 2


def test_a_file_that_changed_on_the_server_between_two_requests_starts_over(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(cut=400_000, body=b"Y" * len(CONTENT), headers={"ETag": '"old"'})]
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert len(index.file_requests) == 2
    assert index.file_requests[1].headers["If-Range"] == '"old"'


def test_a_part_with_other_bytes_is_found_by_the_hash_and_the_download_starts_over(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    part(cache).parent.mkdir(parents=True)
    part(cache).write_bytes(b"Z" * 1000)
    watching = Watching()
    assert fetch(cache, sleeps, watching).read_bytes() == CONTENT
    assert ranges(index) == ["bytes=1000-", None]
    assert "starting over" in watching.notes[0]


def test_a_server_that_sends_another_range_than_asked_for_is_asked_for_the_whole(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(cut=400_000), Fault(shift=-1)]
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert ranges(index)[-1] is None


def test_a_part_longer_than_the_file_is_dropped(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    part(cache).parent.mkdir(parents=True)
    part(cache).write_bytes(CONTENT + b"more")
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert ranges(index)[-1] is None


def test_a_whole_part_needs_no_network(cache: Cache, sleeps: Sleeps) -> None:
    part(cache).parent.mkdir(parents=True)
    part(cache).write_bytes(CONTENT)
    assert fetch(cache, sleeps).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again_after_the_time_it_names(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps, status: int
) -> None:
    index.faults = [Fault(status=status, headers={"Retry-After": "5"}), Fault(status=status)]
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert sleeps == [5.0, 1.0]


def test_a_server_that_stays_in_trouble_is_an_error(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(status=500)] * 3
    with pytest.raises(SourceError) as caught:
        fetch(cache, sleeps)
    assert caught.value.found == "HTTP 500"
    assert blobs(cache) == []


def test_a_file_that_the_index_lists_and_does_not_have_is_an_error(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(status=404)]
    with pytest.raises(SourceError) as caught:
        fetch(cache, sleeps)
    assert caught.value.found == "HTTP 404"


@with_sizes
@pytest.mark.parametrize("length", [True, False])
def test_a_body_longer_than_the_index_says_is_stopped(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps, *, length: bool
) -> None:
    index.faults = [Fault(body=CONTENT * 3, length=length)]
    with pytest.raises(ChecksumError, match="size") as caught:
        fetch(cache, sleeps)
    assert caught.value.expected == f"{len(CONTENT)} bytes"
    assert blobs(cache) == []


def test_a_server_that_states_an_absurd_size_is_refused_before_its_body_is_read(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(headers={"Content-Length": str(10**15)}, length=False)]
    with pytest.raises(ChecksumError, match="size") as caught:
        fetch(cache, sleeps)
    assert caught.value.found == f"{10**15} bytes"


def test_content_that_the_server_calls_gzip_encoded_is_stored_as_it_is(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    index.faults = [Fault(headers={"Content-Encoding": "gzip"})]
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert index.file_requests[0].headers["Accept-Encoding"] == "identity"


def test_no_network_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, cache: Cache, sleeps: Sleeps
) -> None:
    configure(monkeypatch, index_url=closed_port())
    with pytest.raises(SourceError, match="no network"):
        fetch(cache, sleeps)
    assert blobs(cache) == []


def test_offline_asks_nobody_and_names_the_command_that_fetches(
    index: SimpleIndex, cache: Cache
) -> None:
    with pytest.raises(SourceError, match="network is off") as caught:
        download.fetch(PIN, cache, Watching(), offline=True)
    assert "without --offline" in str(caught.value.next_command)
    assert index.asked == []


def test_a_local_copy_is_taken_instead_of_the_index(
    index: SimpleIndex, cache: Cache, tmp_path: Path
) -> None:
    (tmp_path / "copy").write_bytes(CONTENT)
    path = download.fetch(PIN, cache, Watching(), local=tmp_path / "copy", offline=True)
    assert path.read_bytes() == CONTENT
    assert index.asked == []
    (tmp_path / "copy").write_bytes(b"changed later")
    assert path.read_bytes() == CONTENT


def test_a_local_copy_with_the_wrong_hash_is_an_error_and_costs_no_partial_download(
    cache: Cache, tmp_path: Path
) -> None:
    part(cache).parent.mkdir(parents=True)
    part(cache).write_bytes(CONTENT[:1000])
    (tmp_path / "copy").write_bytes(b"wrong")
    with pytest.raises(ChecksumError, match="local file") as caught:
        download.fetch(PIN, cache, Watching(), local=tmp_path / "copy")
    assert caught.value.file == str(tmp_path / "copy")
    assert part(cache).read_bytes() == CONTENT[:1000]


def test_a_local_copy_that_is_not_there_is_an_error(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no copy"):
        download.fetch(PIN, cache, Watching(), local=tmp_path / "copy")


def test_an_index_in_a_folder_gives_its_file(
    monkeypatch: pytest.MonkeyPatch, cache: Cache, tmp_path: Path
) -> None:
    (tmp_path / "simple" / "vllm").mkdir(parents=True)
    (tmp_path / "simple" / "vllm" / "index.html").write_text(f'<a href="../../{NAME}">{NAME}</a>')
    (tmp_path / NAME).write_bytes(CONTENT)
    configure(monkeypatch, index_url=(tmp_path / "simple").as_uri())
    assert download.fetch(PIN, cache, Watching()).read_bytes() == CONTENT


def test_a_cached_file_that_was_damaged_is_fetched_again(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    path = fetch(cache, sleeps)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    watching = Watching()
    assert fetch(cache, sleeps, watching).read_bytes() == CONTENT
    assert watching.verbs == ["verify", "download"]
    assert len(index.file_requests) == 2


def start(cache: Cache, largest: str = "") -> subprocess.Popen[str]:
    arguments = [str(cache.root), NAME, PIN.sha256, *([largest] if largest else [])]
    return subprocess.Popen(
        [PYTHON, "-m", "tests.support.fetch_once", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_full_disk_shown_by_a_limit_on_file_sizes_is_an_error_and_the_next_run_goes_on(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    with start(cache, largest="500000") as process:
        output, _ = process.communicate()
    assert process.returncode == 40
    facts = json.loads(output)
    assert facts["summary"] == "the disk is full"
    assert facts["file"] == str(part(cache))
    assert facts["next"].startswith("df -h")
    assert part(cache).read_bytes() == CONTENT[:500_000]
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert ranges(index)[-1] == "bytes=500000-"


def test_two_fetches_at_once_download_once(index: SimpleIndex, cache: Cache) -> None:
    with start(cache) as first, start(cache) as second:
        outputs = [first.communicate()[0], second.communicate()[0]]
    assert [first.returncode, second.returncode] == [0, 0]
    assert {output.splitlines()[0] for output in outputs} == {
        str(cache.root / "blobs" / "sha256" / PIN.sha256)
    }
    assert len(index.file_requests) == 1


def test_a_run_killed_in_the_middle_of_a_download_is_taken_up_where_it_was(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    running: list[subprocess.Popen[str]] = []

    def kill() -> None:
        deadline = time.monotonic() + 30
        while not (part(cache).exists() and part(cache).stat().st_size > 500_000):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(running[0].pid, signal.SIGKILL)

    index.faults = [Fault(cut=700_000, before_cut=kill)]
    running.append(start(cache))
    with running[0]:
        assert running[0].wait() == -signal.SIGKILL
    kept = part(cache).stat().st_size
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert ranges(index)[-1] == f"bytes={kept}-"
    assert blobs(cache) == [PIN.sha256]


def test_a_run_killed_at_any_moment_leaves_nothing_wrong_and_the_next_one_succeeds(
    index: SimpleIndex, cache: Cache, sleeps: Sleeps
) -> None:
    chance = random.Random(11)  # noqa: S311
    for _ in range(6):
        index.faults = [Fault(cut=chance.randrange(len(CONTENT)))] * 2
        with start(cache) as process:
            time.sleep(chance.uniform(0.1, 0.8))
            process.kill()
        blob = cache.root / "blobs" / "sha256" / PIN.sha256
        if blob.exists():
            assert blob.read_bytes() == CONTENT
            blob.unlink()
    index.faults = []
    assert fetch(cache, sleeps).read_bytes() == CONTENT
    assert blobs(cache) == [PIN.sha256]
