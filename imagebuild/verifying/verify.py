"""What the verification of an artifact says: a list of checks, each with its verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from imagebuild.errors import VerifyError


class Verdict(enum.Enum):
    """What one check found."""

    OK = "ok"
    BAD = "bad"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One claim about an artifact.

    Attributes:
        name: what is claimed, or the file that it is about.
        verdict: whether it holds.
        expected: what the locks say; for a check that was not made, what it needs.
        found: what the artifact has; for a check that was not made, why.
    """

    name: str
    verdict: Verdict
    expected: str
    found: str


@dataclass
class Report:
    """Everything that was checked on one artifact.

    Attributes:
        subject: the artifact.
        checks: the checks in the order in which they were made.
    """

    subject: str
    checks: list[Check] = field(default_factory=list)

    def compare(self, name: str, expected: object, found: object) -> bool:
        """Add a check that holds if the two are equal; return whether it does."""
        verdict = Verdict.OK if expected == found else Verdict.BAD
        self.checks.append(Check(name, verdict, str(expected), str(found)))
        return verdict is Verdict.OK

    def ok(self, name: str, found: object) -> None:
        """Add a check that holds."""
        self.checks.append(Check(name, Verdict.OK, str(found), str(found)))

    def bad(self, name: str, expected: object, found: object) -> None:
        """Add a check that does not hold."""
        self.checks.append(Check(name, Verdict.BAD, str(expected), str(found)))

    def not_checked(self, name: str, needs: str, why: str) -> None:
        """Add a check that was not made."""
        self.checks.append(Check(name, Verdict.NOT_CHECKED, needs, why))

    def files(self, name: str, bad: dict[str, tuple[object, object]], total: int) -> None:
        """Add one check for each bad file (expected, found), or one for all that are good."""
        for path in sorted(bad):
            expected, found = bad[path]
            self.bad(f"{name}: {path}", expected, found)
        if not bad:
            self.ok(name, f"{total} files")

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if check.verdict is Verdict.BAD)

    def require(self) -> None:
        """Do nothing if no check failed.

        Raises:
            VerifyError: with the first failure's facts, and all failures' names.
        """
        if not self.failures:
            return
        first = self.failures[0]
        raise VerifyError(
            f"{len(self.failures)} of {len(self.checks)} checks failed: {first.name}",
            file=self.subject,
            expected=first.expected,
            found=first.found,
            next_command="do not use it; python build.py makes the right one",
            detail="\n".join(check.name for check in self.failures),
        )
