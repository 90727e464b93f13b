"""The arguments of every command. Command modules import nothing heavy before they run."""

from __future__ import annotations

import argparse

from serve.cli import pin, plan, profiles, start, stop, upgrade, verify
from serve.cli.commands import Commands

# Each module has `add(commands)`, which defines the command and sets `run`.
MODULES = (start, stop, upgrade, verify, plan, profiles, pin)

_DESCRIPTION = """\
Serve a Qwen3.5, 3.6 or 3.8 hybrid in NVFP4 on consumer Blackwell with the patched vLLM: start it by
digest, look at it, check what it answers, stop it.
"""
_EPILOG = """\
exit status: 0 done; 2 usage; 10-41 as build.py; 50-56 serving; 130 ended. docs/exit-codes.md lists
them; every error names the file, what was expected, what was found and the next command.
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="python -m serve",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = Commands(parser.add_subparsers(dest="command", required=True, metavar="COMMAND"))
    for module in MODULES:
        module.add(commands)
    return parser
