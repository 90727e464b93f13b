"""Write wheel and layer from what a JSON file describes, and print their digests.

Run by a Python that has none of our dependencies, so the line is a stand-in with the same fields.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from imagebuild.artifacts.layer import write_layer
from imagebuild.artifacts.wheel import write_wheel
from imagebuild.digest import Sha256
from imagebuild.patching.produced import Patchset, ProducedFile
from imagebuild.progress import Silent

if TYPE_CHECKING:
    from imagebuild.upstream import Line


def main(order: Path, folder: Path) -> None:
    said = json.loads(order.read_text())
    files = tuple(
        ProducedFile(f["path"], bytes.fromhex(f["data"]), f["before"], f["origin"])
        for f in said["files"]
    )
    patchset = Patchset(said["line"]["tag"], Sha256("3" * 64), {}, files)
    pin = SimpleNamespace(name=said["wheel"])
    line = cast("Line", SimpleNamespace(**said["line"], wheel=lambda _: pin))
    made = write_wheel(
        Path(said["official"]),
        patchset,
        line,
        "linux/amd64",
        folder,
        epoch=said["epoch"],
        progress=Silent(),
    )
    layer = write_layer(
        Path(said["official"]),
        patchset,
        line,
        "linux/amd64",
        folder,
        vouched=said["vouched"],
        epoch=said["epoch"],
        progress=Silent(),
    )
    sys.stdout.write(f"{made.sha256} {layer.digest} {layer.diff_id}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
