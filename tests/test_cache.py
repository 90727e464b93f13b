"""The user's cache: what has a name is whole and right, whoever dies when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from imagebuild.digest import sha256_bytes
from imagebuild.errors import StorageError
from imagebuild.fetch.cache import Cache
from tests.support.watching import Watching

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"content of a wheel" * 1000
SHA256 = sha256_bytes(CONTENT)

HOLD = """
import sys, pathlib
from imagebuild.fetch.cache import Cache
from imagebuild.progress import Silent
with Cache(pathlib.Path(sys.argv[1])).lock("a-name", Silent(), "file"):
    print("held", flush=True)
    sys.stdin.read()
"""


def store(cache: Cache) -> Path:
    with cache.locked(SHA256, Watching(), "file") as slot:
        slot.part.write_bytes(CONTENT)
        return slot.publish(SHA256)


def look(cache: Cache) -> tuple[Path | None, Watching]:
    watching = Watching()
    with cache.locked(SHA256, watching, "file") as slot:
        return slot.verified(watching, "file"), watching


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_a_stored_file_is_known_by_its_digest_and_read_only(cache: Cache) -> None:
    blob = store(cache)
    assert blob.read_bytes() == CONTENT
    assert blob.stat().st_mode & 0o777 == 0o444
    assert cache.known(SHA256) == blob


def test_an_unchanged_file_is_not_hashed_again(cache: Cache) -> None:
    blob = store(cache)
    found, watching = look(cache)
    assert found == blob
    assert watching.verbs == []


def test_a_file_changed_in_place_with_its_old_size_and_times_is_found_out(cache: Cache) -> None:
    blob = store(cache)
    before = blob.stat()
    blob.chmod(0o644)
    blob.write_bytes(b"C" + CONTENT[1:])
    blob.chmod(0o444)
    os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert blob.stat().st_size == before.st_size
    assert blob.stat().st_mtime_ns == before.st_mtime_ns
    assert cache.known(SHA256) is None
    found, watching = look(cache)
    assert found is None
    assert watching.verbs == ["verify"]
    assert "damaged" in watching.notes[0]
    assert not blob.exists()


def test_a_touched_file_is_hashed_again_once(cache: Cache) -> None:
    blob = store(cache)
    blob.touch()
    assert cache.known(SHA256) is None
    found, watching = look(cache)
    assert (found, watching.verbs, watching.done) == (blob, ["verify"], [len(CONTENT)])
    assert cache.known(SHA256) == blob
    assert look(cache)[1].verbs == []


def test_a_file_without_a_record_is_hashed_before_it_is_used(cache: Cache) -> None:
    blob = store(cache)
    (record,) = (cache.root / "verified").iterdir()
    record.unlink()
    assert cache.known(SHA256) is None
    assert look(cache)[0] == blob


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b'{"device": 1}', b"\xff"])
def test_a_damaged_record_only_costs_hashing(cache: Cache, record: bytes) -> None:
    blob = store(cache)
    next((cache.root / "verified").iterdir()).write_bytes(record)
    assert cache.known(SHA256) is None
    assert look(cache)[0] == blob


def test_a_link_in_place_of_a_file_is_not_followed(cache: Cache, tmp_path: Path) -> None:
    blob = store(cache)
    (tmp_path / "elsewhere").write_bytes(CONTENT)
    blob.unlink()
    blob.symlink_to(tmp_path / "elsewhere")
    assert cache.known(SHA256) is None
    assert look(cache)[0] is None


def test_content_with_another_digest_never_gets_the_name(cache: Cache) -> None:
    with cache.locked(SHA256, Watching(), "file") as slot:
        slot.part.write_bytes(b"other")
        with pytest.raises(ValueError, match="is not"):
            slot.publish(sha256_bytes(b"other"))
        assert not slot.blob.exists()


def test_looking_for_a_known_file_writes_nothing(cache: Cache) -> None:
    assert cache.known(SHA256) is None
    assert not cache.root.exists()


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError) as caught, Cache(tmp_path / "file").folder("sdists"):
        pass
    assert str(tmp_path / "file") in str(caught.value.file)


def hold(cache: Cache) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(cache.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_process_says_that_it_waits_and_goes_on_when_the_first_is_done(
    cache: Cache,
) -> None:
    with hold(cache) as holder:

        class Ends(Watching):
            """Lets the first process end as soon as the second says that it waits."""

            def note(self, text: str) -> None:
                super().note(text)
                assert holder.stdin is not None
                holder.stdin.close()

        watching = Ends()
        with cache.lock("a-name", watching, "file"):
            assert holder.wait() == 0
    assert watching.notes == ["file: waiting for another process that works on it"]


def test_a_killed_process_holds_no_lock(cache: Cache) -> None:
    with hold(cache) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        watching = Watching()
        with cache.lock("a-name", watching, "file"):
            assert watching.notes == []


def test_what_a_killed_process_left_is_removed(cache: Cache) -> None:
    blob = store(cache)
    left = [
        cache.root / "verified" / f".{SHA256}.json.abcdefgh.tmp",
        blob.with_name(f".{SHA256}.part.etag.abcdefgh.tmp"),
    ]
    other = blob.with_name(f".{'0' * 64}.part.etag.abcdefgh.tmp")
    for path in [*left, other]:
        path.write_bytes(b"{")
    look(cache)
    assert not any(path.exists() for path in left)
    assert other.exists()
