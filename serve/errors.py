"""The errors of serving, one class per exit code; docs/exit-codes.md lists them.

What serving shares with building (usage, pins, sources, storage, interrupts) it raises from
`imagebuild.errors`.
"""

from __future__ import annotations

from imagebuild.errors import BuildError


class ProfileError(BuildError):
    """A profile cannot be read, contradicts itself, or does not fit its vLLM release."""

    exit_code = 50
    kind = "profile"


class PreflightError(BuildError):
    """This machine cannot serve the profile."""

    exit_code = 51
    kind = "preflight"


class ContainerError(BuildError):
    """Docker or compose is missing, refuses, or does something else than asked for."""

    exit_code = 52
    kind = "container"


class ModelError(BuildError):
    """The model's files cannot be had, or are not the pinned ones."""

    exit_code = 53
    kind = "model"


class EngineError(BuildError):
    """The server ended, never became healthy, or does not answer."""

    exit_code = 54
    kind = "engine"


class GateError(BuildError):
    """At least one gate failed."""

    exit_code = 55
    kind = "gate"


class BenchmarkError(BuildError):
    """The benchmark could not be run to its end, or its results cannot be read."""

    exit_code = 56
    kind = "benchmark"
