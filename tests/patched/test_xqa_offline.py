"""XQA needs no server: FlashInfer compiles it on the machine. The log says what decodes and why.

The platform is said to be another, and FlashInfer is one that records (recording_flashinfer.py).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.patched import recording_flashinfer

recording_flashinfer.install()

from vllm.utils import flashinfer as questions

from tests.patched.recording_flashinfer import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Make the machine an offline one, and hear what it asks for."""
    heard: list[str] = []

    def unreachable(url: str, **_: object) -> None:
        heard.append(url)
        raise OSError("the network is unreachable")

    monkeypatch.setattr(questions.requests, "get", unreachable)
    monkeypatch.setattr(questions, "has_flashinfer_cubin", lambda: False)
    questions.has_nvidia_artifactory.cache_clear()
    questions.supports_trtllm_attention.cache_clear()
    yield heard
    questions.has_nvidia_artifactory.cache_clear()
    questions.supports_trtllm_attention.cache_clear()


def on(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = SimpleNamespace(
        is_device_capability=lambda c: capability == c,
        is_device_capability_family=lambda c: c // 10 == capability // 10,
    )
    monkeypatch.setattr(questions, "current_platform", platform)


@pytest.mark.parametrize("capability", [90, 120, 121])
def test_an_offline_machine_has_xqa(
    capability: int, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(capability, monkeypatch)
    assert questions.supports_trtllm_attention(is_prefill=False)
    assert asked == [], "XQA asked a server for what it does not need"


@pytest.mark.parametrize("capability", [90, 120])
def test_the_prefill_kernel_that_these_do_not_have_asks_no_server(
    capability: int, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(capability, monkeypatch)
    assert not questions.supports_trtllm_attention(is_prefill=True)
    assert asked == []


def test_kernels_that_are_downloaded_still_need_the_server(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(100, monkeypatch)
    assert not questions.supports_trtllm_attention(is_prefill=False)
    assert len(asked) == 1


REASONS = {
    "XQA": (Machine(120, xqa=True, kv_cache_dtype="nvfp4"), "nvfp4", "XQA", "it can serve"),
    "asked for fa2": (Machine(120, xqa=True, choice="fa2"), "auto", "fa2", "is fa2"),
    "SM90": (Machine(90, xqa=True, kv_cache_dtype="nvfp4"), "nvfp4", "fa2", "only on SM12x"),
    "DCP": (Machine(120, xqa=True, dcp=2), "auto", "fa2", "LSE"),
    "head size": (Machine(120, xqa=True, head_dim=512), "auto", "fa2", "head dimension of 512"),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS.values(), ids=REASONS)
def test_the_log_says_which_kernel_decodes_and_why(
    case: tuple[Machine, str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, dtype, kernel, why = case
    machine.log.clear()
    machine.builder(monkeypatch)
    lines = [line for line in machine.log if line.startswith("FlashInfer decodes")]
    assert len(lines) == 1
    assert f"the {dtype} KV cache on sm{machine.capability} with {kernel}: " in lines[0]
    assert why in lines[0]
