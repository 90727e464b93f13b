"""Print the tables of docs/checkpoint.md: the command on every generated checkpoint.

usage: python -m tests.patched.checkpoint_tables [FOLDER ...]

Without a folder: each recipe of test_checkpoint_verdicts is written, read and told in one line.
With folders, such as those of make_with_tools: their whole tables.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from imagebuild.checkpoint import report, source
from tests.patched import checkpoints
from tests.patched.test_checkpoint_verdicts import PATCHES, RECIPES

LINE = "v0.33.0"


def main(folders: list[str]) -> int:
    """Run the command line."""
    for folder in folders:
        print(report.table(report.make(source.read(folder, None), LINE, PATCHES)), end="\n\n")
    if folders:
        return 0
    print("| checkpoint | stock | patched | with its drafter, stock | patched |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for name, recipe in RECIPES.items():
            written = Path(scratch) / name
            checkpoints.write(written, recipe)
            told = report.make(source.read(str(written), None), LINE, PATCHES)
            verdicts = (told.stock, told.patched, told.stock_drafter, told.patched_drafter)
            print(f"| {name} | {' | '.join(verdict.value for verdict in verdicts)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
