"""Triton's interpreter: vLLM's kernels run on the CPU, as they are.

vLLM drops Triton on its CPU platform. It keeps it where it finds no platform and no visible device,
so such a process is set up here, before vLLM is imported.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def enable() -> None:
    """Make this process run Triton kernels in the interpreter. Call it before importing vLLM.

    Raises:
        RuntimeError: if vLLM or Triton was imported already, with the choice made.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        early = sorted({"triton", "vllm"} & set(sys.modules))
        if early:
            raise RuntimeError(f"{', '.join(early)} imported before interpreter.enable()")
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.pop("VLLM_TARGET_DEVICE", None)
        sys.path.insert(0, str(Path(os.environ["VLLM_SM120_TREE"]) / "interpreter"))
        accept_integer_masks()


def accept_integer_masks() -> None:
    """Mend a fault of Triton 3.9's interpreter: `&` of a scalar and a block gives integer masks."""
    from triton.runtime.interpreter import (
        InterpreterBuilder,
        TensorHandle,
    )

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def as_bool(mask: Any) -> Any:
        return TensorHandle(mask.data.astype(bool), mask.dtype)

    def create_masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        return load(self, pointers, as_bool(mask), *rest)

    def create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return store(self, pointers, value, as_bool(mask), *rest)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store
