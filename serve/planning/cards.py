"""The cards that the project is for, by their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from imagebuild.errors import UsageError

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Card:
    """One kind of card.

    Attributes:
        key: how the command line names it.
        name: what nvidia-smi calls it.
        memory: bytes that CUDA can use on it, as nvidia-smi's total tells.
        bandwidth: bytes a second between memory and chip.
        capability: the compute capability.
        unified: whether the memory is the machine's own.
    """

    key: str
    name: str
    memory: int
    bandwidth: float
    capability: str
    unified: bool = False


CARDS = (
    Card("5090", "NVIDIA GeForce RTX 5090", 32607 * MIB, 1792e9, "12.0"),
    Card("5090-laptop", "NVIDIA GeForce RTX 5090 Laptop GPU", 24463 * MIB, 896e9, "12.0"),
    Card("5080", "NVIDIA GeForce RTX 5080", 16303 * MIB, 960e9, "12.0"),
    Card(
        "pro-6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887 * MIB, 1792e9, "12.0"
    ),
    Card("spark", "NVIDIA GB10", 119 * GIB, 273e9, "12.1", unified=True),
)


def card(key: str) -> Card:
    """Return the card of that name.

    Raises:
        UsageError: if there is none.
    """
    for each in CARDS:
        if key.lower().replace("rtx", "").strip(" -_") == each.key:
            return each
    raise UsageError(
        f"there is no card {key}",
        file="--gpu",
        expected=f"one of {', '.join(each.key for each in CARDS)}",
        found=key,
        next_command="python -m serve plan MODEL --gpu 5090",
    )
