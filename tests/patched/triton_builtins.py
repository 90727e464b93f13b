"""Triton builtins as functions, for kernels that reach them under a name of their module.

The interpreter replaces a builtin only where a kernel reaches it through `tl`.
"""
# mypy: disable-error-code="import-not-found, untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def exp(x):  # noqa: ANN001, ANN201
    """Return `tl.exp(x)`."""
    return tl.exp(x)
