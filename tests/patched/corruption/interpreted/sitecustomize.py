"""For every Python process of a test: vLLM keeps Triton on a CPU, and runs it in the interpreter.

vLLM's CPU build asks for a Triton backend called `cpu`. The interpreter needs none, so a name does.
"""
# mypy: disable-error-code="import-not-found"

from types import SimpleNamespace

from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))
