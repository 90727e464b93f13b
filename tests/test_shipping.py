"""Which produced files wheel and image carry, and which need a build."""

from __future__ import annotations

import pytest

from imagebuild.artifacts.shipping import Fate, fate, shipped
from imagebuild.errors import TargetError
from tests.support.artifacts import new, patched, patchset

BUILT = [
    "CMakeLists.txt",
    "cmake/utils.cmake",
    "csrc/ops.h",
    "csrc/quantization/fp4/nvfp4.cu",
    "docker/Dockerfile",
    "pyproject.toml",
    "requirements/cuda.txt",
    "rust/src/main.rs",
    "rust-toolchain.toml",
    "setup.py",
    "tools/build.py",
    "vllm/kernels/x.cu",
    "vllm/kernels/x.cuh",
    "vllm/native/CMakeLists.txt",
    "vllm/native/x.cpp",
]


@pytest.mark.parametrize("path", BUILT)
def test_what_only_a_build_brings_to_bear_is_refused(path: str) -> None:
    assert fate(path) is Fate.BUILT
    with pytest.raises(TargetError, match="build") as raised:
        shipped(patchset(patched(), new(path)))
    assert raised.value.file == path
    assert raised.value.next_command is not None
    assert raised.value.next_command.endswith("--target official")


@pytest.mark.parametrize("path", ["somewhere/x.py", "new_top_level.py", "vllm_extra/x.py"])
def test_a_file_that_no_rule_covers_is_refused(path: str) -> None:
    with pytest.raises(TargetError):
        shipped(patchset(new(path)))


@pytest.mark.parametrize("path", ["tests/x.py", "tests/kernels/x.cu", "docs/a.md", "README.md"])
def test_what_is_not_installed_is_left_out(path: str) -> None:
    assert shipped(patchset(patched(), new(path))) == (patched(),)


@pytest.mark.parametrize("path", ["vllm/x.py", "vllm/a/b/config.json", "vllm/a/template.jinja"])
def test_what_the_package_holds_is_shipped(path: str) -> None:
    assert shipped(patchset(new(path))) == (new(path),)


def test_the_order_of_the_patch_set_does_not_matter() -> None:
    files = (patched(), new("vllm/z.py"), new("vllm/a.py"))
    assert shipped(patchset(*files)) == shipped(patchset(*reversed(files)))
