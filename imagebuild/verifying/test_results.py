"""What was tested on an artifact: in-toto test results, by the digest that they are about.

A result is a claim of whoever made it; that it is about this very artifact is checked, and how old
it is is shown. The format is the in-toto attestation framework's "Test Result" predicate, v0.1.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from imagebuild.verifying.verify import Report

PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
SUFFIX = ".intoto.json"
_LIMIT = 1 << 20


def add(report: Report, folder: Path, digests: Collection[str], now: dt.datetime) -> None:
    """Add what the statements of a folder say about an artifact.

    A result of another artifact, such as one of before a rebuild, has expired: it is listed, and
    says nothing about this one. A failed result is a failed check.

    Args:
        report: the artifact's.
        folder: where the statements are.
        digests: SHA-256 digests of the artifact, in hexadecimal.
        now: the present, for their age.
    """
    found = sorted(folder.glob(f"*{SUFFIX}"))
    for path in found:
        try:
            _one(report, path, digests, now)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            report.not_checked(f"test result {path.name}", "an in-toto test result", str(error))
    if not found:
        report.not_checked("test results", f"*{SUFFIX} in {folder}", "none")


def _one(report: Report, path: Path, digests: Collection[str], now: dt.datetime) -> None:
    if path.stat().st_size > _LIMIT:
        raise ValueError(f"larger than {_LIMIT} bytes")
    statement: dict[str, Any] = json.loads(path.read_bytes())
    if statement["predicateType"] != PREDICATE:
        return
    about = {str(s["digest"].get("sha256")) for s in statement["subject"]}
    predicate = statement["predicate"]
    configuration = predicate["configuration"][0]
    made = dt.datetime.fromisoformat(configuration["annotations"]["made"])
    age = f"{(now - made).days} days old"
    device = configuration["annotations"]["device"]
    name = f"tested: {configuration['name']} on {device}"
    if not about & set(digests):
        report.not_checked(name, "a test of this very artifact", f"expired, {age}: of another")
        return
    parts = ("passedTests", "failedTests", "warnedTests")
    passed, failed, warned = (list(predicate[part]) for part in parts)
    told = f"{len(passed)} passed, {len(failed)} failed, {len(warned)} not run, {age}"
    if failed or predicate["result"] == "FAILED":
        report.bad(name, "no failed test", f"{told}: {', '.join(map(str, failed))}")
    else:
        report.ok(name, told)
