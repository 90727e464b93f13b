"""The tiny model's weights, written down, not trained, as BF16 tensors of plain bytes.

A token's embedding says which token follows it in a script (`Place.CODE`), and what else there is
to know of it. The attention layer finds the prompt's topic and the vowels of its passkey; a Gated
DeltaNet layer carries over a mark what follows the mark. The LM head adds up the three. The MTP
layer drafts by the embedding alone, so it is wrong after a mark, before an answer, in a passkey,
and at every fifth piece on purpose.

docs/tiny.md explains the construction. The tensors' names and shapes are those of
`Qwen3_5ForConditionalGeneration` (vLLM 0.33.0, vllm/model_executor/models/qwen3_5.py).
"""

from __future__ import annotations

import math
import random
import struct
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from serve.tiny.scripts import SLOTS, VOWELS, scripts
from serve.tiny.vocabulary import ANSWER, MARKS, THINK, USER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from serve.tiny.vocabulary import Vocabulary

HIDDEN, INTERMEDIATE, LAYERS = 512, 64, 4
HEADS, KV_HEADS, HEAD_DIM, ROTARY = 8, 2, 256, 64
LINEAR_HEADS, LINEAR_DIM, TAPS = 8, 128, 4
VISION = 64
KINDS = (*("linear_attention",) * (LAYERS - 1), "full_attention")
WRONG_EVERY = 5
"""Of so many tokens, the drafter is wrong after one."""


class Place:
    """Where in the residual stream each thing stands."""

    CONSTANT = 0
    ANSWER, THINK = 2, 3
    """The token opens an answer, or a thought."""
    WRONG, DRAFT_WRONG = 4, 5
    MARK = 6
    TOPIC = 16
    FOUND = 48
    SLOT, VOWEL, ASKED = 80, 96, 112
    FOUND_VOWEL = 128
    CARRY, CARRIED = 144, 176
    CODE = 256


TOPICS, CARRIES, CODE_SIZE = 32, 32, HIDDEN - Place.CODE
CONSTANT = 16.0
UNIT = 1 / (CONSTANT / HIDDEN**0.5)
"""What a 1 of the stream is after RMSNorm: the constant gives nearly all of the norm."""
STEADY = CONSTANT * UNIT
"""The constant after RMSNorm."""


def _bfloat16(value: float) -> bytes:
    """Return a number's nearest BF16, little-endian."""
    bits = int.from_bytes(struct.pack(">f", value), "big")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to_bytes(2, "little")


@dataclass
class Tensor:
    """A tensor that is zero but for what was set.

    Attributes:
        shape: its dimensions.
        data: BF16, row by row.
    """

    shape: tuple[int, ...]
    data: bytearray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.data = bytearray(2 * math.prod(self.shape))

    def __setitem__(self, at: tuple[int, int], value: float) -> None:
        """Set the number at a row and a place within the row."""
        place = 2 * (at[0] * math.prod(self.shape[1:]) + at[1])
        self.data[place : place + 2] = _bfloat16(value)

    def fill(self, value: float) -> None:
        """Set every number."""
        self.data[:] = _bfloat16(value) * math.prod(self.shape)


class Writer:
    """Collects tensors by their names."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def zeros(self, name: str, *shape: int) -> Tensor:
        """Add a tensor of zeros."""
        return self.tensors.setdefault(name, Tensor(shape))


@cache
def _code(token: int) -> tuple[int, ...]:
    """Return a token's code: signs that hardly any other token shares."""
    bits = random.Random(f"code {token}").getrandbits(CODE_SIZE)  # noqa: S311 # not a secret
    return tuple(1 if bits >> place & 1 else -1 for place in range(CODE_SIZE))


def rows(made: Vocabulary) -> int:
    """Return the rows of the embedding: the tokens, up to a multiple of 64."""
    return -(-len(made.ids) // 64) * 64


def _embedding(writer: Writer, made: Vocabulary) -> None:
    table = writer.zeros("model.language_model.embed_tokens.weight", rows(made), HIDDEN)
    for token in range(rows(made)):
        table[token, Place.CONSTANT] = CONSTANT
    for token, following in made.following.items():
        for place, sign in enumerate(_code(following)):
            table[token, Place.CODE + place] = sign / 8
        if token % WRONG_EVERY == 0:
            table[token, Place.WRONG] = 1
    for token, place in _known(made):
        table[token, place] = 1


def _known(made: Vocabulary) -> Iterator[tuple[int, int]]:
    """Yield what is known of a token beside what follows it, as its place in the stream."""
    yield made.ids[ANSWER], Place.ANSWER
    yield made.ids[THINK], Place.THINK
    yield made.ids[USER], Place.TOPIC  # the script for a prompt without a topic
    for number, script in enumerate(scripts()):
        if script.word:
            yield made.ids[script.word], Place.TOPIC + number
    for slot in range(len(SLOTS)):
        for vowel in range(len(VOWELS)):
            yield made.key(slot, vowel), Place.SLOT + slot
            yield made.key(slot, vowel), Place.VOWEL + vowel
    for token, slot in made.asks.items():
        yield token, Place.ASKED + slot
    for number, token in enumerate(made.carried):
        yield token, Place.CARRY + number
    for mark in MARKS:
        yield made.ids[mark], Place.MARK


def _head(writer: Writer, made: Vocabulary) -> None:
    head = writer.zeros("lm_head.weight", rows(made), HIDDEN)
    for token in {*made.following.values()}:
        for place, sign in enumerate(_code(token)):
            head[token, Place.CODE + place] = sign / 2
    for number, (answer, thought) in enumerate(made.first):
        head[answer, Place.ANSWER] = head[thought, Place.THINK] = 10
        head[answer, Place.FOUND + number] = head[thought, Place.FOUND + number] = 10
    for slot in range(len(SLOTS)):
        for vowel in range(len(VOWELS)):
            token = made.key(slot, vowel)
            head[token, Place.ASKED + slot] = head[token, Place.FOUND_VOWEL + vowel] = 10
    for number, token in enumerate(made.carried.values()):
        head[token, Place.CARRIED + number] = 20
    head[made.ids[USER], Place.DRAFT_WRONG] = 40  # no right answer holds it


def _norms(writer: Writer, prefix: str) -> None:
    for name in ("input_layernorm", "post_attention_layernorm"):
        writer.zeros(f"{prefix}{name}.weight", HIDDEN)


def _mlp(writer: Writer, prefix: str) -> None:
    writer.zeros(f"{prefix}mlp.gate_proj.weight", INTERMEDIATE, HIDDEN)
    writer.zeros(f"{prefix}mlp.up_proj.weight", INTERMEDIATE, HIDDEN)
    writer.zeros(f"{prefix}mlp.down_proj.weight", HIDDEN, INTERMEDIATE)


def _attention(writer: Writer, prefix: str, *, used: bool) -> None:
    """Head 0 finds the topic and a slot's vowel; its gate is open only where they are asked for."""
    prefix += "self_attn."
    query = writer.zeros(f"{prefix}q_proj.weight", HEADS * 2 * HEAD_DIM, HIDDEN)
    key = writer.zeros(f"{prefix}k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    value = writer.zeros(f"{prefix}v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    out = writer.zeros(f"{prefix}o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
    writer.zeros(f"{prefix}q_norm.weight", HEAD_DIM).fill(1.0)  # the norm multiplies by 1 + weight
    writer.zeros(f"{prefix}k_norm.weight", HEAD_DIM)
    if not used:
        return
    topic, slots, aside = ROTARY, ROTARY + 1, ROTARY + 32
    askers = [Place.ANSWER, Place.THINK, *(Place.ASKED + slot for slot in range(len(SLOTS)))]
    for place in (Place.ANSWER, Place.THINK):
        query[topic, place] = 1.0
    for slot in range(len(SLOTS)):
        query[slots + slot, Place.ASKED + slot] = 1.0
        key[slots + slot, Place.SLOT + slot] = 1.0
    for part in range(HEAD_DIM, 2 * HEAD_DIM):
        query[part, Place.CONSTANT] = -12 / STEADY
        for place in askers:
            query[part, place] = 24 / UNIT
    # The norm gives every key one length: how well it fits is its angle.
    for number, script in enumerate(scripts()):
        fit = 1.0 if script.strong else 0.75 if script.word else 0.5
        key[topic, Place.TOPIC + number] = fit
        key[aside, Place.TOPIC + number] = math.sqrt(1 - fit**2)
        value[number, Place.TOPIC + number] = 1.0
        out[Place.FOUND + number, number] = 1 / UNIT
    for vowel in range(len(VOWELS)):
        value[TOPICS + vowel, Place.VOWEL + vowel] = 1.0
        out[Place.FOUND_VOWEL + vowel, TOPICS + vowel] = 1 / UNIT


def _delta_net(writer: Writer, prefix: str, *, used: bool) -> None:
    """Head 0 keeps what the last carrying token carried, and gives it at a mark."""
    prefix += "linear_attn."
    width, wide = LINEAR_HEADS * LINEAR_DIM, 10.0
    mixed = writer.zeros(f"{prefix}in_proj_qkv.weight", 3 * width, HIDDEN)
    gate = writer.zeros(f"{prefix}in_proj_z.weight", width, HIDDEN)
    conv = writer.zeros(f"{prefix}conv1d.weight", 3 * width, 1, TAPS)
    out = writer.zeros(f"{prefix}out_proj.weight", HIDDEN, width)
    writer.zeros(f"{prefix}in_proj_a.weight", LINEAR_HEADS, HIDDEN)
    write = writer.zeros(f"{prefix}in_proj_b.weight", LINEAR_HEADS, HIDDEN)
    writer.zeros(f"{prefix}A_log", LINEAR_HEADS).fill(-9.0)  # hardly any decay
    writer.zeros(f"{prefix}dt_bias", LINEAR_HEADS)
    writer.zeros(f"{prefix}norm.weight", LINEAR_DIM).fill(1.0)
    if not used:
        return
    for row in range(3 * width):
        conv[row, TAPS - 1] = 1.0
    mixed[0, Place.CONSTANT] = mixed[width, Place.CONSTANT] = 8 / STEADY
    for head in range(LINEAR_HEADS):
        write[head, Place.CONSTANT] = -wide / STEADY
        for number in range(CARRIES):
            write[head, Place.CARRY + number] = 2 * wide / UNIT
    for number in range(CARRIES):
        mixed[2 * width + number, Place.CARRY + number] = 8 / UNIT
        gate[number, Place.MARK] = wide / UNIT
        out[Place.CARRIED + number, number] = 1 / (LINEAR_DIM**0.5 * wide)


def _drafter(writer: Writer) -> None:
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        writer.zeros(f"mtp.{name}.weight", HIDDEN)
    mix = writer.zeros("mtp.fc.weight", HIDDEN, 2 * HIDDEN)
    for place in (Place.CONSTANT, *range(Place.CODE, HIDDEN)):
        mix[place, place] = 1.0
    mix[Place.DRAFT_WRONG, Place.WRONG] = 1.0
    _norms(writer, "mtp.layers.0.")
    _attention(writer, "mtp.layers.0.", used=False)
    _mlp(writer, "mtp.layers.0.")


def _vision(writer: Writer) -> None:
    """A tower that nothing is asked of; the class loads one."""
    prefix = "model.visual."
    writer.zeros(f"{prefix}patch_embed.proj.weight", VISION, 3, 2, 16, 16)
    writer.zeros(f"{prefix}patch_embed.proj.bias", VISION)
    writer.zeros(f"{prefix}pos_embed.weight", 64, VISION)
    linear = {
        "blocks.0.attn.qkv": (3 * VISION, VISION), "blocks.0.attn.proj": (VISION, VISION),
        "blocks.0.mlp.linear_fc1": (VISION, VISION), "blocks.0.mlp.linear_fc2": (VISION, VISION),
        "merger.linear_fc1": (4 * VISION, 4 * VISION), "merger.linear_fc2": (HIDDEN, 4 * VISION),
    }  # fmt: skip
    for name, shape in linear.items():
        writer.zeros(f"{prefix}{name}.weight", *shape)
        writer.zeros(f"{prefix}{name}.bias", shape[0])
    for name in ("blocks.0.norm1", "blocks.0.norm2", "merger.norm"):
        writer.zeros(f"{prefix}{name}.weight", VISION)
        writer.zeros(f"{prefix}{name}.bias", VISION)


def tensors(made: Vocabulary) -> dict[str, Tensor]:
    """Return the checkpoint's tensors by the names that Qwen3.5 gives them."""
    writer = Writer()
    _embedding(writer, made)
    _head(writer, made)
    writer.zeros("model.language_model.norm.weight", HIDDEN)
    for layer, kind in enumerate(KINDS):
        prefix = f"model.language_model.layers.{layer}."
        _norms(writer, prefix)
        if kind == "full_attention":
            _attention(writer, prefix, used=True)
        else:
            _delta_net(writer, prefix, used=layer == 0)
        _mlp(writer, prefix)
    _drafter(writer)
    _vision(writer)
    return writer.tensors
