"""`serve plan`: what fits on a card, before anything is downloaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve.cli.commands import emit, say

if TYPE_CHECKING:
    import argparse

    from serve.cli.commands import Commands
    from serve.planning.asking import Model


def add(commands: Commands) -> None:
    """Define the command."""
    parser = commands.add(
        "plan",
        "count what fits on a card, and how fast it can be at most",
        "MODEL is a profile, a checkpoint's folder, or OWNER/NAME on the hub, of which only the\n"
        "headers are read. The pool of tokens is counted as vLLM counts it.",
        run,
    )
    parser.add_argument("model", metavar="MODEL", help="what to plan for")
    parser.add_argument("--gpu", default=None, help="5090, 5090-laptop, 5080, pro-6000 or spark")
    parser.add_argument("--context", type=int, help="tokens of one sequence")
    parser.add_argument("--seqs", type=int, help="sequences at the same time")
    parser.add_argument("--kv", choices=["bfloat16", "fp8", "nvfp4"], help="type of the KV cache")
    parser.add_argument("--state", choices=["bfloat16", "float32"], help="type of the GDN state")
    parser.add_argument("--mtp", type=int, metavar="N", help="drafted tokens for each step")
    parser.add_argument("--pin", type=float, metavar="GIB", help="size of the KV pool")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture of all KV types")


def _asked(arguments: argparse.Namespace, model: Model) -> Model:
    from serve.planning.cards import GIB  # noqa: PLC0415  # `--help` answers without it

    asked, caching = model.asked, model.asked.caching
    caching = replace(
        caching,
        kv=arguments.kv or caching.kv,
        state=arguments.state or caching.state,
        drafts=caching.drafts if arguments.mtp is None else arguments.mtp,
    )
    asked = replace(
        asked,
        context=arguments.context or asked.context,
        sequences=arguments.seqs or asked.sequences,
        caching=caching,
        kv_pin=asked.kv_pin if arguments.pin is None else int(arguments.pin * GIB),
    )
    return replace(model, asked=asked)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan.

    Raises:
        BuildError: if the model or the card is not known.
    """
    from imagebuild.files import write_atomic  # noqa: PLC0415
    from serve import profile  # noqa: PLC0415
    from serve.planning import asking, picture, table  # noqa: PLC0415
    from serve.planning.cards import card  # noqa: PLC0415

    model = _asked(arguments, asking.of_name(arguments.model))
    if arguments.gpu is not None:
        on = card(arguments.gpu)
    elif arguments.model in profile.names():
        on = asking.card_of(profile.load(arguments.model).profile)
    else:
        on = card("5090")
    made = asking.make(model, on)
    facts = {name: {"value": value, "remark": remark} for name, value, remark in table.rows(made)}
    if arguments.svg is not None:
        kinds = [asking.make(asking.with_kv(model, kv), on) for kv in ("bfloat16", "fp8", "nvfp4")]
        write_atomic(arguments.svg, picture.render(kinds).encode())
        say(f"wrote     {arguments.svg}")
    emit(arguments, table.text(made), {"model": made.model, "fits": made.fits, "rows": facts})
    return 0
