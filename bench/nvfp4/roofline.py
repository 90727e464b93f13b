"""Bytes a token, the memory limit and the predicted decode speed on an RTX 5090.

usage: python -m bench.nvfp4.roofline

One number is fitted: the time of a layer outside its GEMMs, from the public row of Qwen3.5-27B on
Marlin. The CUTLASS row and the 35B-A3B row are then predictions. The other inputs: layer sizes, the
card's 1.79 TB/s and 170 SMs, and one public microbenchmark (N 5120, K 8704).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

TB_S, SMS = 1.79, 170
NVFP4 = 0.5 + 1 / 16  # bytes a weight
VOCABULARY = 248320
CUTLASS_US, CUTLASS_K, CUTLASS_TILE = 44.7, 8704, 128  # public: M 10, N 5120
W4A16_US, W4A16_BYTES = 14.0, 5120 * 8704 * NVFP4  # public: Marlin, the same shape


@dataclass(frozen=True)
class Model:
    """Sizes of a Qwen3.5 hybrid; every linear layer in NVFP4, head and router in BF16.

    Attributes:
        linears: (count, N, K) of the NVFP4 GEMMs of one token.
        state: bytes of GDN state read and written for a token.
    """

    name: str
    layers: int
    hidden: int
    linears: tuple[tuple[int, int, int], ...]
    state: float
    router: float = 0.0

    @property
    def fp4_bytes(self) -> float:
        """Bytes of NVFP4 weights read for a token."""
        return sum(count * n * k for count, n, k in self.linears) * NVFP4

    @property
    def other_bytes(self) -> float:
        """Bytes of everything else read or written for a token."""
        return VOCABULARY * self.hidden * 2 + self.state + self.router


DENSE = Model(
    "27B", 64, 5120,
    (
        (64, 34816, 5120), (64, 5120, 17408),
        (16, 14336, 5120), (16, 5120, 6144),
        (48, 16384, 5120), (48, 5120, 6144),
    ),
    state=48 * 48 * 128 * 128 * 4 * 2,
)  # fmt: skip
SPARSE = Model(
    "35B-A3B", 40, 2048,
    (
        (40 * 9, 1024, 2048), (40 * 9, 2048, 512),  # eight experts and the shared one
        (10, 9216, 2048), (10, 2048, 4096),
        (30, 12288, 2048), (30, 2048, 4096),
    ),
    state=30 * 32 * 128 * 128 * 4 * 2,
    router=40 * 256 * 2048 * 2,
)  # fmt: skip


def memory_ms(size: float) -> float:
    """Return the time to read `size` bytes."""
    return size / TB_S / 1e9


def cutlass_ms(model: Model) -> float:
    """Return the FP4 GEMMs' time: waves of 128-wide tiles, each walking all of K, or the memory.

    One tile's speed along K is the microbenchmark's, whose 40 tiles are all in the first wave.
    """
    total = 0.0
    for count, n, k in model.linears:
        waves = math.ceil(math.ceil(n / CUTLASS_TILE) / SMS)
        walk = waves * CUTLASS_US * k / CUTLASS_K
        total += count * max(walk, n * k * NVFP4 / TB_S / 1e6)
    return total / 1e3


def main() -> int:
    """Print the tables."""
    print(f"W4A16 at M 10, public: {W4A16_BYTES / W4A16_US / 1e6:.2f} TB/s of {TB_S}\n")
    print("| model | NVFP4 GB | BF16 head, router, state GB | memory limit ms | t/s |")
    print("| --- | --- | --- | --- | --- |")
    for model in (DENSE, SPARSE):
        limit = memory_ms(model.fp4_bytes + model.other_bytes)
        print(f"| {model.name} | {model.fp4_bytes / 1e9:.2f} | {model.other_bytes / 1e9:.2f} "
              f"| {limit:.2f} | {1e3 / limit:.0f} |")  # fmt: skip
    floor = memory_ms(DENSE.fp4_bytes + DENSE.other_bytes)
    layer_ms = (1e3 / 80 - floor) / DENSE.layers
    print(f"\nfitted: {layer_ms * 1e3:.0f} us a layer outside the GEMMs (27B, Marlin, 80 t/s)\n")
    print("| model | GEMM | predicted ms | predicted t/s | public t/s | difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    rows = (
        (DENSE, "Marlin", memory_ms(DENSE.fp4_bytes), 80),
        (DENSE, "FlashInfer CUTLASS", cutlass_ms(DENSE), 58),
        (DENSE, "W4A16 of this patch, at the memory limit", memory_ms(DENSE.fp4_bytes), None),
        (SPARSE, "any, at the memory limit", memory_ms(SPARSE.fp4_bytes), 256),
        (SPARSE, "any, at the memory limit (v0.17 row)", memory_ms(SPARSE.fp4_bytes), 196),
    )
    for model, name, gemms, public in rows:
        total = gemms + memory_ms(model.other_bytes) + model.layers * layer_ms
        speed = 1e3 / total
        known = f"{public} | {speed / public - 1:+.0%}" if public else "- | -"
        print(f"| {model.name} | {name} | {total:.2f} | {speed:.0f} | {known} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
