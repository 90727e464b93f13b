# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""NVFP4 weight-only GEMM (BF16 x NVFP4) on the layout that the FP4 GEMMs use.

``y = x @ dequant(W).T + bias``: packed e2m1 weights, e4m3 block scales in the
128x4 layout of ``swizzle_blockscale``, one FP32 global scale. Nothing is
repacked, so the CUTLASS, b12x, CuTe-DSL and cuDNN FP4 GEMMs can read the same
buffers.

How a tile is laid out. One program is one warp. It owns 32 rows of W and
walks along K in tiles of 128 (64 bytes a row). Within a tile, lane ``4 * r + l``
loads 16 contiguous bytes ``l`` of its rows: four 32-bit words of eight codes,
that is two blocks. A word gives four pairs of codes ``(i, i + 4)``, each in the
two halves of a register, where masks and shifts serve both at once. The order
of K inside a tile is free as long as W and x agree, so it is chosen such that
these pairs are, register by register, the operand of an m16n8k16 MMA: neither
W nor x goes through shared memory. Where many rows of x meet a large W, x is
first copied into the order in which the lanes read it.

Splits of K leave FP32 sums that a second pass adds in a fixed order, without
atomics. The passes overlap by programmatic dependent launch where the card has it.

Decoding. The code ``s e e m`` put at the bits ``s`` 15 and ``e e m`` 8..6 of a
BF16 number has the code's value times 2**-126 (subnormals included). The scale,
widened exactly and multiplied by 2**118, brings the product back into range. It
has at most six significant bits, so the dequantised weight is exact in BF16,
and what remains of 2**-8 goes into the global scale.
"""

import os

import torch
from packaging.version import Version

from vllm.model_executor.layers.quantization.utils.nvfp4_utils import (
    pad_nvfp4_weight_for_cutlass,
    swizzle_blockscale,
)
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON, tl, triton
from vllm.utils.math_utils import cdiv, next_power_of_2, round_up
from vllm.utils.platform_utils import num_compute_units
from vllm.utils.torch_utils import direct_register_custom_op

from .base import NvFp4LinearKernel, NvFp4LinearLayerConfig

BLOCK_SIZE = 16
TILE_K = 128
MAX_BLOCK_M = 64
MAX_SPLITS = 32
# Above both, the order of x in memory costs more than a kernel that changes it.
PACK_ABOVE_M = 16
PACK_FROM_PRODUCTS = 1 << 30

# Consecutive columns that a lane holds of an MMA operand: four before Triton 3.8
# where tl.join precedes the product, two since. The results are the same either
# way, but the wrong order costs as many shuffles as everything else together.
OPERAND_IS_WIDE = HAS_TRITON and Version(triton.__version__) < Version("3.8")


@triton.jit
def _unpack_pair(word, PAIR: tl.constexpr):
    """Codes PAIR and PAIR + 4 of each word as a pair of BF16 numbers times 2**-126."""
    if PAIR == 0:
        pair = ((word & 0x000F000F) * 0x1040) & 0x81C081C0
    elif PAIR == 1:
        pair = ((word & 0x00F000F0) * 0x0104) & 0x81C081C0
    elif PAIR == 2:
        pair = (((word >> 8) & 0x000F000F) * 0x1040) & 0x81C081C0
    else:
        pair = (word & 0x80008000) | ((word >> 6) & 0x01C001C0)
    return pair


@triton.jit
def _scale_pair(word, BYTE: tl.constexpr):
    """The e4m3 scale in byte BYTE, unsigned, times 2**118, in both BF16 halves.

    As an FP32 bit pattern the scale's exponent and mantissa are its value times
    2**-120, subnormals included; two exact products bring in the rest.
    """
    if BYTE == 0:  # noqa: SIM108
        bits = (word & 0x7F) << 20
    else:
        bits = (word & 0x7F00) << 12
    half: tl.constexpr = 664613997892457936451903530140172288.0  # 2**119
    scale = (bits.to(tl.float32, bitcast=True) * half) * half
    bits = scale.to(tl.uint32, bitcast=True)
    return (bits & 0xFFFF0000) | (bits >> 16)


@triton.jit
def _mul_pair(a, b, INTERPRET: tl.constexpr):
    """Products of BF16 pairs; exact here, so the rounding mode does not matter."""
    if INTERPRET:
        low = (a << 16).to(tl.float32, bitcast=True)
        low = low * (b << 16).to(tl.float32, bitcast=True)
        high = (a & 0xFFFF0000).to(tl.float32, bitcast=True)
        high = high * (b & 0xFFFF0000).to(tl.float32, bitcast=True)
        low = low.to(tl.uint32, bitcast=True) >> 16
        high = high.to(tl.uint32, bitcast=True) & 0xFFFF0000
        product = low | high
    else:
        product = tl.inline_asm_elementwise(
            "{ .reg .b32 zero; mov.b32 zero, 0x80008000;"
            " fma.rn.bf16x2 $0, $1, $2, zero; }",
            "=r,r,r",
            [a, b],
            dtype=tl.uint32,
            is_pure=True,
            pack=1,
        )
    return product


@triton.jit
def _split_pair(pair, INTERPRET: tl.constexpr):
    """The two halves as a last dimension; FP32 under the interpreter."""
    if INTERPRET:
        low = (pair << 16).to(tl.float32, bitcast=True)
        high = (pair & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        low = pair.to(tl.uint16).to(tl.bfloat16, bitcast=True)
        high = (pair >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return tl.join(low, high)


@triton.jit
def _dequant_tile(
    words, scales, ROWS: tl.constexpr, WIDE: tl.constexpr, INTERPRET: tl.constexpr
):
    """[ROWS, 16] words and [ROWS, 4] scale pairs as [ROWS, 128] weights.

    The columns come in the order (word, i / 2, lane, i % 2, half) if WIDE, else
    (word, i / 2, i % 2, lane, half), half being the pair's: see OPERAND_IS_WIDE.
    """
    scale = tl.join(_scale_pair(scales, 0), _scale_pair(scales, 1))
    scale = tl.expand_dims(scale, 3)
    scale = tl.reshape(tl.broadcast_to(scale, (ROWS, 4, 2, 2)), (ROWS, 16))
    p0 = _split_pair(_mul_pair(_unpack_pair(words, 0), scale, INTERPRET), INTERPRET)
    p1 = _split_pair(_mul_pair(_unpack_pair(words, 1), scale, INTERPRET), INTERPRET)
    p2 = _split_pair(_mul_pair(_unpack_pair(words, 2), scale, INTERPRET), INTERPRET)
    p3 = _split_pair(_mul_pair(_unpack_pair(words, 3), scale, INTERPRET), INTERPRET)
    w = tl.join(tl.join(p0, p2), tl.join(p1, p3))
    w = tl.reshape(w, (ROWS, 4, 4, 2, 2, 2))  # row, lane, word, half, i / 2, i % 2
    if WIDE:  # noqa: SIM108
        w = tl.permute(w, (0, 2, 4, 1, 5, 3))
    else:
        w = tl.permute(w, (0, 2, 4, 5, 1, 3))
    return tl.reshape(w, (ROWS, 128))


@triton.jit
def _load_x_tile(
    x_ptrs,
    row_mask,
    k,
    K,
    ROWS: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
):
    """[ROWS, 128] activations, transposed, in the order of _dequant_tile."""
    if EVEN_K:
        x0 = tl.load(x_ptrs)
        x1 = tl.load(x_ptrs + 8)
        x2 = tl.load(x_ptrs + 16)
        x3 = tl.load(x_ptrs + 24)
    else:
        x0 = tl.load(x_ptrs, mask=row_mask & (k < K), other=0.0)
        x1 = tl.load(x_ptrs + 8, mask=row_mask & (k + 8 < K), other=0.0)
        x2 = tl.load(x_ptrs + 16, mask=row_mask & (k + 16 < K), other=0.0)
        x3 = tl.load(x_ptrs + 24, mask=row_mask & (k + 24 < K), other=0.0)
    x = tl.join(tl.join(x0, x2), tl.join(x1, x3))
    # row, lane, half, i / 2, i % 2, word / 2, word % 2
    x = tl.reshape(x, (ROWS, 4, 2, 2, 2, 2, 2))
    if WIDE:
        x = tl.permute(x, (0, 5, 6, 3, 1, 4, 2))
    else:
        x = tl.permute(x, (0, 5, 6, 3, 4, 1, 2))
    return tl.trans(tl.reshape(x, (ROWS, 128)))


@triton.jit
def _load_packed_x_tile(x_ptrs, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """As _load_x_tile, of what _pack_x_kernel wrote: 512 contiguous bytes a load."""
    x0 = tl.load(x_ptrs)
    x1 = tl.load(x_ptrs + 256)
    x2 = tl.load(x_ptrs + 512)
    x3 = tl.load(x_ptrs + 768)
    x = tl.join(tl.join(x0, x2), tl.join(x1, x3))
    # row, lane, i / 2, i % 2, half, word / 2, word % 2
    x = tl.reshape(x, (ROWS, 4, 2, 2, 2, 2, 2))
    if WIDE:
        x = tl.permute(x, (0, 5, 6, 2, 1, 3, 4))
    else:
        x = tl.permute(x, (0, 5, 6, 2, 3, 1, 4))
    return tl.trans(tl.reshape(x, (ROWS, 128)))


@triton.jit(do_not_specialize=["M"])
def _pack_x_kernel(
    x_ptr, packed_ptr, M, K, stride_x, TILES: tl.constexpr, PDL: tl.constexpr
):
    """Put x into the order in which the GEMM's lanes read it, padded with zeros.

    packed is [rows / 8, tiles of K, word, row of eight, lane, pair, half].
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * 8
    index = tl.arange(0, 1024 * TILES)
    tile = tl.program_id(1) * TILES + index // 1024
    within = index % 1024
    word = within // 256
    row += within // 32 % 8
    k = tile * 128 + within // 8 % 4 * 32 + word * 8 + within // 2 % 4 + within % 2 * 4
    mask = (row < M) & (k < K)
    x = tl.load(x_ptr + row.to(tl.int64) * stride_x + k, mask=mask, other=0.0)
    tiles = tl.cdiv(K, 128)
    start = (tl.program_id(0).to(tl.int64) * tiles + tile) * 1024
    tl.store(packed_ptr + start + within, x, mask=tile < tiles)


@triton.jit(do_not_specialize=["M"])
def _w4a16_kernel(
    x_ptr,
    weight_ptr,  # int32 words of eight codes
    scale_ptr,  # int32 words of four scales
    global_scale_ptr,
    bias_ptr,
    out_ptr,  # BF16 [M, N], or FP32 [splits, M, N]
    M,
    N,  # columns of out
    K,
    weight_rows,
    stride_x,
    stride_w,  # words
    scale_columns,  # words
    k_per_split,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
    EVEN_K: tl.constexpr,
    PACKED_X: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    # The scales of rows n, n + 32, n + 64, n + 96 stand side by side in the
    # 128x4 layout. A program takes these four for eight values of n.
    ROWS: tl.constexpr = 32
    pid_n = tl.program_id(0)
    pid_k = tl.program_id(1)
    pid_m = tl.program_id(2)
    block = pid_n // 4
    first = pid_n % 4 * 8

    index = tl.arange(0, ROWS)  # quarter of 128, row of eight
    rows = block * 128 + first + index // 8 * 32 + index % 8
    safe_rows = tl.minimum(rows, weight_rows - 1).to(tl.int64)
    columns = tl.arange(0, 16)
    lanes = tl.arange(0, 4)

    stride_w = tl.multiple_of(stride_w, 4)
    weight_ptrs = weight_ptr + safe_rows[:, None] * stride_w + columns[None, :]
    eights = first + tl.arange(0, 8)
    scale_ptrs = (
        scale_ptr
        + (block * scale_columns).to(tl.int64) * 128
        + (eights * 4)[:, None, None]
        + (lanes // 2 * 128)[None, :, None]
        + tl.arange(0, 4)[None, None, :]
    )
    shift = (lanes % 2 * 16).to(tl.uint32)

    ms = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    chunk = tl.arange(0, 32)
    if PACKED_X:
        blocks = (ms // 8).to(tl.int64) * (tl.cdiv(K, 128) * 1024) + ms % 8 * 32
        x_ptrs = x_ptr + blocks[:, None] + chunk[None, :]
    else:
        chunk = (chunk // 8 * 32 + chunk % 8)[None, :]
        # Rows past M repeat the last one; they are never stored.
        safe_ms = tl.minimum(ms, M - 1).to(tl.int64)
        x_ptrs = x_ptr + safe_ms[:, None] * stride_x + chunk
        x_mask = ms[:, None] < M

    if PDL:  # let the second pass be launched; wait for the packed x
        tl.extra.cuda.gdc_launch_dependents()
        if PACKED_X:
            tl.extra.cuda.gdc_wait()
    begin = pid_k * k_per_split
    end = tl.minimum(begin + k_per_split, K)
    acc = tl.zeros((ROWS, BLOCK_M), dtype=tl.float32)
    for k in range(begin, end, 128):
        if EVEN_K:
            words = tl.load(
                weight_ptrs + tl.multiple_of(k // 8, 16),
                eviction_policy="evict_first",
            )
            scales = tl.load(scale_ptrs + tl.multiple_of(k * 2, 256))
        else:
            in_k = (k // 8 + columns)[None, :] < K // 8
            words = tl.load(weight_ptrs + k // 8, mask=in_k, other=0)
            in_k = (k // 64 + lanes // 2)[None, :, None] < scale_columns
            scales = tl.load(scale_ptrs + k * 2, mask=in_k, other=0)
        words = words.to(tl.uint32, bitcast=True)
        scales = scales.to(tl.uint32, bitcast=True) >> shift[None, :, None]
        scales = tl.reshape(tl.permute(scales, (2, 0, 1)), (ROWS, 4))
        w = _dequant_tile(words, scales, ROWS, WIDE, INTERPRET)
        if PACKED_X:
            x_tile = x_ptrs + tl.multiple_of(k * 8, 1024)
            x = _load_packed_x_tile(x_tile, BLOCK_M, WIDE)
        else:
            x = _load_x_tile(x_ptrs + k, x_mask, k + chunk, K, BLOCK_M, EVEN_K, WIDE)
        if INTERPRET:
            x = x.to(tl.float32)
        acc = tl.dot(w, x, acc)

    acc *= tl.load(global_scale_ptr) * 256.0
    in_out = (rows < N)[:, None] & (ms < M)[None, :]
    if SPLIT:
        out_ptr += pid_k.to(tl.int64) * M * N
    elif HAS_BIAS:
        bias = tl.load(bias_ptr + rows, mask=rows < N, other=0.0)
        acc += bias.to(tl.float32)[:, None]
    out_ptrs = out_ptr + ms[None, :].to(tl.int64) * N + rows[:, None]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=in_out)


@triton.jit(do_not_specialize=["size"])
def _reduce_splits_kernel(
    partial_ptr,
    bias_ptr,
    out_ptr,
    size,  # M * N
    N,
    HAS_BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Sum the partial results in a fixed order: the same bits every time."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(partial_ptr + split * size + offsets, mask=mask, other=0.0)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + offsets % N, mask=mask, other=0.0)
        total += bias.to(tl.float32)
    tl.store(out_ptr + offsets, total.to(out_ptr.dtype.element_ty), mask=mask)


# Warps that one SM holds, by BLOCK_M: what the registers allow, as measured best.
_RESIDENT_WARPS = {8: 27, 16: 16, 32: 12, 64: 8}


def _plan(m: int, rows: int, k: int, units: int) -> tuple[int, int, int]:
    """Tile sizes for a problem, from its sizes and the number of SMs alone.

    Returns:
        BLOCK_M, the number of splits of K, and the K of one split. Of the
        splits, the one with the fewest rounds of resident programs for its
        share of K, at 2.5% a split and eight rows for the second pass.

    """
    block_m = min(max(next_power_of_2(m), 8), MAX_BLOCK_M)
    programs = cdiv(rows, 128) * 4 * cdiv(m, block_m)
    tiles = cdiv(k, TILE_K)
    resident = _RESIDENT_WARPS[block_m] * units

    def cost(splits: int) -> float:
        rounds = cdiv(programs * splits, resident)
        return rounds / splits * (1 + splits * block_m / 320)

    splits = min(range(1, max(1, min(tiles // 2, MAX_SPLITS)) + 1), key=cost)
    tiles_per_split = cdiv(tiles, splits)
    return block_m, cdiv(tiles, tiles_per_split), tiles_per_split * TILE_K


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    output_size: int,
) -> None:
    if x.dtype != torch.bfloat16:
        raise ValueError(f"NVFP4 W4A16 needs BF16 activations, got {x.dtype}")
    if x.ndim != 2 or x.stride(1) != 1:
        raise ValueError(
            "NVFP4 W4A16 needs activations [M, K] with K contiguous, got shape "
            f"{tuple(x.shape)}, strides {x.stride()}"
        )
    if weight.dtype != torch.uint8 or weight.ndim != 2 or not weight.is_contiguous():
        raise ValueError(
            "NVFP4 W4A16 needs contiguous uint8 weights [N, K / 2], got "
            f"{weight.dtype} {tuple(weight.shape)}"
        )
    rows, padded_k = weight.shape[0], weight.shape[1] * 2
    k = x.shape[1]
    if k % BLOCK_SIZE or padded_k % 32 or not 0 <= padded_k - k < 64:
        raise ValueError(
            f"NVFP4 W4A16 needs K in multiples of {BLOCK_SIZE} and weights padded "
            f"to multiples of 32, got activations with K = {k}, weights with "
            f"K = {padded_k}"
        )
    if not 0 < output_size <= rows:
        raise ValueError(
            f"NVFP4 W4A16: {output_size} outputs asked of {rows} weight rows"
        )
    expected = round_up(rows, 128) * round_up(cdiv(padded_k, BLOCK_SIZE), 4)
    if (
        weight_scale.dtype not in (torch.float8_e4m3fn, torch.uint8)
        or not weight_scale.is_contiguous()
        or weight_scale.numel() != expected
    ):
        raise ValueError(
            f"NVFP4 W4A16 needs {expected} e4m3 scales in the 128x4 layout for "
            f"weights [{rows}, {padded_k}], got {weight_scale.dtype} "
            f"{tuple(weight_scale.shape)}"
        )


def _nvfp4_w4a16_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    output_size: int,
) -> torch.Tensor:
    _check(x, weight, weight_scale, output_size)
    m, k = x.shape
    rows = weight.shape[0]
    out = x.new_empty((m, output_size))
    if m == 0:
        return out
    units = num_compute_units(x.device.index or 0)
    block_m, splits, k_per_split = _plan(m, rows, k, units)
    split = splits > 1
    target = (
        x.new_empty((splits, m, output_size), dtype=torch.float32) if split else out
    )
    words = weight.view(torch.int32)
    scales = weight_scale.view(torch.int32)
    interpret = os.environ.get("TRITON_INTERPRET") == "1"
    pdl = not interpret and current_platform.has_device_capability(90)
    launch_pdl = {"launch_pdl": True} if pdl else {}
    pack = m > PACK_ABOVE_M and m * rows * k >= PACK_FROM_PRODUCTS
    if pack:
        blocks, tiles = cdiv(m, block_m) * (block_m // 8), cdiv(k, TILE_K)
        packed = x.new_empty((blocks, tiles, 8 * TILE_K))
        _pack_x_kernel[(blocks, cdiv(tiles, 2))](
            x, packed, m, k, x.stride(0), TILES=2, PDL=pdl, num_warps=4
        )
    grid = (cdiv(rows, 128) * 4, splits, cdiv(m, block_m))
    _w4a16_kernel[grid](
        packed if pack else x,
        words,
        scales,
        weight_global_scale,
        bias,
        target,
        m,
        output_size,
        k,
        rows,
        x.stride(0),
        words.stride(0),
        round_up(cdiv(weight.shape[1] * 2, BLOCK_SIZE), 4) // 4,
        k_per_split,
        HAS_BIAS=bias is not None,
        SPLIT=split,
        EVEN_K=k % TILE_K == 0,
        PACKED_X=pack,
        BLOCK_M=block_m,
        WIDE=OPERAND_IS_WIDE,
        PDL=pdl,
        INTERPRET=interpret,
        num_warps=1,
        num_stages=1,
        **(launch_pdl if pack else {}),
    )
    if split:
        size = m * output_size
        block = 256
        _reduce_splits_kernel[(cdiv(size, block),)](
            target,
            bias,
            out,
            size,
            output_size,
            HAS_BIAS=bias is not None,
            SPLITS=splits,
            BLOCK=block,
            PDL=pdl,
            num_warps=4,
            **launch_pdl,
        )
    return out


def _nvfp4_w4a16_gemm_fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    output_size: int,
) -> torch.Tensor:
    return x.new_empty((x.shape[0], output_size))


direct_register_custom_op(
    op_name="nvfp4_w4a16_gemm",
    op_func=_nvfp4_w4a16_gemm,
    fake_impl=_nvfp4_w4a16_gemm_fake,
)


class TritonNvFp4W4A16LinearKernel(NvFp4LinearKernel):
    """BF16 x NVFP4 GEMM in Triton, for small batches, on the FP4 GEMMs' layout."""

    @classmethod
    def is_supported(
        cls, compute_capability: int | None = None
    ) -> tuple[bool, str | None]:
        if not current_platform.is_cuda():
            return False, "Triton NVFP4 W4A16 requires CUDA"
        if not current_platform.has_device_capability(80):
            return False, "Triton NVFP4 W4A16 requires sm_80 or newer"
        if not HAS_TRITON:
            return False, "Triton is not installed"
        return True, None

    @classmethod
    def can_implement(cls, config: NvFp4LinearLayerConfig) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        replace_parameter(
            layer, "weight_scale", swizzle_blockscale(layer.weight_scale.data)
        )
        padded_weight, _ = pad_nvfp4_weight_for_cutlass(layer.weight.data)
        replace_parameter(layer, "weight", padded_weight)

    def apply_weights(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        output_size = layer.output_size_per_partition
        x_2d = x.reshape(-1, x.shape[-1])
        out = torch.ops.vllm.nvfp4_w4a16_gemm(
            x_2d if x_2d.stride(1) == 1 else x_2d.contiguous(),
            layer.weight,
            layer.weight_scale,
            layer.weight_global_scale,
            bias,
            output_size,
        )
        return out.view(*x.shape[:-1], output_size)
