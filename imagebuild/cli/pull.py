"""`build.py pull`: an image out of a registry, if it is what the locks say."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from imagebuild.cli.live import reporter
from imagebuild.cli.output import emit
from imagebuild.cli.verify import facts_of, signer_of, text_of
from imagebuild.errors import SourceError
from imagebuild.fetch.sources import Sources
from imagebuild.images.pull import pull
from imagebuild.images.reference import parse_reference
from imagebuild.images.registry import Registry
from imagebuild.verifying.verification import Verifier
from imagebuild.verifying.verify_registry import RegistrySubject, resolve

if TYPE_CHECKING:
    import argparse

    from imagebuild.project import Project


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Verify, then fetch.

    Raises:
        VerifyError: if the image is not what the locks say; nothing is written then.
        RegistryError: if the registry does not give it.
        SourceError: if Docker was asked to fetch it, and fails.
    """
    progress = reporter()
    sources = Sources.for_run(progress, offline=arguments.offline)
    reference = parse_reference(arguments.ref)
    with Registry(reference.repository) as source:
        digest = resolve(source, reference)
        signer = signer_of(arguments)
        verifier = Verifier(project, sources, arguments.line, arguments.base, signer)
        # The base's layers are compared with their digests while they come.
        report = verifier.subject(RegistrySubject(source, digest, layers=False))
        report.require()
        if arguments.load:
            where = f"{reference.repository}@sha256:{digest}"
            _docker(where)
        else:
            folder = (arguments.to or project.dist / f"pulled-{digest[:12]}").absolute()
            name = reference.tag or digest[:12]
            pull(source, digest, folder, name=name, progress=progress)
            where = str(folder)
    text = f"{text_of(report)}\npulled    sha256:{digest}\n          {where}"
    emit(arguments, text, {**facts_of(report), "digest": f"sha256:{digest}", "where": where})
    return 0


def _docker(ref: str) -> None:
    command = ["docker", "pull", "--quiet", ref]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stderr.strip() if done.returncode else None
    except OSError as error:
        said = error.strerror
    if said is not None:
        raise SourceError(
            "Docker does not pull the image",
            file=ref,
            expected="a running Docker",
            found=said,
            next_command=" ".join(command),
        )
