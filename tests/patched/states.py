"""States of several requests in one cache, and what must not pass between them."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Record = Callable[[str, object], None]  # pytest's record_property

REQUESTS = 3
COLUMNS = 3  # one for the running state and two for speculative tokens
VICTIM = 1  # the request whose numbers are wrong; it has a neighbour on either side

# Accepted counts that no step can have produced for COLUMNS columns.
BAD_COUNTS = (-2, 0, COLUMNS + 1, COLUMNS + 3)


def slot_table() -> torch.Tensor:
    """Return each request's slots: row n holds 1 + n * COLUMNS and on; 0 is the null slot."""
    count = REQUESTS * COLUMNS
    return torch.arange(1, 1 + count, dtype=torch.int32).view(REQUESTS, COLUMNS)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return the same normal numbers at each call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def digest(*tensors: torch.Tensor) -> str:
    """Return a digest of the tensors' bytes, to compare two trees."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


@dataclass(frozen=True)
class Seen:
    """What one run of a kernel gave.

    Attributes:
        output: what the request got back.
        cache: the whole cache afterwards.
    """

    output: torch.Tensor
    cache: torch.Tensor


def assert_isolated(
    run: Callable[[torch.Tensor], Seen], cache: torch.Tensor, own: list[int], others: list[int]
) -> None:
    """Assert that a request neither reads nor writes what belongs to others.

    `run` is called twice with caches that differ in the slots `others` alone. The request's output
    and its slots `own` must not show the difference, and the slots `others` must stay as they were.
    """
    marked = cache.clone()
    marked[others] += 100.0
    plain, changed = run(cache.clone()), run(marked.clone())
    assert torch.equal(plain.output, changed.output), "the output shows another request's state"
    assert torch.equal(plain.cache[own], changed.cache[own]), "a slot took another request's state"
    assert torch.equal(plain.cache[others], cache[others]), "another request's state was written"
    assert torch.equal(changed.cache[others], marked[others]), "another's state was written"
