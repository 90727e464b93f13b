"""Where everything stands: the project's files and the user's cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

APP = "vllm-sm120"
SOURCE = "https://github.com/vllm-sm120/vllm-sm120"
BUILDER = f"{SOURCE}/blob/main/build.py"
CACHE_VARIABLE = "VLLM_SM120_CACHE"


@dataclass(frozen=True)
class Project:
    """A checkout of this project.

    Attributes:
        root: the folder that holds `build.py`.
    """

    root: Path

    @property
    def upstream_lock(self) -> Path:
        """The pins of every line."""
        return self.root / "upstream.lock"

    @property
    def checksums_lock(self) -> Path:
        """The digests of patches, overlay files and what they produce."""
        return self.root / "checksums.lock"

    @property
    def release_lock(self) -> Path:
        """What was published."""
        return self.root / "release.lock"

    @property
    def dist(self) -> Path:
        """The default folder of finished artifacts."""
        return self.root / "dist"

    def revision(self) -> str | None:
        """Return the commit of this checkout; None outside git, or if a tracked file is changed."""
        from imagebuild.fetch.git import Git  # noqa: PLC0415  (kept out of start-up)

        if not (self.root / ".git").exists():
            return None
        git = Git(self.root)
        if git.text("status", "--porcelain", "--untracked-files=no", check=False):
            return None
        return git.text("rev-parse", "--verify", "HEAD", check=False) or None

    def patches(self, line: str) -> Path:
        """Return the folder of a line's series."""
        return self.root / "patches" / line

    def overlay(self, line: str) -> Path:
        """Return the folder of a line's overlay files."""
        return self.root / "overlay" / line


def cache_root() -> Path:
    """Return the user's cache folder for this project; not created."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return Path(override).absolute()
    import platformdirs  # noqa: PLC0415  (kept out of start-up)

    return Path(platformdirs.user_cache_path(APP))
