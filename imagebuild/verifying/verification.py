"""One image verified, wherever it is: which of its platforms, against which facts."""

from __future__ import annotations

import io
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagebuild.attesting.signing import Expected
from imagebuild.digest import sha256_bytes
from imagebuild.errors import ArchiveError, BuildError, ChecksumError, LockError, SourceError
from imagebuild.images.image import index_of_manifests
from imagebuild.images.image_facts import check_revision, facts_for, platform_of
from imagebuild.images.labels import OCI
from imagebuild.images.oci import INDEX_TYPES, Config, parse_as
from imagebuild.images.ocilayout import LayoutSource
from imagebuild.verifying.verify import Report
from imagebuild.verifying.verify_archive import (
    ArchiveSubject,
    ImageArchive,
    check_docker_archive,
    docker_documents,
)
from imagebuild.verifying.verify_attestations import check_attached, check_signature
from imagebuild.verifying.verify_image import Entry, check_image, entries
from imagebuild.verifying.verify_layout import LayoutSubject
from imagebuild.verifying.verify_registry import RegistrySubject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagebuild.fetch.sources import Sources
    from imagebuild.images.oci import Index
    from imagebuild.project import Project
    from imagebuild.upstream import Platform
    from imagebuild.verifying.verify_image import Subject
    from imagebuild.verifying.verify_layer import Facts

DAEMON = "docker-daemon:"
_SAID = 500


@dataclass(frozen=True)
class Verifier:
    """What images are compared with.

    Attributes:
        project: the locks and the series.
        sources: what is at hand from outside.
        line: the line's name; None for the one that an image says.
        base: an OCI layout with the official image, instead of its registry.
        signer: who must have signed what stands in a registry.
    """

    project: Project
    sources: Sources
    line: str | None = None
    base: Path | None = None
    signer: Expected = field(default_factory=Expected)

    def layout(self, path: Path) -> Report:
        """Return what an OCI layout holds."""
        return self.subject(LayoutSubject(LayoutSource(path)))

    def archive(self, path: Path) -> Report:
        """Return what a tar file holds.

        Raises:
            ArchiveError: if it is no image archive.
        """
        with tempfile.TemporaryDirectory() as folder, path.open("rb") as file:
            found = ImageArchive.read(file, str(path), Path(folder), self.sources.progress)
            return self._archive(found)

    def daemon(self, ref: str) -> Report:
        """Return what a running Docker has under a name.

        Raises:
            SourceError: if there is no Docker, or no such image.
            ArchiveError: if what it gives is no image archive.
        """
        label = f"{DAEMON}{ref}"
        with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    ["docker", "image", "save", ref], stdout=subprocess.PIPE, stderr=errors
                )
            except OSError as error:
                raise _no_docker(label, error.strerror) from error
            assert process.stdout is not None  # noqa: S101  (it is a pipe)
            with process, process.stdout:
                stream = io.BufferedReader(io.FileIO(process.stdout.fileno(), closefd=False))
                if not stream.peek(1):
                    process.wait()
                    errors.seek(0)
                    said = errors.read(_SAID).decode("utf-8", "replace").strip()
                    raise _no_docker(label, said)
                found = ImageArchive.read(stream, label, Path(name), self.sources.progress)
            return self._archive(found)

    def subject(self, subject: Subject) -> Report:
        """Return what each image of a subject is; several platforms are told apart by name."""
        report = Report(subject.label)
        try:
            subject.check_storage(report, self.sources.progress)
            index = subject.index()
            found = entries(subject.source, index)
            for entry in found:
                prefix = f"{platform_of(entry.config, subject.label)}: " if found[1:] else ""
                report.checks += [
                    replace(check, name=prefix + check.name)
                    for check in self._one(subject, entry).checks
                ]
            if not found:
                report.bad("image", "one image or more", "none")
            self._index(report, subject, index, found)
            if isinstance(subject, RegistrySubject):
                check_signature(report, subject.label, self.signer)
        except (ArchiveError, ChecksumError, LockError) as error:
            report.bad("image", error.expected, f"{error.summary}: {error.found}")
        return report

    def facts(self, says: Mapping[str, str], platform: Platform, subject: object) -> Facts:
        """Return what an image is compared with; `says` are its labels.

        Raises:
            UsageError: if there is no such line.
            UnpinnedError: if the line pins no image.
        """
        return facts_for(
            self.project,
            self.sources,
            line_name=self.line,
            base=self.base,
            says=says,
            platform=platform,
            subject=subject,
        )

    def _one(self, subject: Subject, entry: Entry) -> Report:
        report = Report(subject.label)
        platform = platform_of(entry.config, subject.label)
        facts = self.facts(entry.labels, platform, subject.label)
        check_image(report, subject.source, entry, facts)
        subject.check_layers(report, entry.manifest, self.sources.progress)
        check_revision(report, entry.labels.get(f"{OCI}revision"), self.project.revision())
        if isinstance(subject, RegistrySubject):
            digest = sha256_bytes(entry.data)
            check_attached(report, subject.source, entry, digest, facts, self.project)
        return report

    def _index(self, report: Report, subject: Subject, index: Index, images: list[Entry]) -> None:
        """Compare the index over several images with the one that their manifests give."""
        nested = [entry for entry in index.manifests if entry.media_type in INDEX_TYPES]
        if len(images) > 1 and len(nested) == 1:
            found = nested[0].sha256
        elif len(images) > 1 and isinstance(subject, RegistrySubject):
            found = subject.digest
        else:
            return
        wanted = index_of_manifests([(e.data, e.config.bare()) for e in images])
        report.compare("the index is over these images", sha256_bytes(wanted), found)

    def _archive(self, found: ImageArchive) -> Report:
        if found.is_layout:
            return self.subject(ArchiveSubject(found))
        if not found.members:
            raise _no_docker(found.label, "nothing")
        report = Report(found.label)
        config, _ = docker_documents(found)
        parsed = parse_as(found.content(config), Config, found.label)
        labels = (parsed.config.labels if parsed.config is not None else None) or {}
        platform = platform_of(parsed, found.label)
        facts = self.facts(labels, platform, found.label)
        try:
            check_docker_archive(report, found, facts)
        except BuildError as error:
            report.bad("image", error.expected, f"{error.summary}: {error.found}")
        check_revision(report, labels.get(f"{OCI}revision"), self.project.revision())
        return report


def _no_docker(label: str, found: object) -> SourceError:
    return SourceError(
        "Docker does not give the image",
        file=label,
        expected="a running Docker that has it",
        found=found,
        next_command=f"docker image inspect {label.removeprefix(DAEMON)}",
    )
