"""Models: pinned on the hub, downloaded at the pin, and gone on with after a cut.

The hub's real client asks a hub on loopback (tests/support/modelhub.py).
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serve.tiny import checkpoint
from tests.support.modelhub import COMMIT, ModelHub
from tests.support.serving import ROOT, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

_FETCH = """\
import sys
from imagebuild.errors import BuildError
from serve import models, profile
try:
    print(models.fetch(profile.load(sys.argv[1])).folder)
except BuildError as error:
    print(error.kind, error.diagnostics())
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def hub(files: Path, tmp_path: Path) -> Iterator[ModelHub]:
    with ModelHub(files, tmp_path / "hf") as found:
        yield found


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    text = (ROOT / "serve/profiles/tiny-cpu.toml").read_text()
    text = text.replace('source = "generated"', 'source = "hub"')
    path = tmp_path / "mine.toml"
    path.write_text("# keep me\n" + text.replace('id = "tiny-qwen3.5"', 'id = "own/model"', 1))
    return path


def fetch(hub: ModelHub, profile: Path, largest: int | None = None) -> str:
    """Fetch in a process of its own, whose files may not grow larger than `largest`."""

    def limit() -> None:
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    done = subprocess.run(
        [sys.executable, "-c", _FETCH, str(profile)],
        preexec_fn=limit,  # no thread of this process holds a lock it needs
        env={"PATH": "", "PYTHONPATH": str(ROOT), **hub.environ},
        capture_output=True, text=True, check=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    return done.stdout.strip()


def pinned(hub: ModelHub, profile: Path) -> Path:
    done = serve("pin", str(profile), "--write", extra=hub.environ)
    assert done.returncode == 0, done.stderr
    return profile


def test_pin_shows_what_the_hub_has_and_writes_nothing_unasked(
    hub: ModelHub, profile: Path
) -> None:
    before = profile.read_text()
    done = serve("pin", str(profile), extra=hub.environ)
    assert f"revision       {COMMIT}  (was not pinned)" in done.stdout
    assert "nothing written" in done.stdout
    assert profile.read_text() == before


def test_pins_are_written_and_the_rest_of_the_file_stays(hub: ModelHub, profile: Path) -> None:
    found = tomllib.loads(pinned(hub, profile).read_text())
    assert profile.read_text().startswith("# keep me\n")
    assert found["model"]["revision"] == COMMIT
    assert len(found["model"]["chat-template"]) == 64
    assert found["memory"]["weights"] > 30_000_000
    again = serve("pin", str(profile), extra=hub.environ)
    assert "was" not in again.stdout


def test_a_pinned_model_is_downloaded_whole(hub: ModelHub, profile: Path, files: Path) -> None:
    folder = Path(fetch(hub, pinned(hub, profile)))
    for path in files.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()


def test_a_download_that_was_cut_goes_on_where_it_stopped(
    hub: ModelHub, profile: Path, files: Path
) -> None:
    pinned(hub, profile)
    hub.cut_after = 12_000_000
    folder = Path(fetch(hub, profile))
    weights = files / "model.safetensors"
    assert (folder / weights.name).read_bytes() == weights.read_bytes()
    begun = [int(asked.removeprefix("bytes=").partition("-")[0]) for asked in hub.ranges]
    assert len(begun) > 1  # it asked again, and from where it was, not from the start
    assert max(begun) > 10_000_000


def test_a_disk_that_is_full_half_way_keeps_the_files_that_came_whole(
    hub: ModelHub, profile: Path, files: Path
) -> None:
    pinned(hub, profile)
    said = fetch(hub, profile, largest=12_000_000)
    assert said.startswith("storage")
    assert "files that came whole are not fetched twice" in said
    hub.served.clear()
    folder = Path(fetch(hub, profile))
    weights = files / "model.safetensors"
    assert (folder / weights.name).read_bytes() == weights.read_bytes()
    assert set(hub.served) == {weights.name}


def test_a_revision_that_is_gone_is_an_error(hub: ModelHub, profile: Path) -> None:
    pinned(hub, profile).write_text(profile.read_text().replace(COMMIT, "f" * 40))
    said = fetch(hub, profile)
    assert said.startswith("model")
    assert "does not have the pinned revision any more" in said


def test_a_hub_that_is_not_reached_is_an_error(hub: ModelHub, profile: Path) -> None:
    pinned(hub, profile)
    hub.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    said = fetch(hub, profile)
    assert said.startswith("source")
    assert "not here as a whole" in said


def test_a_model_that_changed_its_template_is_an_error(hub: ModelHub, profile: Path) -> None:
    pinned(hub, profile)
    found = tomllib.loads(profile.read_text())["model"]["chat-template"]
    profile.write_text(profile.read_text().replace(found, "0" * 64))
    assert "ships another chat template" in fetch(hub, profile)
