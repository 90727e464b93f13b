"""An image in an OCI layout as a subject of verification."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagebuild.errors import BuildError
from imagebuild.images.ocilayout import LAYOUT, LayoutSource
from imagebuild.verifying.verify import Report
from imagebuild.verifying.verify_image import check_image, entries

if TYPE_CHECKING:
    from pathlib import Path

    from imagebuild.images.oci import Index, Manifest
    from imagebuild.progress import Progress
    from imagebuild.verifying.verify_image import Subject
    from imagebuild.verifying.verify_layer import Facts

_CHUNK = 1 << 20


@dataclass(frozen=True)
class LayoutSubject:
    """An OCI layout.

    Attributes:
        source: the layout.
    """

    source: LayoutSource

    @property
    def label(self) -> str:
        """The folder."""
        return self.source.label

    def index(self) -> Index:
        """Return `index.json`.

        Raises:
            ArchiveError: if the folder is no OCI layout.
        """
        return self.source.index()

    def check_storage(self, report: Report, progress: Progress) -> None:
        """Check that every blob is what its name says."""
        bad: dict[str, tuple[object, object]] = {}
        folder = self.source.root / "blobs" / "sha256"
        blobs = sorted(folder.iterdir()) if folder.is_dir() else []
        for path in blobs:
            found = path.lstat()
            digest = hashlib.sha256()
            if stat.S_ISREG(found.st_mode):
                with (
                    progress.step("verify", path.name[:12], found.st_size) as done,
                    path.open("rb") as file,
                ):
                    while chunk := file.read(_CHUNK):
                        digest.update(chunk)
                        done(len(chunk))
            if digest.hexdigest() != path.name:
                bad[path.name] = (path.name, digest.hexdigest())
        report.files("every blob is what its name says", bad, len(blobs))

    def check_layers(self, report: Report, manifest: Manifest, progress: Progress) -> None:
        """Check that the base's layers are there; a layout without them is right if it says so."""
        del progress
        layers = manifest.layers[:-1]
        missing = sum(not self.source.has(layer.sha256) for layer in layers)
        if missing and (self.index().annotations or {}).get(LAYOUT) == "overlay-only":
            why = f"{missing} of {len(layers)} are not in this layout, as it says"
            report.not_checked("the base's layers", "the official image", why)
        else:
            report.compare("layers of the base that are missing", 0, missing)


def verify_layout(path: Path, facts: Facts, *, progress: Progress) -> Report:
    """Return what an OCI layout is, compared with what it must be."""
    return verify_subject(LayoutSubject(LayoutSource(path)), facts, progress=progress)


def verify_subject(subject: Subject, facts: Facts, *, progress: Progress) -> Report:
    """Return what a subject's image for a platform is, compared with what it must be."""
    report = Report(subject.label)
    try:
        subject.check_storage(report, progress)
        found = entries(subject.source, subject.index())
        own = [entry for entry in found if not found[1:] or entry.config.matches(facts.platform)]
        report.compare(f"images for {facts.platform}", 1, len(own))
        for entry in own:
            check_image(report, subject.source, entry, facts)
            subject.check_layers(report, entry.manifest, progress)
    except BuildError as error:
        report.bad("image", error.expected, f"{error.summary}: {error.found}")
    return report
