"""How released vLLM reads an exclude list: the rules of v0.27.1 and v0.33.0.

Each function names the one of vLLM that it follows; tests/patched/test_checkpoint_rules.py compares
the answers with the real classes.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagebuild.checkpoint.modules import Family


class PartlyExcludedError(Exception):
    """vLLM refuses a fused module of which only some shards are excluded."""


def modelopt_entries(entries: Sequence[str], family: Family) -> list[str]:
    """ModelOptQuantConfigBase.apply_vllm_mapper: stems are split in two, then renamed."""
    if not family.is_mapped:
        return list(entries)
    split: list[str] = []
    for entry in entries:
        if len(entry) > 1 and entry[-1] == "*" and entry[-2] != ".":
            split += [entry[:-1], f"{entry[:-1]}.*"]
        else:
            split.append(entry)
    return [family.in_vllm(entry) for entry in split]


def compressed_tensors_entries(entries: Sequence[str], family: Family) -> list[str]:
    """CompressedTensorsConfig.apply_vllm_mapper: paths are renamed, regexes are not."""
    return [
        family.in_vllm(entry) if "." in entry and not entry.startswith("re:") else entry
        for entry in entries
    ]


def _unanimous(answers: Sequence[bool]) -> bool:
    if len(set(answers)) > 1:
        raise PartlyExcludedError
    return answers[0]


def _shards(name: str, fused: Mapping[str, Sequence[str]]) -> list[str] | None:
    leaf = name.rpartition(".")[2]
    if leaf not in fused:
        return None
    return [name.replace(leaf, shard) for shard in fused[leaf]]


def skipped(name: str, entries: Sequence[str], fused: Mapping[str, Sequence[str]]) -> bool:
    """is_layer_skipped, in its exact mode.

    Raises:
        PartlyExcludedError: if only some shards are in the list.
    """
    shards = _shards(name, fused)
    if shards is not None:
        return name in entries or _unanimous([shard in entries for shard in shards])
    if "experts" in name:
        return any(name in entry for entry in entries if "experts" in entry)
    return name in entries


def modelopt_excludes(
    name: str, entries: Sequence[str], fused: Mapping[str, Sequence[str]]
) -> bool:
    """ModelOptQuantConfigBase.is_layer_excluded, for a list that modelopt_entries gave.

    Raises:
        PartlyExcludedError: if only some shards are in the list.
    """
    if not entries:
        return False
    if skipped(name, entries, fused):
        return True
    if any(entry != name and entry in name for entry in entries):
        return True
    return any(fnmatch(name, entry) for entry in entries)


def _matches(name: str, entry: str) -> bool:
    if entry.startswith("re:"):
        return re.match(entry[3:], name) is not None
    return name == entry


def compressed_tensors_ignores(
    name: str, entries: Sequence[str], fused: Mapping[str, Sequence[str]], line: str
) -> bool:
    """should_ignore_layer, for a list that compressed_tensors_entries gave.

    In v0.27.1 a fused module's own name counts only if it is spelled out.

    Raises:
        PartlyExcludedError: if only some shards are in the list.
    """
    shards = _shards(name, fused) or [name]
    spelled_out = line == "v0.27.1" and len(shards) > 1
    if name in entries or (not spelled_out and any(_matches(name, e) for e in entries)):
        return True
    return _unanimous([any(_matches(shard, e) for e in entries) for shard in shards])


def is_target(name: str, targets: Sequence[str], fused: Mapping[str, Sequence[str]]) -> bool:
    """find_matched_target for a linear module: by its name, by all its shards, or by its class."""
    if any(_matches(name, target) for target in targets) or "Linear" in targets:
        return True
    fits = next((whole for whole in fused if name.endswith(whole)), None)
    if fits is None:
        return False
    shards = [name.replace(fits, shard) for shard in fused[fits]]
    return all(any(_matches(shard, target) for target in targets) for shard in shards)
