"""How the patched vLLM reads an exclude list: the patch exclusion-resolver, told plainly.

tests/patched/test_checkpoint_rules.py compares the answers with the patch itself.
"""

from __future__ import annotations

import re
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuild.checkpoint.modules import Family

_WILDCARD = re.compile(r"[*?\[]")
_EXPERT_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class Match(IntEnum):
    """How an entry matches a path."""

    NONE = 0
    NUMBER = 1
    PARTIAL = 2
    WHOLE = 3


def _is_stem(entry: str) -> bool:
    return len(entry) > 1 and entry[-1] == "*" and entry[-2] not in ".*"


def _without_root(path: str) -> str:
    is_drafter = path == "model.mtp" or path.startswith("model.mtp.")
    return path.removeprefix("model.") if is_drafter else path


def _path_match(path: str, name: str, *, is_stem: bool) -> Match:
    """A path taken literally, anywhere in `name`; a stem also says what it spells."""
    if f".{path}." in f".{name}.":
        return Match.WHOLE
    best = Match.NONE
    for found in re.finditer(rf"(?:^|(?<=\.)){re.escape(path)}(?=[^.])", name) if is_stem else ():
        number = path[-1].isdigit() and name[found.end()].isdigit()
        best = max(best, Match.NUMBER if number else Match.PARTIAL)
    return best


def _glob_match(entry: str, name: str) -> Match:
    if not fnmatchcase(name, entry):
        return Match.NONE
    body = entry[:-1]
    if not _is_stem(entry) or fnmatchcase(name, body) or fnmatchcase(name, f"{body}.*"):
        return Match.WHOLE
    number = body[-1].isdigit() and fnmatchcase(name, f"{body}[0-9]*")
    return Match.NUMBER if number else Match.PARTIAL


def modelopt_match(entry: str, name: str, family: Family) -> Match:
    """How one ModelOpt entry, as written in the checkpoint, matches an unfused module of vLLM."""
    path = entry[:-1] if _is_stem(entry) else entry.removesuffix(".*")
    if _WILDCARD.search(path) is None:
        renamed = _without_root(family.in_vllm(f"{path}.")[:-1])
        return _path_match(renamed, name, is_stem=_is_stem(entry))
    renamed = family.in_vllm(entry)
    names = [name] if renamed != entry else family.in_checkpoint(name)
    return max(_glob_match(renamed, other) for other in names)


def compressed_tensors_match(entry: str, name: str, family: Family) -> Match:
    """How one compressed-tensors entry matches an unfused module of vLLM."""
    if entry.startswith("re:"):
        pattern = re.compile(entry[3:])
        hit = any(pattern.match(other) for other in family.in_checkpoint(name))
    else:
        renamed = _without_root(family.in_vllm(f"{entry}.")[:-1])
        hit = name in (entry, family.in_vllm(entry), renamed)
    return Match.WHOLE if hit else Match.NONE


def excludes(name: str, entries: Sequence[str], family: Family, form: str) -> bool | None:
    """ModuleExclusions.is_excluded; None where the list alone does not say."""
    rule = compressed_tensors_match if form == "compressed-tensors" else modelopt_match

    def best(module: str) -> Match:
        return max((rule(entry, module, family) for entry in entries), default=Match.NONE)

    head, _, leaf = name.rpartition(".")
    own, shards = best(name), family.fused.get(leaf, ())
    if leaf == "experts" and form != "compressed-tensors":
        below = any(f"{family.in_vllm(e)}.".startswith(f"{name}.") for e in entries)
        if own == Match.WHOLE or not below:
            children = [best(f"{name}.0.{projection}") for projection in _EXPERT_PROJECTIONS]
            return own == Match.WHOLE or all(child == Match.WHOLE for child in children)
        return None
    if not shards or tuple(shards) == (leaf,):
        return own == Match.WHOLE if own in (Match.NONE, Match.WHOLE) else None
    grades = {best(f"{head}.{shard}" if head else shard) for shard in shards}
    if len(grades) == 1 and grades <= {Match.NONE, Match.WHOLE}:
        return own == Match.WHOLE or grades == {Match.WHOLE}
    literal = {family.in_vllm(f"{entry}.")[:-1] for entry in entries}
    if own == Match.WHOLE and name in literal:
        return True
    return None
