"""Running llama-benchy against a server: a process of its own, the key in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve.benchmark import book
from serve.errors import BenchmarkError

if TYPE_CHECKING:
    from serve.endpoint import Endpoint

KEY = "SERVE_BENCH_KEY"
# The tool takes the key as an argument only; this way no other process sees it.
_BOOT = (
    "import os, runpy, sys; "
    f"sys.argv += ['--api-key', os.environ.get('{KEY}') or 'EMPTY']; "
    "runpy.run_module('llama_benchy', run_name='__main__')"
)
INSTALL = "pip install 'vllm-sm120[bench]', or pip install -e '.[bench]' in a clone"


@dataclass(frozen=True)
class Grid:
    """What is measured.

    Attributes:
        depths: tokens before the prompt.
        concurrencies: requests at the same time.
        prompt, answer: tokens of the prompt and of the answer.
        runs: how often each place is measured.
    """

    depths: tuple[int, ...] = (2048, 8192, 32768, 131072)
    concurrencies: tuple[int, ...] = (1, 4, 8)
    prompt: int = 2048
    answer: int = 128
    runs: int = 3


def within(grid: Grid, context: int) -> Grid:
    """Return the grid without the depths that do not fit into a context.

    Raises:
        BenchmarkError: if none fits.
    """
    room = context - grid.prompt - grid.answer - _SLACK
    depths = tuple(depth for depth in grid.depths if depth <= room)
    if not depths:
        raise BenchmarkError(
            "no depth of the grid fits into the server's context",
            file="--depth",
            expected=f"at most {max(room, 0)} tokens",
            found=", ".join(str(depth) for depth in grid.depths),
            next_command="python -m serve bench --depth 0 --pp 128 --tg 32",
        )
    return Grid(depths, grid.concurrencies, grid.prompt, grid.answer, grid.runs)


_SLACK = 256


def command(endpoint: Endpoint, grid: Grid, tokenizer: str, address: str, out: Path) -> list[str]:
    """Return the command line, which holds no secret."""
    return [
        sys.executable, "-c", _BOOT,
        "--base-url", f"{endpoint.url}/v1", "--model", endpoint.model, "--tokenizer", tokenizer,
        "--pp", str(grid.prompt), "--tg", str(grid.answer),
        "--depth", *(str(depth) for depth in grid.depths),
        "--concurrency", *(str(each) for each in grid.concurrencies),
        "--runs", str(grid.runs), "--book-url", address, "--exact-tg", "--skip-coherence",
        "--latency-mode", "api", "--exit-on-first-fail",
        "--save-result", str(out), "--format", "json",
    ]  # fmt: skip


def run(endpoint: Endpoint, grid: Grid, tokenizer: str, limit_s: float) -> dict[str, Any]:
    """Return llama-benchy's result as it wrote it.

    Raises:
        BenchmarkError: if it is not installed, fails, or takes longer than `limit_s`.
    """
    with tempfile.TemporaryDirectory() as scratch, book.served() as address:
        out = Path(scratch) / "result.json"
        environ = {
            **os.environ,
            KEY: endpoint.api_key or "",
            "HF_HUB_OFFLINE": "1",
            "XDG_CACHE_HOME": scratch,
            "HOME": scratch,
            "NO_PROXY": "*",
        }
        line = command(endpoint, grid, tokenizer, address, out)
        try:
            done = subprocess.run(
                line,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as error:
            raise _failed(f"not done after {limit_s:.0f} s", "--timeout SECONDS") from error
        said = [each for each in done.stdout.splitlines() if each.strip()]
        if "No module named" in done.stdout and "llama_benchy" in done.stdout:
            raise _failed("llama-benchy is not installed", INSTALL)
        if done.returncode or not out.is_file():
            found = next(
                (e for e in reversed(said) if "rror" in e), said[-1] if said else "nothing"
            )
            raise _failed(found, "python -m serve status")
        result: dict[str, Any] = json.loads(out.read_bytes())
        return result


def _failed(found: str, do: str) -> BenchmarkError:
    return BenchmarkError(
        "the benchmark did not come to its end",
        file="llama-benchy",
        expected="a result for every place of the grid",
        found=found,
        next_command=do,
    )
