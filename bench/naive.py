"""The way without this tool: unpack the wheel, copy the patched files in, pack everything again.

Run as a process of its own, so that its memory and time are its own:
`python -m bench.naive WHEEL PATCHED_TREE WORK`.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

_LEVEL = 6


def main(wheel: Path, patched: Path, work: Path) -> None:
    """Unzip, patch, zip -6; tar and gzip -6 of the patched files."""
    unpacked = work / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)  # noqa: S202  (the naive way)
    changed = [path.relative_to(patched) for path in sorted(patched.rglob("*")) if path.is_file()]
    for path in changed:
        (unpacked / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(patched / path, unpacked / path)
    with zipfile.ZipFile(
        work / "naive.whl", "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL
    ) as out:
        for path in sorted(unpacked.rglob("*")):
            if path.is_file():
                out.write(path, path.relative_to(unpacked))
    with tarfile.open(work / "naive.tar.gz", "w:gz", compresslevel=_LEVEL) as tar:
        for path in changed:
            tar.add(unpacked / path, arcname=str(path))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
