"""A checkpoint's small files, read from the Hugging Face hub; the only module with its client."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SafetensorsParsingError,
)

from imagebuild.checkpoint import headers
from imagebuild.checkpoint.headers import INDEX, Tensor
from imagebuild.errors import ArchiveError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def _asked(ask: Callable[[], T], repository: str, revision: str | None, what: str) -> T:
    """Return what the hub answers; every refusal is an error that says which thing is missing."""
    try:
        return ask()
    except RevisionNotFoundError as error:
        raise SourceError(
            f"{repository} has no revision {revision}",
            file=f"{repository}@{revision}",
            expected="a branch, tag or commit of this repository",
            found="the repository, without this revision",
            next_command=f"python build.py checkpoint {repository}",
        ) from error
    except GatedRepoError as error:
        raise SourceError(
            f"{repository} wants its terms accepted",
            file=repository,
            expected="access with the token of this machine",
            found="a refusal",
            next_command="hf auth login",
        ) from error
    except RepositoryNotFoundError as error:
        raise SourceError(
            f"there is no repository {repository} that this machine may see",
            file=repository,
            expected="OWNER/NAME of a model",
            found="no such repository",
            next_command="look the name up on the hub; for a private one, hf auth login",
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise SourceError(
            f"the hub gave no answer for {what}",
            file=f"{repository}/{what}",
            expected="an answer of the hub",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            next_command="try again, or download the model's folder and name that",
        ) from error


@dataclass(frozen=True)
class Repository:
    """One revision of a repository.

    Attributes:
        name: OWNER/NAME.
        commit: the revision's commit.
        files: the names of its files.
    """

    name: str
    commit: str
    files: frozenset[str] = field(repr=False)

    @classmethod
    def open(cls, name: str, revision: str | None) -> Repository:
        """Return the repository at a revision.

        Raises:
            SourceError: if there is none, or the hub is not reached.
        """
        info = _asked(
            lambda: HfApi().model_info(name, revision=revision), name, revision, "its files"
        )
        files = frozenset(sibling.rfilename for sibling in info.siblings or ())
        return cls(name, info.sha or revision or "main", files)

    def read(self, file: str) -> bytes:
        """Return a small file.

        Raises:
            SourceError: if it is not there, or the hub is not reached.
        """
        if file not in self.files:
            raise self._missing(file)
        path = _asked(
            lambda: hf_hub_download(self.name, file, revision=self.commit),
            self.name,
            self.commit,
            file,
        )
        return Path(path).read_bytes()

    def _missing(self, file: str) -> SourceError:
        return SourceError(
            f"{self.name} has no {file}",
            file=f"{self.name}@{self.commit}/{file}",
            expected="the file in this revision",
            found=f"{len(self.files)} other files",
            next_command=f"python build.py checkpoint {self.name} --revision with one that has it",
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, from the headers alone.

        Raises:
            SourceError: if the index or a file that it names is missing.
            ArchiveError: if one of them is damaged.
        """
        if INDEX in self.files:
            files = headers.files_of_index(self.read(INDEX), f"{self.name}/{INDEX}")
        else:
            files = sorted(f for f in self.files if "/" not in f and f.endswith(".safetensors"))
            if len(files) != 1:
                raise self._missing(INDEX)
        found: dict[str, Tensor] = {}
        for file in files:
            found |= self._header(file)
        return found

    def _header(self, file: str) -> dict[str, Tensor]:
        if file not in self.files:
            raise self._missing(file)

        def ask() -> dict[str, Tensor]:
            parsed = HfApi().parse_safetensors_file_metadata(self.name, file, revision=self.commit)
            return {
                name: Tensor(str(info.dtype), tuple(info.shape), file)
                for name, info in parsed.tensors.items()
            }

        try:
            return _asked(ask, self.name, self.commit, file)
        except SafetensorsParsingError as error:
            raise ArchiveError(
                "the header is damaged",
                file=f"{self.name}/{file}",
                expected="a safetensors header",
                found=str(error).splitlines()[0],
                next_command="tell the repository's owner",
            ) from error
