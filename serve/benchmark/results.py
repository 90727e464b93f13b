"""A benchmark's results: what llama-benchy measured, and on what."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec

from imagebuild.files import write_atomic
from serve import documents
from serve.errors import BenchmarkError
from serve.gates.report import Inputs

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """One place of the grid; rates in tokens a second, averages over the runs.

    Attributes:
        concurrency: requests at the same time.
        depth: tokens before the prompt that is measured.
        prompt, answer: tokens of the prompt and of the answer.
        prefill: prompt tokens of all requests.
        decode, decode_request: generated tokens of all requests, and of one.
        peak: generated tokens of all requests in the best second.
        first_token_ms: from the request to its first token, in milliseconds.
        spread: the standard deviation of `decode`, over the runs.
    """

    concurrency: int
    depth: int
    prompt: int
    answer: int
    prefill: float
    decode: float
    decode_request: float
    peak: float
    first_token_ms: float
    spread: float


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The document.

    Attributes:
        schema: the format's number.
        made: when, in UTC.
        tool: what measured.
        inputs: on what, as in a verification's report.
        points: the grid.
    """

    schema: int
    made: dt.datetime
    tool: str
    inputs: Inputs
    points: tuple[Point, ...]


def _mean(found: dict[str, Any], name: str) -> float:
    return round(float((found.get(name) or {}).get("mean") or 0.0), 2)


def of_tool(document: dict[str, Any], inputs: Inputs, path: object) -> Results:
    """Return what llama-benchy's JSON says.

    Raises:
        BenchmarkError: if it does not have the form of version 0.4.
    """
    try:
        points = tuple(
            Point(
                int(each["concurrency"]),
                int(each["context_size"]),
                int(each["prompt_size"]),
                int(each["response_size"]),
                _mean(each, "pp_throughput"),
                _mean(each, "tg_throughput"),
                _mean(each, "tg_req_throughput"),
                _mean(each, "peak_throughput"),
                _mean(each, "e2e_ttft"),
                round(float((each.get("tg_throughput") or {}).get("std") or 0.0), 2),
            )
            for each in document["benchmarks"]
            if not each["is_context_prefill_phase"]
        )
        tool = f"llama-benchy {document['version']}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchmarkError(
            "the benchmark's output cannot be read",
            file=path,
            expected="the JSON of llama-benchy 0.4",
            found=f"{type(error).__name__}: {error}",
            next_command="pip install 'llama-benchy>=0.4,<0.5'",
        ) from error
    if not points or not any(point.decode for point in points):
        raise BenchmarkError(
            "the benchmark measured nothing",
            file=path,
            expected="points with tokens",
            found=f"{len(points)} points",
            next_command="python -m serve status",
        )
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return Results(SCHEMA, now, tool, inputs, points)


def write(results: Results, path: Path) -> None:
    """Write the results.

    Raises:
        StorageError: if the file cannot be written.
    """
    write_atomic(path, msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def load(path: Path) -> Results:
    """Return the results in a file.

    Raises:
        BenchmarkError: if they are not of this format.
    """
    return documents.load(path, Results, SCHEMA, lambda found: _unreadable(path, found))


def _unreadable(path: Path, found: str) -> BenchmarkError:
    return BenchmarkError(
        "the results cannot be read",
        file=path,
        expected=f"results of schema {SCHEMA}",
        found=found,
        next_command="python -m serve bench",
    )


def table(results: Results) -> str:
    """Return the results as a Markdown table."""
    inputs = results.inputs
    lines = [
        f"# {inputs.profile} on {inputs.device}",
        "",
        (
            f"{results.made:%Y-%m-%d}, {results.tool}, vLLM {inputs.vllm}, driver "
            f"{inputs.driver or 'none'}, {inputs.drafts} drafted tokens, `{inputs.artefact}`."
        ),
        "",
        (
            "| requests | depth | prefill t/s | decode t/s | per request t/s | peak t/s "
            "| first token ms |"
        ),
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {p.concurrency} | {p.depth:,} | {p.prefill:,.0f} | {p.decode:.1f} ± {p.spread:.1f} "
        f"| {p.decode_request:.1f} | {p.peak:.0f} | {p.first_token_ms:,.0f} |"
        for p in results.points
    ]
    return "\n".join(lines) + "\n"
