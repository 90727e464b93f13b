"""`serve bench`: how fast the running server is, over depth and concurrency."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from serve.cli.commands import api_key, emit, say

if TYPE_CHECKING:
    import argparse

    from serve.benchmark.results import Results
    from serve.cli.commands import Commands

_LIMIT_S = 4 * 3600


def add(commands: Commands) -> None:
    """Define the command."""
    parser = commands.add(
        "bench",
        "measure the running server with llama-benchy, and draw the results",
        "Results go into a folder as JSON, Markdown and SVG; what others have published for an\n"
        "RTX 5090 is drawn beside, marked as theirs. Needs the extra `bench`.",
        run,
    )
    parser.add_argument("--depth", type=int, nargs="+", help="tokens before the prompt")
    parser.add_argument("--concurrency", type=int, nargs="+", help="requests at the same time")
    parser.add_argument("--pp", type=int, metavar="TOKENS", help="tokens of the prompt")
    parser.add_argument("--tg", type=int, metavar="TOKENS", help="tokens of the answer")
    parser.add_argument("--runs", type=int, help="how often each place is measured")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where the results go")
    parser.add_argument("--timeout", type=float, default=_LIMIT_S, metavar="SECONDS")
    parser.add_argument(
        "--draw", type=Path, metavar="RESULTS.json", help="draw results again, without measuring"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and draw.

    Raises:
        BenchmarkError: if it does not come to its end.
        EngineError: if nothing was started.
    """
    from imagebuild.files import write_atomic  # noqa: PLC0415  # `--help` answers without it
    from serve.benchmark import chart, published, results  # noqa: PLC0415

    if arguments.draw is not None:
        found, path = results.load(arguments.draw), arguments.draw
    else:
        found = _measure(arguments)
        folder = arguments.output or _folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"bench-{found.inputs.profile}-{found.made:%Y%m%dT%H%M%SZ}.json"
        results.write(found, path)
    table = results.table(found)
    write_atomic(path.with_suffix(".md"), table.encode())
    picture = chart.render(found, published.rows(found.inputs.profile))
    write_atomic(path.with_suffix(".svg"), picture.encode())
    emit(arguments, f"{table}\nresults   {path}", {"results": str(path)})
    return 0


def _folder() -> Path:
    from serve.launching import state  # noqa: PLC0415

    return state.folder() / "benchmarks"


def _measure(arguments: argparse.Namespace) -> Results:
    from serve import models, profile  # noqa: PLC0415
    from serve.benchmark import results, running  # noqa: PLC0415
    from serve.cli.verify import inputs_of  # noqa: PLC0415
    from serve.gates.client import AnswerError, Client  # noqa: PLC0415
    from serve.launching import state  # noqa: PLC0415

    server = state.require()
    named = profile.load(server.profile)
    endpoint = server.endpoint(api_key())
    plain = running.Grid()
    grid = running.Grid(
        tuple(arguments.depth or plain.depths),
        tuple(arguments.concurrency or plain.concurrencies),
        arguments.pp or plain.prompt,
        arguments.tg or plain.answer,
        arguments.runs or plain.runs,
    )
    grid = running.within(grid, named.profile.engine.context)
    say(f"measuring {len(grid.depths)} depths x {len(grid.concurrencies)}, {grid.runs} runs each")
    files = models.fetch(named)
    told = running.run(endpoint, grid, str(files.folder), arguments.timeout)
    try:
        version = Client(endpoint).version()
    except AnswerError:
        version = "unknown"
    return results.of_tool(told, inputs_of(named, server, server.drafts, version), "llama-benchy")
