"""Faults that real servers had or could have, put back one at a time to see the gate go red.

Each function changes vLLM's classes in this process, before an engine is made.
"""
# mypy: disable-error-code="import-not-found,no-untyped-call"

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def _gdn_builder() -> Any:
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder

    return GDNAttentionMetadataBuilder


def _with_counts(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let `change` have the accepted counts before the recurrent layers see them."""
    builder = _gdn_builder()
    build = builder.build

    def changed(self: Any, prefix: int, common: Any, *rest: Any, **named: Any) -> Any:
        if rest and rest[0] is not None:
            rest = (change(rest[0]), *rest[1:])
        elif named.get("num_accepted_tokens") is not None:
            named["num_accepted_tokens"] = change(named["num_accepted_tokens"])
        return build(self, prefix, common, *rest, **named)

    builder.build = changed


def state_is_not_rolled_back(drafts: int) -> None:
    """Keep the recurrent state of rejected drafts, as if all had been accepted."""
    _with_counts(lambda counts: torch.full_like(counts, 1 + drafts))


def stale_accepted_count(drafts: int) -> None:
    """Take the counts of the step before, as where a copy to the host is not waited for."""
    del drafts
    last: dict[int, torch.Tensor] = {}

    def stale(counts: torch.Tensor) -> torch.Tensor:
        before = last.get(len(counts), counts)
        last[len(counts)] = counts.clone()
        return before.to(counts.device)

    _with_counts(stale)


def block_table_off_by_one(drafts: int) -> None:
    """Let attention read each page from the block-table column after its own."""
    del drafts
    for builder in _attention_builders():
        build = builder.build

        def shifted(
            self: Any, prefix: int, common: Any, *rest: Any, _build: Any = build, **named: Any
        ) -> Any:
            table = common.block_table_tensor
            table = torch.cat([table[:, 1:], table[:, -1:]], dim=1).contiguous()
            return _build(self, prefix, replace(common, block_table_tensor=table), *rest, **named)

        builder.build = shifted


def _attention_builders() -> list[Any]:
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        from vllm.v1.attention.backends.flashinfer import FlashInferMetadataBuilder

        return [FlashInferMetadataBuilder]
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    return [CPUAttentionMetadataBuilder]


def prefill_as_decode(drafts: int) -> None:
    """Take the end of a prompt for a decode of drafted tokens, by its length alone.

    The state after its first token is then taken for the state after its last.
    """
    builder = _gdn_builder()
    build = builder.build

    def by_length(self: Any, prefix: int, common: Any, *rest: Any, **named: Any) -> Any:
        arguments = dict(
            zip(("num_accepted_tokens", "num_decode_draft_tokens_cpu"), rest, strict=False)
        )
        arguments |= named
        drafted = arguments.get("num_decode_draft_tokens_cpu")
        counts = arguments.get("num_accepted_tokens")
        if drafted is not None and counts is not None:
            lengths = common.query_start_loc_cpu.diff()[: len(drafted)]
            ends = (drafted < 0) & (lengths == 1 + drafts)
            if bool(ends.any()):
                drafted = drafted.clone()
                drafted[ends] = drafts
                arguments["num_decode_draft_tokens_cpu"] = drafted
        return build(self, prefix, common, **arguments)

    builder.build = by_length


def _scales(change: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, str], Any]) -> None:
    """Let `change` have the cache, its scales and their layout when attention reads NVFP4 pages."""
    from vllm.v1.attention.backends import flashinfer

    views, update = flashinfer._nvfp4_kv_views, flashinfer.FlashInferImpl.do_kv_cache_update
    writing = [False]

    def changed(kv_cache: torch.Tensor, heads: int) -> Any:
        data, scales, layout = views(kv_cache, heads)
        if not writing[0]:
            k_scales, v_scales = scales
            scales = change(kv_cache, k_scales, v_scales, layout)
        return data, scales, layout

    def written(self: Any, *arguments: Any, **named: Any) -> Any:
        writing[0] = True
        try:
            return update(self, *arguments, **named)
        finally:
            writing[0] = False

    flashinfer._nvfp4_kv_views = changed
    flashinfer.FlashInferImpl.do_kv_cache_update = written


def _like(scale: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return `values` in memory of the same strides as `scale`."""
    size = 1 + sum((n - 1) * s for n, s in zip(scale.shape, scale.stride(), strict=True))
    held = torch.empty(size, dtype=torch.uint8, device=scale.device)
    copy = held.as_strided(scale.shape, scale.stride())
    copy.copy_(values)
    return copy.view(scale.dtype)


def v_scales_swizzled(drafts: int) -> None:
    """Read V's block scales in the 4 x 4 tiles in which SM100's kernels want them."""
    del drafts

    def swizzle(_: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str) -> Any:
        stored = v.view(torch.uint8)
        plain = stored.transpose(1, 2) if layout == "NHD" else stored  # [page, head, token, block]
        pages, heads, tokens, blocks = plain.shape
        tiles = plain.reshape(pages, heads, tokens // 4, 4, blocks // 4, 4)
        swizzled = tiles.transpose(3, 5).reshape(plain.shape)
        return k, _like(stored, swizzled.transpose(1, 2) if layout == "NHD" else swizzled)

    _scales(swizzle)


def scales_of_another_layer(drafts: int) -> None:
    """Read each attention layer's pages with the block scales of another layer."""
    del drafts
    held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def swap(kv_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: str) -> Any:
        held[kv_cache.data_ptr()] = (k, v)
        others = [pair for place, pair in held.items() if place != kv_cache.data_ptr()]
        return others[0] if others else (k, v)

    _scales(swap)


FAULTS: dict[str, Callable[[int], None]] = {
    "state is not rolled back": state_is_not_rolled_back,
    "stale accepted count": stale_accepted_count,
    "block table off by one": block_table_off_by_one,
    "prefill as decode": prefill_as_decode,
    "V scales swizzled": v_scales_swizzled,
    "scales of another layer": scales_of_another_layer,
}
