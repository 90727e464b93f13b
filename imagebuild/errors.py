"""Every error that this project raises on purpose, one class per exit code.

An error is built from facts: where, what was expected, what was found, and the next command. The
command line prints them; nothing else does. docs/exit-codes.md lists the codes and a test keeps the
two equal.
"""

from __future__ import annotations

from typing import ClassVar


class BuildError(Exception):
    """A failure that a person can act on.

    Attributes:
        exit_code: the process's exit status for this class; stable across releases.
        kind: a short name of the class for `--json`.
    """

    exit_code: ClassVar[int]
    kind: ClassVar[str]

    def __init__(
        self,
        summary: str,
        *,
        file: object = None,
        expected: object = None,
        found: object = None,
        next_command: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.file = None if file is None else str(file)
        self.expected = None if expected is None else str(expected)
        self.found = None if found is None else str(found)
        self.next_command = next_command
        self.detail = detail

    def diagnostics(self) -> str:
        """Return the error as text for a person, several lines, without a trailing newline.

        What cannot be printed, such as a file name that is no UTF-8 or a terminal's control
        sequence, stands there escaped.
        """
        lines = [f"error: {self.summary}"]
        facts = (
            ("file", self.file),
            ("expected", self.expected),
            ("found", self.found),
            ("next", self.next_command),
        )
        lines += [f"  {name + ':':<10}{value}" for name, value in facts if value is not None]
        if self.detail:
            lines += ["", self.detail.rstrip("\n")]
        return _printable("\n".join(lines))

    def facts(self) -> dict[str, str | int | None]:
        """Return the error as a mapping for `--json`."""
        return {
            "error": self.kind,
            "exit_code": self.exit_code,
            "summary": self.summary,
            "file": self.file,
            "expected": self.expected,
            "found": self.found,
            "next": self.next_command,
            "detail": self.detail,
        }


def _printable(text: str) -> str:
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


class UsageError(BuildError):
    """The command line asks for something that does not exist, such as an unknown line."""

    exit_code = 2
    kind = "usage"


class LockError(BuildError):
    """A lock, a series or a patch's metadata cannot be read or contradicts itself."""

    exit_code = 10
    kind = "lock"


class ChecksumError(BuildError):
    """Content has another digest than the lock pins."""

    exit_code = 11
    kind = "checksum"


class UnpinnedError(BuildError):
    """A target needs a pin that nobody has resolved yet."""

    exit_code = 12
    kind = "unpinned"


class SourceError(BuildError):
    """A source cannot be had: no network, not in the index, no such file or repository."""

    exit_code = 13
    kind = "source"


class ArchiveError(BuildError):
    """An archive is damaged or tries something that no honest archive does."""

    exit_code = 14
    kind = "archive"


class PatchFormatError(BuildError):
    """A patch file cannot be read as one."""

    exit_code = 15
    kind = "patch-format"


class UpstreamedError(BuildError):
    """A patch is not needed any more: its drop-when holds."""

    exit_code = 20
    kind = "upstreamed"


class DriftedError(BuildError):
    """A patch's context is not in the tree as the patch expects it."""

    exit_code = 21
    kind = "drifted"


class TargetGoneError(BuildError):
    """A file that a patch changes is not in the tree."""

    exit_code = 22
    kind = "target-gone"


class PartialError(BuildError):
    """Some of a patch is in the tree and some of it is not."""

    exit_code = 23
    kind = "partial"


class ConflictError(BuildError):
    """Two members of a series cannot stand together, or an overlay file exists upstream."""

    exit_code = 24
    kind = "conflict"


class TargetError(BuildError):
    """The asked target cannot be made from this series or on this machine."""

    exit_code = 30
    kind = "target"


class VerifyError(BuildError):
    """An artifact is not what the locks say it must be."""

    exit_code = 31
    kind = "verify"


class RegistryError(BuildError):
    """A container registry does not answer, or answers with something else than asked for."""

    exit_code = 32
    kind = "registry"


class StorageError(BuildError):
    """The disk is full or a folder cannot be written."""

    exit_code = 40
    kind = "storage"


class BusyError(BuildError):
    """Another build holds the lock on the same folder."""

    exit_code = 41
    kind = "busy"


class InterruptError(BuildError):
    """The user or the system ended the run; nothing half-written is left under a final name."""

    exit_code = 130
    kind = "interrupted"
