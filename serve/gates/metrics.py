"""What a server's metrics say, in Prometheus' text format.

The names are those of vLLM 0.33.0: `vllm/v1/metrics/loggers.py`, `vllm/v1/spec_decode/metrics.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Drafting:
    """Counters of speculative decoding since the server's start.

    Attributes:
        drafts: steps that drafted.
        drafted, accepted: tokens.
        by_position: accepted tokens by their place in the draft.
    """

    drafts: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...]

    def since(self, before: Drafting) -> Drafting:
        """Return what was counted after `before`."""
        earlier = before.by_position or (0,) * len(self.by_position)
        return Drafting(
            self.drafts - before.drafts,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(now - then for now, then in zip(self.by_position, earlier, strict=True)),
        )


@dataclass(frozen=True)
class Pool:
    """The pool of KV cache blocks.

    Attributes:
        tokens: the size that the log tells, too.
        block_tokens: tokens of a block.
    """

    tokens: int
    block_tokens: int


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return every sample: its name, its labels and its value."""
    found = []
    for name, labels, value in _SAMPLE.findall(text):
        try:
            found.append((name, dict(_LABEL.findall(labels)), float(value)))
        except ValueError:
            continue
    return found


def total(text: str, name: str) -> float | None:
    """Return a counter's sum over its labels, or None if the server has none of that name."""
    values = [value for found, _, value in samples(text) if found == name]
    return sum(values) if values else None


def drafting(text: str) -> Drafting | None:
    """Return the counters of speculative decoding, or None if the server does not draft."""
    prefix = "vllm:spec_decode_num_"
    drafted = total(text, f"{prefix}draft_tokens_total")
    if drafted is None:
        return None
    positions = {
        int(labels["position"]): int(value)
        for name, labels, value in samples(text)
        if name == f"{prefix}accepted_tokens_per_pos_total" and "position" in labels
    }
    return Drafting(
        int(total(text, f"{prefix}drafts_total") or 0),
        int(drafted),
        int(total(text, f"{prefix}accepted_tokens_total") or 0),
        tuple(positions[place] for place in sorted(positions)),
    )


def pool(text: str) -> Pool | None:
    """Return the pool, or None if the server does not tell its size."""
    for name, labels, _ in samples(text):
        tokens, block = labels.get("kv_cache_size_tokens", ""), labels.get("block_size", "")
        if name == "vllm:cache_config_info" and tokens.isdigit() and block.isdigit():
            return Pool(int(tokens), int(block))
    return None


def cache_hits(text: str) -> int:
    """Return the prompt tokens that the prefix cache had, since the server's start."""
    return int(total(text, "vllm:prefix_cache_hits_total") or 0)
