"""What gates run on: a server, its profile, and what is expected of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve.gates.client import Client
    from serve.gates.reference import Reference
    from serve.profile import Profile


@dataclass(frozen=True)
class Texts:
    """Answers that another run can be compared with.

    Attributes:
        drafts: tokens that the server of these answers drafted for each step.
        answers: each question's answer.
    """

    drafts: int
    answers: dict[str, str]


@dataclass(frozen=True)
class Run:
    """One verification.

    Attributes:
        client: asks the server.
        profile: what it serves.
        full: whether every gate runs at every size.
        drafts: tokens that the server drafts for each step; 0 if it was started without MTP.
        pool_tokens: the pool that the plan foresees; None if no plan can be made.
        reference: what a BF16 server of the same model revision expects of the fixed text.
        other: answers of a server with another number of drafted tokens.
        answers: this run's answers, for a later comparison; gates fill it.
    """

    client: Client
    profile: Profile
    full: bool = False
    drafts: int = 0
    pool_tokens: int | None = None
    reference: Reference | None = None
    other: Texts | None = None
    answers: dict[str, str] = field(default_factory=dict)
