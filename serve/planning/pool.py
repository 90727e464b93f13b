"""The pool of KV cache blocks, counted as vLLM counts it.

Sources, vLLM 0.33.0 (0.27.1 counts the same, but for the checkpoints of a prefill):
`platforms/interface.py` (`_align_hybrid_block_size`: the block of a full attention layer is as long
as one Gated DeltaNet state is large), `v1/core/kv_cache_planning.py`
(`_get_kv_cache_groups_uniform_page_size`: every group has as many layers as the smallest kind),
`v1/kv_cache_interface.py` (`MambaSpec.max_memory_usage_bytes`) and `v1/core/kv_cache_utils.py`
(`get_kv_cache_capacity`: what the log calls the KV cache's size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from serve.planning.shape import Shape

KvType = Literal["bfloat16", "fp8", "nvfp4"]
StateType = Literal["bfloat16", "float32"]

_STATE_BYTES: dict[StateType, int] = {"bfloat16": 2, "float32": 4}
_CONV_BYTES = 2
"""The convolution's state has the model's type, which is BF16."""
_NVFP4_BLOCK = 16
"""Values that share one scale of one byte."""
KERNEL_BLOCK = 16
"""Tokens of the smallest page that FlashInfer reads, and vLLM's default block."""
CHECKPOINT_ALIGNMENT = 64
"""Tokens between two states that FlashInfer's prefill of 0.33.0 can write out."""


@dataclass(frozen=True)
class Caching:
    """What is cached, and how.

    Attributes:
        kv: the type of keys and values.
        state: the type of the recurrent state.
        drafts: drafted tokens for each step; each has a state of its own.
        prefix: whether prefixes are cached: then a sequence keeps one state more.
        checkpoints: whether a prefill writes states out on its way (vLLM 0.33.0 with FlashInfer's
            Gated DeltaNet prefill, the default on SM90 and SM12x): then yet one more.
        tensor_parallel: cards that share the heads.
        kernel_block: tokens of the smallest page that the attention kernel reads.
    """

    kv: KvType
    state: StateType
    drafts: int = 0
    prefix: bool = True
    checkpoints: bool = True
    tensor_parallel: int = 1
    kernel_block: int = KERNEL_BLOCK


@dataclass(frozen=True)
class Pool:
    """A pool of blocks on one card.

    Attributes:
        token_bytes: one token's keys and values in one layer.
        state_bytes: one Gated DeltaNet layer's state, once.
        block_tokens: tokens of a block, as the log gives the attention block size.
        page_bytes: a block in one layer.
        group_layers: layers that share one block.
        attention_groups, state_groups: groups of layers with full attention, with Gated DeltaNet.
        states: blocks that a sequence holds in each of those groups.
        blocks: blocks in the pool.
        context: tokens of one sequence at most.
    """

    token_bytes: int
    state_bytes: int
    block_tokens: int
    page_bytes: int
    group_layers: int
    attention_groups: int
    state_groups: int
    states: int
    blocks: int
    context: int

    @property
    def sequence_blocks(self) -> int:
        """Blocks that a sequence of the whole context holds."""
        token_blocks = self.attention_groups * -(-self.context // self.block_tokens)
        return token_blocks + self.fixed_blocks

    @property
    def fixed_blocks(self) -> int:
        """Blocks that every sequence holds for its states."""
        return self.state_groups * self.states

    @property
    def sequences(self) -> float:
        """Sequences of the whole context that fit, as the log's maximum concurrency."""
        return self.blocks / self.sequence_blocks

    @property
    def tokens(self) -> int:
        """Tokens that fit, as the log's KV cache size: whole sequences times their context."""
        return int(self.sequences * self.context)

    def shared_by(self, sequences: int) -> int:
        """Return the tokens that so many sequences can have together, each with its states."""
        free = max(self.blocks - sequences * self.fixed_blocks, 0)
        return free // self.attention_groups * self.block_tokens

    @property
    def sequence_state_bytes(self) -> int:
        """Bytes of the pool that a sequence's states take, padding included."""
        return self.fixed_blocks * self.group_layers * self.page_bytes


def kv_bytes(shape: Shape, kv: KvType, tensor_parallel: int = 1) -> int:
    """Return the bytes of one token's keys and values in one layer on one card."""
    values = 2 * max(shape.key_value_heads // tensor_parallel, 1) * shape.head_dim
    if kv == "nvfp4":
        return values // 2 + values // _NVFP4_BLOCK
    return values * (1 if kv == "fp8" else 2)


def state_bytes(shape: Shape, caching: Caching) -> int:
    """Return the bytes of one Gated DeltaNet layer's state on one card."""
    keys = shape.linear_key_dim * shape.linear_key_heads
    values = shape.linear_value_dim * shape.linear_value_heads
    conv = (2 * keys + values) * (shape.conv_kernel - 1 + caching.drafts) * _CONV_BYTES
    recurrent = values * shape.linear_key_dim * _STATE_BYTES[caching.state]
    return (conv + recurrent) // caching.tensor_parallel


def pool(shape: Shape, caching: Caching, size: int, context: int) -> Pool:
    """Return the pool that a number of bytes makes.

    Args:
        shape: the model's geometry.
        caching: what is cached, and how.
        size: bytes on one card, vLLM's `--kv-cache-memory-bytes`.
        context: vLLM's `--max-model-len`.
    """
    token = kv_bytes(shape, caching.kv, caching.tensor_parallel)
    state = state_bytes(shape, caching)
    checkpoints = caching.prefix and caching.checkpoints
    step = max(caching.kernel_block, CHECKPOINT_ALIGNMENT if checkpoints else 0)
    block = step * -(-state // (step * token))
    attention = shape.full_attention + (shape.mtp_layers if caching.drafts else 0)
    group, most = sorted((attention, shape.linear_attention))
    if most < 1.5 * group:
        group = most
    return Pool(
        token_bytes=token,
        state_bytes=state,
        block_tokens=block,
        page_bytes=block * token,
        group_layers=group,
        attention_groups=-(-attention // group),
        state_groups=-(-shape.linear_attention // group),
        states=1 + caching.drafts + (1 if caching.prefix else 0) + (1 if checkpoints else 0),
        blocks=size // (group * block * token),
        context=context,
    )
