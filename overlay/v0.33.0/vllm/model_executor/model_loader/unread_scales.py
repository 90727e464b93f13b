# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which scales of a checkpoint nothing reads, said once when it is loaded.

A scale without a parameter is passed over by design, since KV cache scales are of
no use to most models. Where it was meant to be used, its absence is only noticed
in the model's answers.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from vllm.logger import init_logger
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

logger = init_logger(__name__)

_KV_SCALES = ("q_scale", "k_scale", "v_scale")


def _is_scale(name: str) -> bool:
    leaf = name.rpartition(".")[2]
    return "scale" in leaf or leaf.endswith("zero_point")


class UnreadScales:
    """Collects the scales that loaders pass over while a model is loaded."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._current = ""

    def watch(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Pass the checkpoint's weights on, remembering which one is in work."""
        for name, weight in weights:
            self._current = name
            yield name, weight

    def ignored(self, name: str) -> None:
        """Note that a loader has no use for the weight in work, `name` to it."""
        if _is_scale(name):
            self.names.append(self._current or name)

    @staticmethod
    def _of_no_use(model: nn.Module) -> Iterator[str]:
        """Yield the scale parameters that this configuration does not use."""
        for name, module in model.named_modules():
            method = getattr(module, "quant_method", None)
            spec = getattr(method, "spec", None)
            if isinstance(method, BaseKVCacheMethod):
                dtype = getattr(module, "kv_cache_dtype", "auto")
                if not is_quantized_kv_cache(dtype):
                    yield from (f"{name}.{s}" for s in _KV_SCALES)
            elif spec is not None and spec.activation is None:
                yield f"{name}.input_scale"

    def report(self, model: nn.Module, loaded: set[str] | None) -> None:
        """Log what was passed over or loaded in vain, with counts and an example."""
        of_no_use = self._of_no_use(model) if loaded else ()
        names = [*self.names, *(name for name in of_no_use if name in (loaded or ()))]
        if not names:
            return
        counts = Counter(name.rpartition(".")[2] for name in names)
        logger.warning_once(
            "%d scales of the checkpoint are read by nothing: %s; for example %s. "
            "Scales of the KV cache are used with a quantized --kv-cache-dtype only, "
            "input scales by kernels that quantize activations.",
            len(names),
            ", ".join(f"{count} {leaf}" for leaf, count in sorted(counts.items())),
            names[0],
        )


_ACTIVE: ContextVar[UnreadScales | None] = ContextVar("unread_scales", default=None)


@contextmanager
def collect_unread_scales() -> Iterator[UnreadScales]:
    """Collect what loaders pass over inside the block."""
    scales = UnreadScales()
    token = _ACTIVE.set(scales)
    try:
        yield scales
    finally:
        _ACTIVE.reset(token)


def note_ignored(name: str) -> None:
    """Tell the model loader, if one collects, that a weight is passed over."""
    if (scales := _ACTIVE.get()) is not None:
        scales.ignored(name)
