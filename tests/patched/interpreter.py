"""Triton's interpreter: vLLM's kernels run on the CPU, as they are.

vLLM drops Triton on its CPU platform. It keeps it where it finds no platform and no visible device,
so such a process is set up here, before vLLM is imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
