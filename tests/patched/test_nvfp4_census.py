"""The census: shapes from a checkpoint's headers, steps from times, a table that can be used."""

# ruff: noqa: ARG001  (stand-ins for vLLM's classes)
from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from tests.patched import nvfp4

if TYPE_CHECKING:
    from pathlib import Path

BASE = "FlashInferCutlassNvFp4LinearKernel"


def census() -> Any:
    return nvfp4.module("nvfp4_census")


def table_module() -> Any:
    return nvfp4.module("m_dispatch_table")


def write_headers(folder: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """A safetensors file that has the header alone; the census reads no more."""
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
        for name, (dtype, shape) in tensors.items()
    }
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def linear(name: str, n: int, k: int, kind: str = "weight") -> dict[str, tuple[str, list[int]]]:
    return {
        f"{name}.{kind}": ("U8", [n, k // 2]),
        f"{name}.weight_scale": ("F8_E4M3", [n, k // 16]),
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    layer = "model.layers.0."
    write_headers(
        tmp_path,
        linear(f"{layer}self_attn.q_proj", 256, 64)
        | linear(f"{layer}self_attn.k_proj", 32, 64)
        | linear(f"{layer}self_attn.v_proj", 32, 64)
        | linear(f"{layer}self_attn.o_proj", 64, 128)
        | linear(f"{layer}mlp.gate_proj", 96, 64, "weight_packed")
        | linear(f"{layer}mlp.up_proj", 96, 64, "weight_packed")
        | linear(f"{layer}mlp.down_proj", 64, 96)
        | linear(f"{layer}mlp.experts.0.up_proj", 999, 64)
        | {f"{layer}input_layernorm.weight": ("BF16", [64])}
        | {"lm_head.weight": ("BF16", [4096, 64])},
    )
    return tmp_path


def test_the_shapes_are_those_of_the_fused_layers(checkpoint: Path) -> None:
    assert census().model_shapes(checkpoint) == [(64, 96), (64, 128), (192, 64), (320, 64)]


def test_the_shapes_of_a_rank_are_shards(checkpoint: Path) -> None:
    assert census().model_shapes(checkpoint, 2) == [(64, 48), (64, 64), (96, 64), (160, 64)]


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(table_module().TableError, match="found none"):
        census().model_shapes(tmp_path)
    write_headers(tmp_path, {"lm_head.weight": ("BF16", [1, 1])})
    with pytest.raises(table_module().TableError, match="expected NVFP4 linear layers"):
        census().model_shapes(tmp_path)


@pytest.mark.parametrize(
    ("small", "steps"),
    [
        ({1: 5.0, 8: 6.0, 16: 9.0}, [("triton", 16)]),
        ({1: 5.0, 8: 20.0, 16: 9.0}, [("triton", 1)]),
        ({1: 20.0, 8: 6.0, 16: 9.0}, []),
    ],
)
def test_the_base_takes_over_where_it_first_wins(small: dict[int, float], steps: list[Any]) -> None:
    times = {m: {BASE: 10.0, "triton": us} for m, us in small.items()} | {32: {BASE: 10.0}}
    assert [(s.kernel, s.max_m) for s in census().choose_steps(times, BASE)] == steps


def test_two_weight_only_kernels_share_the_rows() -> None:
    times = {
        1: {BASE: 9.0, "flashinfer_native": 1.0, "triton": 2.0},
        2: {BASE: 9.0, "flashinfer_native": 1.0, "triton": 2.0},
        4: {BASE: 9.0, "flashinfer_native": 3.0, "triton": 2.0},
        8: {BASE: 9.0, "flashinfer_native": 30.0, "triton": 20.0},
    }
    found = [(s.kernel, s.max_m) for s in census().choose_steps(times, BASE)]
    assert found == [("flashinfer_native", 2), ("triton", 4)]


def test_what_it_writes_is_a_table_for_this_machine(tmp_path: Path) -> None:
    module = table_module()
    machine = module.Machine("a card", "12.0", {"driver": "1"})

    def measure(kernel: str, n: int, k: int, m: int) -> float:
        assert kernel == BASE or m <= 64
        return 10.0 if kernel == BASE else 1.0 + m * n / 1000

    made = census().census([(320, 64), (64, 96)], [BASE], ["triton"], [1, 16, 64, 128],
                           measure, machine)  # fmt: skip
    file = tmp_path / "table.json"
    file.write_text(module.to_json(made))
    read = module.load_table(file)
    read.check_machine(machine)
    with pytest.raises(module.TableError, match="is not for this machine"):
        read.check_machine(module.Machine("another", "12.0", {"driver": "1"}))
    wide, narrow = read.rule(BASE, 320, 64), read.rule(BASE, 64, 96)
    assert [(s.kernel, s.max_m) for s in wide.steps] == [("triton", 16)]
    assert [(s.kernel, s.max_m) for s in narrow.steps] == [("triton", 64)]
    assert len(read.measurements) == 2 * (4 + 3)


def test_without_an_fp4_gemm_there_is_no_rule(tmp_path: Path) -> None:
    module = table_module()
    machine = module.Machine("a card", "9.0", {"driver": "1"})
    made = census().census([(64, 64)], [], ["triton"], [1], lambda *_: 1.0, machine)
    assert made.rules == ()
    file = tmp_path / "table.json"
    file.write_text(module.to_json(made))
    assert len(module.load_table(file).measurements) == 1


@pytest.mark.parametrize("shape", ["64", "64,0", "64,40", "a,b", "-1,64"])
def test_a_wrong_shape_is_refused(shape: str, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out.json"
    with pytest.raises(SystemExit):
        census().main([f"--shape={shape}", "--output", str(output)])
    assert "expected N,K" in capsys.readouterr().err
    assert not output.exists()


def test_a_machine_that_cannot_measure_says_so(tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out.json"
    assert census().main(["--shape", "64,64", "--output", str(output)]) == 1
    assert "cannot measure here" in capsys.readouterr().err
    assert not output.exists()
