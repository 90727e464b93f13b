"""A patched build says what it is: in the log of an engine's start and in `vllm collect-env`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import vllm
from vllm import collect_env
from vllm.v1.engine.core import EngineCore

from tests.patched import logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from logging import LogRecord
    from pathlib import Path

LINE = "9.9.9+sm120.7 over 9.9.9 (0123456789), 2 patches, patch set sha256 abcdef"
OVERLAY = f"""\
UPSTREAM_VERSION = "9.9.9"
UPSTREAM_COMMIT = "0123456789"
VERSION = "9.9.9+sm120.7"
PATCHSET_SHA256 = "abcdef"
PATCHES = {{"one": "11", "two": "22"}}


def describe() -> str:
    return {LINE!r}
"""


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder that stands first on the package's path; what is in it is `vllm._overlay`."""
    monkeypatch.setattr(vllm, "__path__", [str(tmp_path), *vllm.__path__])
    sys.modules.pop("vllm._overlay", None)
    yield tmp_path
    sys.modules.pop("vllm._overlay", None)


@pytest.fixture
def no_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `vllm._overlay` a module that cannot be found, whatever the tree holds."""
    monkeypatch.setitem(sys.modules, "vllm._overlay", None)


class Started(Exception):  # noqa: N818
    """The engine core came as far as making its executor."""


def start() -> list[LogRecord]:
    """Start an engine core up to the point where it would load a model; return what it logged."""

    def executor(_: object) -> None:
        raise Started

    # All that is read of the configuration before the executor is made.
    config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_rank_local=None))
    with logs.caught() as records, pytest.raises(Started):
        EngineCore(config, executor, log_stats=False)
    return records


def test_the_start_of_an_engine_logs_the_overlay_once(overlay: Path) -> None:
    (overlay / "_overlay.py").write_text(OVERLAY)
    lines = [r for r in start() if LINE in r.getMessage()]
    assert [r.levelname for r in lines] == ["INFO"]


def test_collect_env_shows_the_overlay_beside_the_version(overlay: Path) -> None:
    (overlay / "_overlay.py").write_text(OVERLAY)
    lines = collect_env.get_pretty_env_info().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("vLLM Version "))
    assert lines[at + 1].startswith("vLLM Overlay ")
    assert lines[at + 1].endswith(f": {LINE}")


@pytest.mark.usefixtures("no_overlay")
def test_a_build_without_the_module_starts_silently() -> None:
    records = start()
    assert any("Initializing a V1 LLM engine" in r.getMessage() for r in records)
    assert not any("verlay" in r.getMessage() for r in records)


@pytest.mark.usefixtures("no_overlay")
def test_collect_env_says_that_there_is_no_overlay() -> None:
    lines = collect_env.get_pretty_env_info().splitlines()
    assert [line.partition(": ")[2] for line in lines if "Overlay" in line] == ["N/A"]
