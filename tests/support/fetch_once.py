"""One download as its own process: `python -m tests.support.fetch_once CACHE NAME HASH [LARGEST]`.

LARGEST limits the size of every file that the process writes; the system then refuses to write as
it does on a full disk. Prints the file's path, or the error as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from imagebuild.errors import BuildError
from imagebuild.fetch import download
from imagebuild.fetch.cache import Cache
from imagebuild.upstream import FilePin
from tests.support.watching import Watching


def main(cache: str, name: str, sha256: str, largest: str = "") -> int:
    if largest:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest), int(largest)))
    watching = Watching()
    try:
        path = download.fetch(FilePin(name=name, sha256=sha256), Cache(Path(cache)), watching)
    except BuildError as error:
        print(json.dumps(error.facts()))  # noqa: T201
        return error.exit_code
    print(path, *watching.notes, sep="\n")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
