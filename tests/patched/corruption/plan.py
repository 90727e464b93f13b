"""What the gate runs: settings of the engine, each with its traffic and kinds of answer."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Literal

Kv = Literal["auto", "fp8", "nvfp4"]
Prefix = Literal["off", "on", "evicted"]
Traffic = Literal["one", "staggered", "preempted"]
Form = Literal["plain", "json", "tool"]

DRAFTS: tuple[int, ...] = (0, 1, 3, 5)
KVS: tuple[Kv, ...] = ("auto", "fp8", "nvfp4")
PREFIXES: tuple[Prefix, ...] = ("off", "on", "evicted")
GRAPHS = (False, True)
TRAFFICS: tuple[Traffic, ...] = ("one", "staggered", "preempted")
FORMS: tuple[Form, ...] = ("plain", "json", "tool")


@dataclass(frozen=True)
class Setting:
    """One engine.

    Attributes:
        drafts: MTP tokens.
        kv: the KV cache's type.
        prefix: the prefix cache: off, on, or on with a pool so small that it evicts.
        graphs: CUDA graphs, or eager.
    """

    drafts: int = 0
    kv: Kv = "auto"
    prefix: Prefix = "off"
    graphs: bool = False

    @property
    def name(self) -> str:
        """A short name, such as mtp3-nvfp4-evicted-graphs."""
        return f"mtp{self.drafts}-{self.kv}-{self.prefix}-{'graphs' if self.graphs else 'eager'}"


@dataclass(frozen=True)
class Case:
    """What one engine is asked.

    Attributes:
        traffic: one request; eight that come one after the other; or eight at once that do not fit.
        form: plain text, a JSON document by schema, or a tool call.
    """

    traffic: Traffic
    form: Form

    @property
    def name(self) -> str:
        """A short name, such as staggered-json."""
        return f"{self.traffic}-{self.form}"


CASES = tuple(Case(*pair) for pair in itertools.product(TRAFFICS, FORMS))
PRODUCT = tuple(Setting(*each) for each in itertools.product(DRAFTS, KVS, PREFIXES, GRAPHS))


def cover(settings: tuple[Setting, ...] = PRODUCT, seed: int = 1) -> tuple[Setting, ...]:
    """Return settings in which every pair of values of two axes occurs at least once.

    Greedy, and the same for the same seed; every setting runs all of `CASES`.
    """
    told = random.Random(seed)  # noqa: S311
    left = {pair for setting in settings for pair in _pairs(setting)}
    chosen: list[Setting] = []
    while left:
        shuffled = told.sample(settings, len(settings))
        best = max(shuffled, key=lambda setting: len(_pairs(setting) & left))
        chosen.append(best)
        left -= _pairs(best)
    return tuple(chosen)


def _pairs(setting: Setting) -> set[tuple[tuple[int, object], tuple[int, object]]]:
    values = tuple(enumerate((setting.drafts, setting.kv, setting.prefix, setting.graphs)))
    return set(itertools.combinations(values, 2))
