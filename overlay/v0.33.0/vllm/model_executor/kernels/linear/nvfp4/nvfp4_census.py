# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Measure the NVFP4 GEMMs of a model on this card; write the dispatch table.

    python -m vllm.model_executor.kernels.linear.nvfp4.nvfp4_census MODEL \\
        --output table.json
    vllm serve MODEL --kernel-config '{"nvfp4_m_dispatch": "table.json"}'

MODEL is a folder with an NVFP4 checkpoint. Only the headers of its files are
read; weights are drawn at random. ``--shape N,K`` takes sizes in its place.
"""

import argparse
import json
import statistics
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import torch

from vllm.utils.math_utils import cdiv, round_up

from .base import NvFp4LinearKernel, NvFp4LinearLayerConfig
from .m_dispatch import (
    SHARED_LAYOUT_KERNELS,
    WEIGHT_ONLY,
    has_flashinfer_native,
    this_machine,
)
from .m_dispatch_table import (
    MAX_ROWS,
    Machine,
    Rule,
    Step,
    Table,
    TableError,
    to_json,
)
from .triton_w4a16 import TritonNvFp4W4A16LinearKernel

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 96, 128, 256, 512, 1024, 2048)
ROWS += (4096, 8192)
# Projections that vLLM fuses into one layer, by the name of their checkpoint.
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
ROW_PARALLEL = ("o_proj", "down_proj", "out_proj")

Measure = Callable[[str, int, int, int], float]


def _headers(folder: Path) -> dict[str, dict]:
    tensors: dict[str, dict] = {}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise TableError(f"{folder}: expected *.safetensors files, found none")
    for file in files:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        tensors.update(header)
    return tensors


def model_shapes(folder: Path, tensor_parallel: int = 1) -> list[tuple[int, int]]:
    """The distinct [N, K] of the NVFP4 linear layers of a checkpoint, as one rank
    of `tensor_parallel` holds them. Routed experts are no linear layers.

    Raises:
        TableError: if the folder has no NVFP4 linear layer.

    """
    tensors = _headers(folder)
    fused: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for name, entry in tensors.items():
        module, _, kind = name.rpartition(".")
        if kind not in ("weight", "weight_packed") or entry["dtype"] != "U8":
            continue
        if f"{module}.weight_scale" not in tensors or ".experts." in module:
            continue
        parent, _, leaf = module.rpartition(".")
        group = next((names[0] for names in FUSED if leaf in names), leaf)
        n, packed = entry["shape"]
        k = packed * 2
        if leaf in ROW_PARALLEL:
            k //= tensor_parallel
        else:
            n //= tensor_parallel
        fused.setdefault((parent, group), []).append((n, k))
    shapes = {(sum(n for n, _ in parts), parts[0][1]) for parts in fused.values()}
    if not shapes:
        raise TableError(f"{folder}: expected NVFP4 linear layers, found none")
    return sorted(shapes)


def choose_steps(times: dict[int, dict[str, float]], base: str) -> tuple[Step, ...]:
    """The fastest kernel of each M, up to the first M at which the base wins."""
    steps: list[Step] = []
    for m in sorted(times):
        at_m = times[m]
        kernel = min(at_m, key=lambda name: at_m[name])
        if kernel == base:
            break
        if steps and steps[-1].kernel == kernel:
            steps.pop()
        steps.append(Step(kernel, m))
    return tuple(steps)


def census(
    shapes: Iterable[tuple[int, int]],
    bases: Iterable[str],
    weight_only: Iterable[str],
    rows: Iterable[int],
    measure: Measure,
    machine: Machine,
) -> Table:
    """Measure every kernel at every shape and M; return the table."""
    measurements, rules = [], []
    bases, weight_only, rows = tuple(bases), tuple(weight_only), tuple(rows)
    for n, k in shapes:
        times: dict[str, dict[int, float]] = {}
        for kernel in (*bases, *weight_only):
            limit = MAX_ROWS.get(kernel)
            times[kernel] = {
                m: measure(kernel, n, k, m) for m in rows if limit is None or m <= limit
            }
            measurements += [
                {"n": n, "k": k, "m": m, "kernel": kernel, "us": round(us, 2)}
                for m, us in times[kernel].items()
            ]
        for base in bases:
            compared = {
                m: {
                    name: times[name][m]
                    for name in (base, *weight_only)
                    if m in times[name]
                }
                for m in rows
            }
            rules.append(Rule(base, n, k, choose_steps(compared, base)))
    return Table(
        path=Path("-"),
        origin="measured",
        source="nvfp4_census: median of CUDA graph replays, weights rotated past L2",
        device_name=machine.name,
        capabilities=(machine.capability,),
        versions=machine.versions,
        rules=tuple(rules),
        measurements=tuple(measurements),
    )


class Timer:
    """Times kernels on the current card, with weights rotated past its L2."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        properties = torch.cuda.get_device_properties(self.device)
        self.cache_bytes = properties.L2_cache_size
        self.bases: dict[str, NvFp4LinearKernel] = {}
        self._shape: tuple[int, int] | None = None
        self._layers: list[SimpleNamespace] = []

    def _layer(self, n: int, k: int) -> SimpleNamespace:
        rows, columns = round_up(n, 32), round_up(k, 32)
        scales = round_up(rows, 128) * round_up(cdiv(columns, 16), 4)
        one = torch.ones((), dtype=torch.float32, device=self.device)
        return SimpleNamespace(
            weight=torch.randint(
                256, (rows, columns // 2), dtype=torch.uint8, device=self.device
            ),
            weight_scale=torch.randint(
                0x30, 0x48, (scales,), dtype=torch.uint8, device=self.device
            )
            .view(torch.float8_e4m3fn)
            .view(round_up(rows, 128), -1),
            weight_global_scale=one,
            input_global_scale_inv=one.clone(),
            alpha=one.clone(),
            output_size_per_partition=n,
            input_size_per_partition=k,
        )

    def layers(self, n: int, k: int) -> list[SimpleNamespace]:
        if self._shape != (n, k):
            copies = max(2, cdiv(3 * self.cache_bytes, n * k * 9 // 16))
            self._layers = [self._layer(n, k) for _ in range(copies)]
            self._shape = (n, k)
        return self._layers

    def why_not(self, kernel: str, n: int, k: int) -> str | None:
        """Why a kernel that says it is supported cannot run; None if it can."""
        x = torch.randn(1, k, dtype=torch.bfloat16, device=self.device)
        try:
            self.bases[kernel].apply_weights(self.layers(n, k)[0], x)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def __call__(self, kernel: str, n: int, k: int, m: int) -> float:
        """Microseconds of one GEMM."""
        layers = self.layers(n, k)
        x = torch.randn(m, k, dtype=torch.bfloat16, device=self.device)

        def run() -> None:
            for layer in layers:
                if kernel in WEIGHT_ONLY:
                    WEIGHT_ONLY[kernel](
                        x,
                        layer.weight,
                        layer.weight_scale,
                        layer.weight_global_scale,
                        None,
                        n,
                    )
                else:
                    self.bases[kernel].apply_weights(layer, x)

        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        graph.replay()
        samples = []
        for _ in range(9):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / len(layers))
        return statistics.median(samples)


def _shape(text: str) -> tuple[int, int]:
    n, _, k = text.partition(",")
    if not (n.isdigit() and k.isdigit() and int(n) and int(k) and int(k) % 16 == 0):
        raise argparse.ArgumentTypeError(
            f"expected N,K with K a multiple of 16, got {text!r}"
        )
    return int(n), int(k)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when the table was written, else 1."""
    parser = argparse.ArgumentParser(
        prog="nvfp4_census", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("model", type=Path, nargs="?", help="checkpoint folder")
    parser.add_argument(
        "--shape",
        type=_shape,
        action="append",
        default=[],
        metavar="N,K",
        help="a weight shape to measure (may be repeated)",
    )
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--max-m", type=int, default=ROWS[-1])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    if (options.model is None) == (not options.shape):
        parser.error("give either a checkpoint folder or --shape")
    try:
        shapes = options.shape or model_shapes(
            options.model, options.tensor_parallel_size
        )
        supported, reason = TritonNvFp4W4A16LinearKernel.is_supported()
        if not supported:
            raise TableError(f"cannot measure here: {reason}")
        timer = Timer()
        for kernel in SHARED_LAYOUT_KERNELS:
            name = kernel.__name__
            supported, reason = kernel.is_supported()
            if supported:
                timer.bases[name] = kernel(NvFp4LinearLayerConfig())
                reason = timer.why_not(name, *shapes[0])
            if reason is not None:
                timer.bases.pop(name, None)
                print(f"left out: {name}: {reason}", file=sys.stderr)
        if not timer.bases:
            print(
                "no FP4 GEMM runs on this card: the table has measurements, and "
                "no rule",
                file=sys.stderr,
            )
        weight_only = ["triton"]
        if has_flashinfer_native():
            weight_only.insert(0, "flashinfer_native")

        def measure(kernel: str, n: int, k: int, m: int) -> float:
            us = timer(kernel, n, k, m)
            print(f"N {n} K {k} M {m} {kernel}: {us:.1f} us", file=sys.stderr)
            return us

        rows = [m for m in ROWS if m <= options.max_m]
        table = census(shapes, timer.bases, weight_only, rows, measure, this_machine())
        options.output.write_text(to_json(table), encoding="utf-8")
    except (TableError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {options.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
