"""One build: from a line and its sources to the artifacts in a folder, and what became of each."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from imagebuild import assemble, checksums, files, series
from imagebuild.errors import BusyError, LockError, RegistryError, SourceError, UnpinnedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagebuild.digest import Sha256
    from imagebuild.errors import BuildError
    from imagebuild.produced import Patchset
    from imagebuild.progress import Progress
    from imagebuild.project import Project
    from imagebuild.sdist import SdistTree
    from imagebuild.sources import Sources
    from imagebuild.upstream import Line, Platform

Target = Literal["tree", "wheel", "layer", "image"]
DEFAULT_TARGETS: tuple[Target, ...] = ("wheel", "layer", "image")
