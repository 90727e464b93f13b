"""Compare two runs of bench.nvfp4.engine_ab, token by token, up to where they part.

usage: python -m bench.nvfp4.compare REFERENCE.json OTHER.json

While the tokens so far agree, both models saw the same text, and their log-probabilities can be
compared. Where they part, the reference's margin between its two best tokens says whether that was
a tie. A parting at a margin above LIMIT is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LIMIT = 0.25


def compare(reference: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return counts, differences and the margins at which the answers part."""
    differences, partings, agreed = [], [], 0
    for ours, theirs in zip(reference["answers"], other["answers"], strict=True):
        for step, against in zip(ours, theirs, strict=True):
            shared = step["top"].keys() & against["top"].keys()
            differences += [abs(step["top"][t] - against["top"][t]) for t in shared]
            if step["token"] != against["token"]:
                best = sorted(step["top"].values(), reverse=True)
                partings.append(round(best[0] - best[1], 4))
                break
            agreed += 1
    return {
        "agreed": agreed, "of": sum(len(a) for a in reference["answers"]),
        "partings_at_margin": partings, "max_logprob_difference": max(differences),
        "mean_logprob_difference": sum(differences) / len(differences),
        "clear_partings": sum(margin > LIMIT for margin in partings),
    }  # fmt: skip


def main() -> int:
    """Run the command line; 1 if the answers part where the reference is sure."""
    reference, other = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    found = compare(reference, other)
    print(Path(sys.argv[2]).stem, json.dumps(found))
    return 1 if found["clear_partings"] else 0


if __name__ == "__main__":
    sys.exit(main())
