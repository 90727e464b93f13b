"""The Triton W4A16 GEMM, under Triton's interpreter, against float64 and the format's definition.

The interpreter truncates where a GPU rounds to BF16, so errors here are twice the GPU's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.patched import interpreter, nvfp4

interpreter.enable()

from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.quantization.utils import (
    nvfp4_emulation_utils,
    nvfp4_utils,
)
from vllm.platforms import PlatformEnum, current_platform

# Truncated to BF16, a number loses less than one unit in its last place, at most 2**-7 of it.
TOLERANCE = 2.0**-7
UNITS = 8
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def eight_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of SMs decides how K is split."""
    if nvfp4.importlib.util.find_spec(f"{nvfp4.PACKAGE}.triton_w4a16"):
        kernel = nvfp4.module("triton_w4a16")
        monkeypatch.setattr(kernel, "num_compute_units", lambda _: UNITS)


def gemm(x: torch.Tensor, w: nvfp4.Weights, bias: torch.Tensor | None = None) -> torch.Tensor:
    packed, scales = w.padded()
    kernel = nvfp4.module("triton_w4a16")
    return kernel._nvfp4_w4a16_gemm(x, packed, scales, w.global_scale, bias, w.packed.shape[0])


def check(m: int, n: int, k: int, *, bias: bool = False, seed: int = 0) -> None:
    w = nvfp4.random_weights(n, k, seed)
    x = nvfp4.activations(m, k, seed + 1)
    added = nvfp4.activations(1, n, seed + 2)[0] if bias else None
    reference = x.double() @ w.values.T
    if added is not None:
        reference += added.double()
    out = gemm(x, w, added)
    assert out.shape == (m, n)
    assert out.dtype == torch.bfloat16
    assert nvfp4.error(out, reference) <= TOLERANCE


def test_every_code_times_every_scale_is_exact() -> None:
    """127 rows, one for each scale from 0 over the subnormals to 448; 16 columns, one a code."""
    codes = torch.arange(16).repeat(127, 1)
    w = nvfp4.weights(codes, torch.arange(127)[:, None])
    out = gemm(torch.eye(16, dtype=torch.bfloat16), w)
    assert torch.equal(out.double().T, w.values)


def test_the_global_scale_multiplies_the_sum() -> None:
    codes = torch.arange(16).repeat(32, 1)
    w = nvfp4.weights(codes, torch.full((32, 1), 0x38), global_scale=2.0**-20)
    out = gemm(torch.eye(16, dtype=torch.bfloat16), w)
    assert torch.equal(out.double().T, w.values)


@pytest.mark.parametrize("scale", [0x00, 0x01, 0x07, 0x08, 0x7E])
def test_one_scale_everywhere(scale: int) -> None:
    generator = torch.Generator().manual_seed(scale)
    codes = torch.randint(16, (32, 160), generator=generator)
    w = nvfp4.weights(codes, torch.full((32, 10), scale))
    x = nvfp4.activations(3, 160, seed=1)
    assert nvfp4.error(gemm(x, w), x.double() @ w.values.T) <= TOLERANCE


@pytest.mark.parametrize("m", [1, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65])
def test_every_row_of_x_is_served(m: int) -> None:
    check(m, 32, 144)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 127, 128, 129, 160])
def test_rows_of_w_past_the_end_are_left_out(n: int) -> None:
    check(2, n, 64)


@pytest.mark.parametrize("k", [16, 32, 48, 112, 128, 144, 256, 272])
def test_columns_past_the_end_are_left_out(k: int) -> None:
    check(2, 40, k)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    m=st.integers(1, 64),
    n=st.integers(1, 160),
    blocks=st.integers(1, 20),
    bias=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_shape(m: int, n: int, blocks: int, bias: bool, seed: int) -> None:  # noqa: FBT001
    check(m, n, blocks * 16, bias=bias, seed=seed)


@pytest.mark.parametrize(("m", "k"), [(17, 256), (24, 144), (40, 272), (64, 16), (65, 128)])
def test_packed_activations_give_the_same_bits(
    m: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large problems copy x into the lanes' order first; here, small ones are made to."""
    kernel = nvfp4.module("triton_w4a16")
    w = nvfp4.random_weights(40, k, seed=14)
    x = nvfp4.activations(m, 2 * k, seed=15)[:, :k]
    plain = gemm(x, w)
    monkeypatch.setattr(kernel, "PACK_FROM_PRODUCTS", 1)
    assert torch.equal(gemm(x, w), plain)


@pytest.mark.parametrize("pack_from", [1, 1 << 30])
@pytest.mark.parametrize(("m", "k"), [(3, 144), (24, 256)])
def test_the_order_of_columns_in_a_tile_changes_nothing_but_speed(
    m: int, k: int, pack_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = nvfp4.module("triton_w4a16")
    monkeypatch.setattr(kernel, "PACK_FROM_PRODUCTS", pack_from)
    for wide in (False, True):
        monkeypatch.setattr(kernel, "OPERAND_IS_WIDE", wide)
        check(m, 40, k)


@pytest.mark.parametrize("bias", [False, True])
def test_k_is_split_and_summed(bias: bool) -> None:  # noqa: FBT001
    kernel = nvfp4.module("triton_w4a16")
    assert kernel._plan(2, 32, 1024, UNITS)[1] == 4
    check(2, 32, 1024, bias=bias)


def test_splits_cover_k_once() -> None:
    kernel = nvfp4.module("triton_w4a16")
    for m in (1, 8, 16, 40, 64, 500):
        for n in (32, 4096, 34816):
            for k in (16, 128, 272, 5120, 17408):
                block_m, splits, k_per_split = kernel._plan(m, n, k, 170)
                assert (splits - 1) * k_per_split < k <= splits * k_per_split
                assert k_per_split % kernel.TILE_K == 0
                assert block_m in (8, 16, 32, 64)


def test_the_same_bits_every_time() -> None:
    w = nvfp4.random_weights(32, 1024, seed=3)
    x = nvfp4.activations(4, 1024, seed=4)
    assert torch.equal(gemm(x, w), gemm(x, w))


def test_rows_of_x_may_have_a_stride() -> None:
    w = nvfp4.random_weights(32, 64, seed=5)
    wide = nvfp4.activations(3, 192, seed=6)
    x = wide[:, 64:128]
    assert torch.equal(gemm(x, w), gemm(x.contiguous(), w))


def test_no_rows_give_an_empty_result() -> None:
    w = nvfp4.random_weights(40, 64, seed=7)
    assert gemm(torch.empty(0, 64, dtype=torch.bfloat16), w).shape == (0, 40)


def test_the_layout_is_the_one_of_swizzle_blockscale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: our index finds each scale in vLLM's buffer, and vLLM reads ours back."""
    kernel = nvfp4.module("triton_w4a16")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    generator = torch.Generator().manual_seed(8)
    scales = torch.randint(0x7F, (200, 7), generator=generator, dtype=torch.uint8)
    theirs = kernel.swizzle_blockscale(scales.view(torch.float8_e4m3fn)).view(torch.uint8)
    flat = theirs.flatten()
    for n in range(200):
        for column in range(7):
            assert flat[nvfp4.swizzled_index(n, column, 7)] == scales[n, column]
    assert torch.equal(theirs, nvfp4.swizzle(scales))
    back = nvfp4_emulation_utils.convert_swizzled_to_linear(nvfp4.swizzle(scales), 200, 7 * 16, 16)
    assert torch.equal(back[:, :7], scales)


def layer(w: nvfp4.Weights) -> Any:
    made = torch.nn.Module()
    made.weight = torch.nn.Parameter(w.packed, requires_grad=False)
    scales = w.scales.view(torch.float8_e4m3fn)
    made.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    made.weight_global_scale = torch.nn.Parameter(w.global_scale, requires_grad=False)
    made.output_size_per_partition, made.input_size_per_partition = w.values.shape
    return made


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that this is a CUDA machine of SM 9.0, to everything that asks the platform."""
    for name, value in (
        ("is_cuda", lambda: True),
        ("has_device_capability", lambda *_, **__: True),
        ("is_device_capability_family", lambda *_, **__: False),
    ):
        monkeypatch.setattr(type(current_platform), name, staticmethod(value), raising=False)
    monkeypatch.setattr(type(current_platform), "_enum", PlatformEnum.CUDA)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)


@pytest.mark.usefixtures("cuda")
def test_a_layer_is_processed_and_applied() -> None:
    """From a checkpoint's tensors, N and K padded, batch dimensions kept, x not contiguous."""
    kernel = nvfp4.module("triton_w4a16")
    made = kernel.TritonNvFp4W4A16LinearKernel(linear.NvFp4LinearLayerConfig())
    w = nvfp4.random_weights(50, 48, seed=9)
    target = layer(w)
    made.process_weights_after_loading(target)
    assert target.weight.shape == (64, 32)
    x = nvfp4.activations(6, 48, seed=10).view(2, 3, 48).transpose(0, 1)
    out = made.apply_weights(target, x)
    assert out.shape == (3, 2, 50)
    assert nvfp4.error(out, x.double() @ w.values.T) <= TOLERANCE


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("use_a16", [False, True])
def test_linear_backend_names_it(use_a16: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    monkeypatch.setattr(linear, "_get_linear_backend", lambda **_: "triton")
    chosen = [
        k.__name__
        for k in linear._filter_kernels_by_backend(
            "triton", linear._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA]
        )
    ]
    assert chosen == ["TritonNvFp4W4A16LinearKernel"]
    made = linear.init_nvfp4_linear_kernel(use_a16=use_a16)
    assert type(made).__name__ == "TritonNvFp4W4A16LinearKernel"
    assert made.input_quant_key() is None


def test_it_is_never_chosen_before_another_gpu_kernel() -> None:
    names = [k.__name__ for k in linear._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA]]
    assert "TritonNvFp4W4A16LinearKernel" in names
    at = names.index("TritonNvFp4W4A16LinearKernel")
    assert names.index("MarlinNvFp4LinearKernel") < at
    assert names.index("FlashInferCutlassNvFp4LinearKernel") < at


def arguments(**changed: Any) -> list[Any]:
    w = nvfp4.random_weights(40, 64, seed=11)
    packed, scales = w.padded()
    given_ = SimpleNamespace(
        x=nvfp4.activations(2, 64, seed=12),
        weight=packed,
        weight_scale=scales,
        weight_global_scale=w.global_scale,
        bias=None,
        output_size=40,
    )
    given_.__dict__.update(changed)
    return list(vars(given_).values())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": torch.zeros(2, 64, dtype=torch.float16)}, "BF16"),
        ({"x": torch.zeros(64, 2, dtype=torch.bfloat16).T}, "K contiguous"),
        ({"x": torch.zeros(1, 2, 64, dtype=torch.bfloat16)}, "[M, K]"),
        ({"x": torch.zeros(2, 40, dtype=torch.bfloat16)}, "K = 40"),
        ({"x": torch.zeros(2, 128, dtype=torch.bfloat16)}, "K = 128"),
        ({"weight": torch.zeros(64, 32, dtype=torch.int8)}, "uint8"),
        ({"weight": torch.zeros(32, 64, dtype=torch.uint8).T}, "contiguous uint8"),
        ({"weight_scale": torch.zeros(64, 4, dtype=torch.uint8)}, "512 e4m3 scales"),
        ({"weight_scale": torch.zeros(128, 4, dtype=torch.bfloat16)}, "e4m3 scales"),
        ({"output_size": 65}, "65 outputs asked of 64"),
    ],
)
def test_wrong_input_is_an_error_that_says_what(changed: dict[str, Any], words: str) -> None:
    kernel = nvfp4.module("triton_w4a16")
    with pytest.raises(ValueError, match="NVFP4 W4A16") as caught:
        kernel._nvfp4_w4a16_gemm(*arguments(**changed))
    assert words in str(caught.value)


def test_the_fake_gives_the_same_shape_and_type() -> None:
    kernel = nvfp4.module("triton_w4a16")
    real, fake = (
        f(*arguments()) for f in (kernel._nvfp4_w4a16_gemm, kernel._nvfp4_w4a16_gemm_fake)
    )
    assert (real.shape, real.dtype, real.stride()) == (fake.shape, fake.dtype, fake.stride())


def test_padding_is_vllms_own() -> None:
    """The weights that vLLM pads are the weights that the other tests take."""
    w = nvfp4.random_weights(50, 48, seed=13)
    padded, _ = nvfp4_utils.pad_nvfp4_weight_for_cutlass(w.packed)
    assert torch.equal(padded, w.padded()[0])


def test_the_operands_stay_in_registers(tmp_path: Path) -> None:
    """In machine code for cards that are not here: no spill, no shuffle or shared memory a tile.

    Triton decides how an MMA operand lies; where that changes, results stay and speed halves.
    """
    nvfp4.module("triton_w4a16")
    out = tmp_path / "sass.json"
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    site = environment["VLLM_SM120_TREE"]
    environment["PYTHONPATH"] = os.pathsep.join((f"{site}/interpreter", site, str(ROOT)))
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-m", "bench.nvfp4.sass", str(out)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    variants = json.loads(out.read_text())["variants"]
    assert {v["target"] for v in variants} == {"sm_90", "sm_120", "sm_121"}
    for variant in variants:
        opcodes = variant["opcodes"]
        assert variant["per_weight_byte"] < {8: 7, 16: 7.5, 32: 9, 64: 12}[variant["block_m"]]
        assert opcodes["HMMA"] == 2 * variant["block_m"]
        assert opcodes.get("SHFL", 0) <= 8  # of the scales
        assert not opcodes.keys() & {"LDS", "STS", "LDSM", "STSM", "BAR"}
