"""For every process of a CPU server of a test: Triton's kernels run in the interpreter, for MTP."""

import runpy
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
runpy.run_path(str(_ROOT / "tests/patched/corruption/interpreted/sitecustomize.py"))
sys.path.append(str(_ROOT))

from tests.patched.interpreter import accept_integer_masks  # noqa: E402

accept_integer_masks()
