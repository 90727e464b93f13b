"""Upstream's own CMake decides for which architectures kernels are built: asked, not guessed.

`CMakeLists.txt` filters the wanted architectures by those that it supports for the CUDA version,
and each kernel by its own list, with one function. 12.1 is not in the list for CUDA 13: it is
served by the family 12.0f. Where a kernel's list has no family, a wanted 12.1 vanishes silently.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from imagebuild.upstream import Line
    from imagebuild.verifying.verify import Report

_FUNCTION = re.compile(
    r"^(?:function|macro)\(cuda_archs_loose_intersection.*?^end(?:function|macro)\(\)",
    re.MULTILINE | re.DOTALL,
)
_BRANCH = re.compile(
    r"VERSION_GREATER_EQUAL (?P<version>[0-9.]+)\)(?:(?!VERSION_GREATER).)*?"
    r"set\(CUDA_SUPPORTED_ARCHS \"(?P<archs>[0-9.;a-z]+)\"\)",
    re.DOTALL,
)
_KERNEL = re.compile(r"cuda_archs_loose_intersection\(FP4_SM120_ARCHS \"([0-9.;a-z]+)\"")
_SCRIPT = """\
cmake_minimum_required(VERSION 3.20)
{function}
cuda_archs_loose_intersection(CUDA_ARCHS "{supported}" "{wanted}")
cuda_archs_loose_intersection(KERNEL "{kernel}" "${{CUDA_ARCHS}}")
message("RESULT ${{CUDA_ARCHS}} | ${{KERNEL}}")
"""


def check_gate(report: Report, tree: Path, line: Line, wanted: Sequence[str]) -> None:
    """Check that NVFP4 kernels are built for every wanted architecture, or for its family."""
    name = "upstream's CMake keeps the architectures"
    try:
        script = gate_script(tree, line.cuda, wanted)
    except (OSError, LookupError) as error:
        report.not_checked(name, "CMakeLists.txt in the known form", str(error))
        return
    try:
        said = _cmake(script)
    except (OSError, subprocess.SubprocessError) as error:
        report.not_checked(name, "cmake on PATH", type(error).__name__)
        return
    kept, _, kernel = said.partition("RESULT ")[2].strip().partition(" | ")
    lost = [arch for arch in wanted if not covered(arch, kernel.split(";"))]
    if lost:
        report.bad(name, "; ".join(wanted), f"no FP4 kernels for {', '.join(lost)}: {kernel}")
    else:
        report.ok(name, f"{'; '.join(wanted)} -> {kept}, FP4 kernels for {kernel}")


def _cmake(script: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".cmake") as file:
        file.write(script)
        file.flush()
        command = ["cmake", "-P", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stderr


def gate_script(tree: Path, cuda: str, wanted: Sequence[str]) -> str:
    """Return a CMake script that asks upstream's function.

    Raises:
        OSError: if the files are not there.
        LookupError: if they have another form than the known one.
    """
    lists = (tree / "CMakeLists.txt").read_text()
    function = _FUNCTION.search((tree / "cmake" / "utils.cmake").read_text())
    kernel = _KERNEL.search(lists)
    found = {match["version"]: match["archs"] for match in _BRANCH.finditer(lists)}
    fitting = [v for v in found if _number(v) <= _number(cuda)]
    if function is None or kernel is None or not fitting:
        raise LookupError("no such function, kernel list or CUDA version")
    return _SCRIPT.format(
        function=function[0],
        supported=found[max(fitting, key=_number)],
        wanted=";".join(wanted),
        kernel=kernel[1],
    )


def covered(arch: str, kernels: Sequence[str]) -> bool:
    """Return whether code for one of `kernels` runs on `arch`; `12.0f` runs on all of 12.x."""
    major = arch.partition(".")[0]
    return any(
        built.rstrip("af") == arch or (built.endswith("f") and built.partition(".")[0] == major)
        for built in kernels
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
