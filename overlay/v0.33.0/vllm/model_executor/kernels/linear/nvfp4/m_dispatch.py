# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""NVFP4 linear layers that pick their GEMM by the number of rows M.

At small M the weights' bytes are the cost, and a weight-only GEMM with BF16
activations is as fast as the memory and nearer to the BF16 model. At large M
the FP4 x FP4 GEMM has several times its speed. Both read the same buffers
(packed e2m1 weights, 128x4-swizzled scales), so a layer can use both.

The choice is made inside one opaque custom op. torch.compile sees no branch on
M; a CUDA graph holds the choice for the size it was captured with. Quantised
activations are not accepted (`input_quant_key` is None), since only one of the
two GEMMs could read them.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

import vllm.envs as envs
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.flashinfer import has_flashinfer_bf16_fp4
from vllm.utils.torch_utils import direct_register_custom_op

from .base import NvFp4LinearKernel, NvFp4LinearLayerConfig
from .cutlass import CutlassNvFp4LinearKernel
from .flashinfer import (
    FlashInferB12xNvFp4LinearKernel,
    FlashInferCudnnNvFp4LinearKernel,
    FlashInferCutlassNvFp4LinearKernel,
)
from .m_dispatch_table import (
    DEFAULT_TABLE,
    Machine,
    Step,
    Table,
    load_table,
)
from .triton_w4a16 import TritonNvFp4W4A16LinearKernel

logger = init_logger(__name__)

# The FP4 GEMMs whose buffers the weight-only kernels can read.
SHARED_LAYOUT_KERNELS: tuple[type[NvFp4LinearKernel], ...] = (
    FlashInferCutlassNvFp4LinearKernel,
    FlashInferB12xNvFp4LinearKernel,
    CutlassNvFp4LinearKernel,
    FlashInferCudnnNvFp4LinearKernel,
)

_bases: dict[str, NvFp4LinearKernel] = {}


def has_flashinfer_native() -> bool:
    """Whether FlashInfer's W4A16 GEMM on the shared layout can run here."""
    if not current_platform.is_device_capability_family(120):
        return False
    if not has_flashinfer_bf16_fp4():
        return False
    from flashinfer.gemm import gemm_bf16_fp4

    return hasattr(gemm_bf16_fp4, "check_native_bf16_fp4")


def _flashinfer_native(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    output_size: int,
) -> torch.Tensor:
    from flashinfer.gemm import mm_bf16_fp4

    padding = weight.shape[1] * 2 - x.shape[1]
    if padding:
        x = torch.nn.functional.pad(x, (0, padding))
    out = mm_bf16_fp4(
        x.contiguous(),
        weight,
        weight_scale.view(torch.uint8),
        weight_global_scale.reshape(1),
        backend="cute-dsl-native",
    )
    if out.shape[1] != output_size:
        out = out[:, :output_size].contiguous()
    return out if bias is None else out + bias


def _triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    output_size: int,
) -> torch.Tensor:
    return torch.ops.vllm.nvfp4_w4a16_gemm(
        x if x.stride(1) == 1 else x.contiguous(),
        weight,
        weight_scale,
        weight_global_scale,
        bias,
        output_size,
    )


WEIGHT_ONLY = {"flashinfer_native": _flashinfer_native, "triton": _triton}


def this_machine() -> Machine:
    """What a table is compared with: the card and the versions that matter."""
    import importlib.metadata

    import vllm
    from vllm.utils.import_utils import import_pynvml

    capability = current_platform.get_device_capability()
    versions = {"vllm": vllm.__version__, "torch": str(torch.__version__)}
    for name in ("triton", "flashinfer-python", "nvidia-cutlass-dsl"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    pynvml = import_pynvml()
    try:
        pynvml.nvmlInit()
        versions["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        versions["driver"] = "unknown"
    return Machine(
        name=current_platform.get_device_name(),
        capability="none" if capability is None else capability.as_version_str(),
        versions=versions,
    )


def resolve_mode() -> str:
    """The user's choice: the environment variable, else the kernel config."""
    if envs.VLLM_NVFP4_M_DISPATCH is not None:
        return envs.VLLM_NVFP4_M_DISPATCH
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return "auto" if config is None else config.kernel_config.nvfp4_m_dispatch


@functools.cache
def resolve_table(mode: str) -> Table | None:
    """The table for a mode: the shipped one, or the user's, checked.

    Raises:
        TableError: if the user's table is broken or of another machine.

    """
    if mode == "always-w4a16":
        return None
    table = load_table(DEFAULT_TABLE if mode == "auto" else Path(mode))
    table.check_machine(this_machine())
    return table


@dataclass(frozen=True)
class Plan:
    """The kernels of one weight shape, in order of M; then the base."""

    steps: tuple[Step, ...]
    always: bool
    reason: str

    def kernel_for(self, m: int) -> str | None:
        """The weight-only kernel for M rows, or None for the base."""
        for step in self.steps:
            if m <= step.max_m:
                return step.kernel
        return self.steps[-1].kernel if self.always else None

    def describe(self, base: str) -> str:
        parts = []
        low = 1
        for step in self.steps:
            parts.append(f"M {low}..{step.max_m} {step.kernel}")
            low = step.max_m + 1
        last = self.steps[-1].kernel if self.always else base
        parts.append(f"M {low} and more {last}")
        return ", ".join(parts)


@functools.cache
def make_plan(mode: str, base: str, n: int, k: int) -> Plan:
    """Which kernel serves which M for weights [n, k]; logged once a shape."""
    available = "flashinfer_native" if has_flashinfer_native() else "triton"
    table = resolve_table(mode)
    if table is None:
        plan = Plan((Step("triton", 64),), True, mode)
        if available == "flashinfer_native":
            plan = Plan((Step(available, 64),), True, mode)
    else:
        rule = table.rule(base, n, k)
        steps = []
        for step in rule.steps if rule is not None else ():
            kernel = available if step.kernel == "w4a16" else step.kernel
            if kernel == "flashinfer_native" and available != kernel:
                logger.warning_once(
                    "NVFP4 dispatch table %s asks for FlashInfer's native W4A16 "
                    "GEMM, which is not available here; the next kernel takes its "
                    "place.",
                    table.path,
                )
                continue
            steps.append(Step(kernel, step.max_m))
        reason = f"table {table.path.name}, {table.origin} figures"
        if rule is None:
            reason += f", no rule for {base}"
        plan = Plan(tuple(steps), False, reason)
    logger.info_once(
        "NVFP4 linear [N %d, K %d]: %s (%s).", n, k, plan.describe(base), plan.reason
    )
    return plan


def _nvfp4_m_dispatch_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_global_scale: torch.Tensor,
    input_global_scale_inv: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None,
    output_size: int,
    base: str,
    mode: str,
) -> torch.Tensor:
    kernel = make_plan(mode, base, output_size, x.shape[1]).kernel_for(x.shape[0])
    if kernel is not None and x.dtype != torch.bfloat16:
        logger.warning_once(
            "NVFP4 M-dispatch: the weight-only kernels take BF16 activations, the "
            "model has %s; %s serves every M.",
            x.dtype,
            base,
        )
        kernel = None
    if kernel is not None:
        return WEIGHT_ONLY[kernel](
            x, weight, weight_scale, weight_global_scale, bias, output_size
        )
    layer = SimpleNamespace(
        weight=weight,
        weight_scale=weight_scale,
        weight_global_scale=weight_global_scale,
        input_global_scale_inv=input_global_scale_inv,
        alpha=alpha,
        input_size_per_partition=x.shape[1],
        output_size_per_partition=output_size,
    )
    return _bases[base].apply_weights(layer, x, bias)


def _nvfp4_m_dispatch_gemm_fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_global_scale: torch.Tensor,
    input_global_scale_inv: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor | None,
    output_size: int,
    base: str,
    mode: str,
) -> torch.Tensor:
    return x.new_empty((x.shape[0], output_size))


direct_register_custom_op(
    op_name="nvfp4_m_dispatch_gemm",
    op_func=_nvfp4_m_dispatch_gemm,
    fake_impl=_nvfp4_m_dispatch_gemm_fake,
)


class MDispatchNvFp4LinearKernel(NvFp4LinearKernel):
    """An FP4 GEMM, and a weight-only GEMM on the same buffers for small M."""

    def __init__(self, base: NvFp4LinearKernel, mode: str) -> None:
        self.config = base.config
        self.base = base
        self.base_name = type(base).__name__
        self.mode = mode
        _bases[self.base_name] = base

    @classmethod
    def is_supported(
        cls, compute_capability: int | None = None
    ) -> tuple[bool, str | None]:
        return False, "made by dispatch_on_m only"

    @classmethod
    def can_implement(cls, config: NvFp4LinearLayerConfig) -> tuple[bool, str | None]:
        return False, "made by dispatch_on_m only"

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        self.base.process_weights_after_loading(layer)
        make_plan(
            self.mode,
            self.base_name,
            layer.output_size_per_partition,
            layer.input_size_per_partition,
        )

    def apply_weights(
        self,
        layer: torch.nn.Module,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        output_size = layer.output_size_per_partition
        out = torch.ops.vllm.nvfp4_m_dispatch_gemm(
            x.reshape(-1, x.shape[-1]),
            layer.weight,
            layer.weight_scale,
            layer.weight_global_scale,
            layer.input_global_scale_inv,
            layer.alpha,
            bias,
            output_size,
            self.base_name,
            self.mode,
        )
        return out.view(*x.shape[:-1], output_size)


def dispatch_on_m(kernel: NvFp4LinearKernel) -> NvFp4LinearKernel:
    """Return `kernel`, or a kernel above it that dispatches on M.

    `auto` dispatches where the shipped table applies, on SM12x. Whatever was
    asked for and cannot be done is logged, and the kernel stays as it is.
    """
    mode = resolve_mode()
    if mode == "off":
        return kernel
    wished = mode != "auto"
    if not wished and not current_platform.is_device_capability_family(120):
        return kernel
    reason = None
    if envs.VLLM_BATCH_INVARIANT:
        reason = "VLLM_BATCH_INVARIANT wants one kernel for every M"
    elif type(kernel) not in SHARED_LAYOUT_KERNELS:
        reason = f"{type(kernel).__name__} does not use the shared layout"
    elif not TritonNvFp4W4A16LinearKernel.is_supported()[0]:
        reason = TritonNvFp4W4A16LinearKernel.is_supported()[1]
    if reason is not None:
        log = logger.warning_once if wished else logger.info_once
        log(
            "NVFP4 M-dispatch (%s) is not used: %s; %s serves every M.",
            mode,
            reason,
            type(kernel).__name__,
        )
        return kernel
    resolve_table(mode)
    return MDispatchNvFp4LinearKernel(kernel, mode)
