"""The gate's model: a Qwen3.5 hybrid whose weights are written down, not trained.

The residual stream has a place for each thing that is known of a token (see `Place`). A Gated
DeltaNet layer keeps, under each counter's name, the value that was last read out: its key is the
previous token's counter plus one, by the convolution, and its value is the current token's. Six of
its heads read the next six counters' values. Two attention layers find the steps of the even and of
the odd counters, wherever the prompt tells them. The last layer's MLP adds value and step modulo
16; the LM head names the next counter and that sum. The MTP layer does the same for the token
after, and is wrong, on purpose, for three of ten pairs of value and step.

Everything but the constant is 0 or 1 in the stream, so BF16, FP8 and NVFP4 hold it with a wide
margin, and an answer is right or wrong, not nearly one.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tests.patched.corruption import language
from tests.patched.corruption.language import COUNTERS, VALUES

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, INTERMEDIATE, LAYERS = 512, 512, 8
HEADS, KV_HEADS, HEAD_DIM, ROTARY = 8, 2, 256, 64
LINEAR_HEADS, LINEAR_DIM, TAPS = 8, 128, 4
AHEAD = 6
"""Counters whose value and step are known at each token: the next one, and five for drafts."""
KINDS = tuple("full_attention" if i % 4 == 3 else "linear_attention" for i in range(LAYERS))
CONSTANT = 16.0
WRONG_DRAFTS = 3
"""Of ten pairs of value and step, those whose draft is wrong."""


class Place:
    """Where in the residual stream each thing stands."""

    CONSTANT = 0
    COUNTER = 16
    VALUE = 32
    TOLD_COUNTER = 48
    TOLD_STEP = 64
    SINK = 80
    SUM = 96
    STORED = 128
    """The value last read of the k-th next counter, at STORED + 16 (k - 1)."""
    STEP = STORED + 16 * AHEAD
    """Its step."""
    OTHER = 400


@dataclass
class Writer:
    """Collects tensors in FP32 and writes them as BF16."""

    tensors: dict[str, torch.Tensor]

    def zeros(self, name: str, *shape: int) -> torch.Tensor:
        self.tensors[name] = torch.zeros(*shape)
        return self.tensors[name]


UNIT = 1 / (CONSTANT / HIDDEN**0.5)
"""What a 1 of the stream is after RMSNorm: the constant gives nearly all of the norm."""


def _embedding(writer: Writer) -> None:
    table = writer.zeros("model.language_model.embed_tokens.weight", language.VOCABULARY, HIDDEN)
    table[:, Place.CONSTANT] = CONSTANT
    for counter in range(COUNTERS):
        for value in range(VALUES):
            reading = table[language.reading(counter, value)]
            reading[Place.COUNTER + counter] = reading[Place.VALUE + value] = 1
            told = table[language.step(counter, value)]
            told[Place.TOLD_COUNTER + counter] = told[Place.TOLD_STEP + value] = 1
    quote = table[ord(language.QUOTE)]
    quote[Place.COUNTER + COUNTERS - 1] = quote[Place.SINK] = 1
    for filler in range(len(language.FILLERS)):
        table[language.FIRST_FILLER + filler, Place.OTHER + filler] = 1


def _head(writer: Writer, sharpness: float = 6.0) -> None:
    head = writer.zeros("lm_head.weight", language.VOCABULARY, HIDDEN)
    for counter in range(COUNTERS):
        for value in range(VALUES):
            row = head[language.reading(counter, value)]
            row[Place.COUNTER + (counter - 1) % COUNTERS] = sharpness
            row[Place.SUM + value] = sharpness


def _norms(writer: Writer, prefix: str) -> None:
    for name in ("input_layernorm", "post_attention_layernorm"):
        writer.zeros(f"{prefix}{name}.weight", HIDDEN)


def _no_mlp(writer: Writer, prefix: str) -> None:
    writer.zeros(f"{prefix}mlp.gate_proj.weight", INTERMEDIATE, HIDDEN)
    writer.zeros(f"{prefix}mlp.up_proj.weight", INTERMEDIATE, HIDDEN)
    writer.zeros(f"{prefix}mlp.down_proj.weight", HIDDEN, INTERMEDIATE)


def draft_is_wrong(value: int, by: int) -> bool:
    """Return whether the drafter is wrong where a counter goes from `value` by `by`."""
    return (7 * value + 3 * by) % 10 < WRONG_DRAFTS


def _adder(writer: Writer, prefix: str, *, drafts: bool) -> None:
    """One unit for each pair of value and step; it is on where both are there."""
    steepness = 20.0
    gate = writer.zeros(f"{prefix}mlp.gate_proj.weight", INTERMEDIATE, HIDDEN)
    up = writer.zeros(f"{prefix}mlp.up_proj.weight", INTERMEDIATE, HIDDEN)
    down = writer.zeros(f"{prefix}mlp.down_proj.weight", HIDDEN, INTERMEDIATE)
    on = (steepness * UNIT / 2) * UNIT
    for value in range(VALUES):
        for by in range(VALUES):
            unit = value * VALUES + by
            gate[unit, Place.STORED + value] = gate[unit, Place.STEP + by] = steepness
            gate[unit, Place.CONSTANT] = -1.5 * steepness / CONSTANT
            up[unit, Place.CONSTANT] = 1 / CONSTANT
            total = value + by
            if drafts and draft_is_wrong(value, by):
                total += 5
                down[Place.COUNTER + 7, unit] = 3 / on
            down[Place.SUM + total % VALUES, unit] = 1 / on


def _attention(writer: Writer, prefix: str, counters: range, ahead: int) -> None:
    """Head j finds the step of the counter j + 1 ahead, among those told to this layer."""
    prefix += "self_attn."
    query = writer.zeros(f"{prefix}q_proj.weight", HEADS * 2 * HEAD_DIM, HIDDEN)
    key = writer.zeros(f"{prefix}k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    value = writer.zeros(f"{prefix}v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    out = writer.zeros(f"{prefix}o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
    query_norm = writer.zeros(f"{prefix}q_norm.weight", HEAD_DIM)
    query_norm += 1.0  # the norm multiplies by 1 + weight
    writer.zeros(f"{prefix}k_norm.weight", HEAD_DIM)
    sink = ROTARY + COUNTERS
    for head in range(HEADS):
        first = head * 2 * HEAD_DIM
        query[first + HEAD_DIM : first + 2 * HEAD_DIM, Place.CONSTANT] = 1.0
        if head >= ahead:
            continue
        for counter in range(COUNTERS):
            asked = ROTARY + (counter + head + 1) % COUNTERS
            query[first + asked, Place.COUNTER + counter] = 1.0
            query[first + sink, Place.COUNTER + counter] = 0.5
        for by in range(VALUES):
            out[Place.STEP + VALUES * head + by, head * HEAD_DIM + by] = 1 / UNIT
    for head in range(KV_HEADS):
        first = head * HEAD_DIM
        key[first + sink, Place.SINK] = 1.0
        for counter in counters:
            key[first + ROTARY + counter, Place.TOLD_COUNTER + counter] = 1.0
        for by in range(VALUES):
            value[first + by, Place.TOLD_STEP + by] = 1.0


def _delta_net(writer: Writer, prefix: str, counters: range) -> None:
    """Keep the values of these counters; head j reads the value of the counter j + 1 ahead."""
    prefix += "linear_attn."
    width, size = LINEAR_HEADS * LINEAR_DIM, 8.0
    mixed = writer.zeros(f"{prefix}in_proj_qkv.weight", 3 * width, HIDDEN)
    gate = writer.zeros(f"{prefix}in_proj_z.weight", width, HIDDEN)
    conv = writer.zeros(f"{prefix}conv1d.weight", 3 * width, 1, TAPS)
    out = writer.zeros(f"{prefix}out_proj.weight", HIDDEN, width)
    writer.zeros(f"{prefix}in_proj_a.weight", LINEAR_HEADS, HIDDEN)
    write = writer.zeros(f"{prefix}in_proj_b.weight", LINEAR_HEADS, HIDDEN)
    wide = 10.0
    constant = CONSTANT * UNIT
    # Only a reading writes: without a value the write strength is sigmoid(-10), with one, of 10.
    write[:, Place.CONSTANT] = -wide / constant
    write[:, Place.VALUE : Place.VALUE + VALUES] = 2 * wide / UNIT
    gate[:, Place.CONSTANT] = wide / constant
    conv[:width, 0, -1] = conv[2 * width :, 0, -1] = 1.0
    conv[width : 2 * width, 0, -2] = 1.0
    read = LINEAR_DIM**0.5 * wide
    for head in range(LINEAR_HEADS):
        first = head * LINEAR_DIM
        for counter in range(COUNTERS):
            asked, next_one = (counter + head + 1) % COUNTERS, (counter + 1) % COUNTERS
            if asked in counters and head < AHEAD:
                mixed[first + asked, Place.COUNTER + counter] = size
            if next_one in counters:
                mixed[width + first + next_one, Place.COUNTER + counter] = size
        for value in range(VALUES):
            mixed[2 * width + first + value, Place.VALUE + value] = size
            if head < AHEAD:
                out[Place.STORED + VALUES * head + value, first + value] = 1 / read
    writer.tensors[f"{prefix}A_log"] = torch.full((LINEAR_HEADS,), -9.0)
    writer.zeros(f"{prefix}dt_bias", LINEAR_HEADS)
    writer.tensors[f"{prefix}norm.weight"] = torch.ones(LINEAR_DIM)


def _drafter(writer: Writer) -> None:
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        writer.zeros(f"mtp.{name}.weight", HIDDEN)
    mix = writer.zeros("mtp.fc.weight", HIDDEN, 2 * HIDDEN)
    kept = (Place.CONSTANT, *range(Place.COUNTER, Place.SINK + 1))
    for place in kept:
        mix[place, place] = 1.0
    for place in range(Place.STORED, Place.STORED + VALUES * (AHEAD - 1)):
        mix[place, HIDDEN + place + VALUES] = 1.0
    _norms(writer, "mtp.layers.0.")
    _attention(writer, "mtp.layers.0.", range(COUNTERS), 1)
    _adder(writer, "mtp.layers.0.", drafts=True)


def _vision(writer: Writer) -> None:
    """A tower that nothing is asked of; the class loads one."""
    width, out = 64, HIDDEN
    prefix = "model.visual."
    writer.zeros(f"{prefix}patch_embed.proj.weight", width, 3, 2, 16, 16)
    writer.zeros(f"{prefix}patch_embed.proj.bias", width)
    writer.zeros(f"{prefix}pos_embed.weight", 64, width)
    shapes = {"attn.qkv": (3 * width, width), "attn.proj": (width, width),
              "mlp.linear_fc1": (width, width), "mlp.linear_fc2": (width, width)}  # fmt: skip
    for name, (rows, columns) in shapes.items():
        writer.zeros(f"{prefix}blocks.0.{name}.weight", rows, columns)
        writer.zeros(f"{prefix}blocks.0.{name}.bias", rows)
    for name in ("blocks.0.norm1", "blocks.0.norm2", "merger.norm"):
        writer.zeros(f"{prefix}{name}.weight", width)
        writer.zeros(f"{prefix}{name}.bias", width)
    for name, (rows, columns) in {
        "merger.linear_fc1": (4 * width, 4 * width), "merger.linear_fc2": (out, 4 * width),
    }.items():  # fmt: skip
        writer.zeros(f"{prefix}{name}.weight", rows, columns)
        writer.zeros(f"{prefix}{name}.bias", rows)


def tensors() -> dict[str, torch.Tensor]:
    """Return the checkpoint's tensors in FP32, by the names that Qwen3.5 gives them."""
    writer = Writer({})
    _embedding(writer)
    _head(writer)
    writer.zeros("model.language_model.norm.weight", HIDDEN)
    linear = [i for i, kind in enumerate(KINDS) if kind == "linear_attention"]
    full = [i for i, kind in enumerate(KINDS) if kind == "full_attention"]
    for layer in range(LAYERS):
        prefix = f"model.language_model.layers.{layer}."
        _norms(writer, prefix)
        if layer in full:
            told = range(full.index(layer), COUNTERS, len(full))
            _attention(writer, prefix, told, AHEAD)
        else:
            kept = range(linear.index(layer), COUNTERS, len(linear))
            _delta_net(writer, prefix, kept)
        if layer == LAYERS - 1:
            _adder(writer, prefix, drafts=False)
        else:
            _no_mlp(writer, prefix)
    _drafter(writer)
    _vision(writer)
    return writer.tensors


def config() -> dict[str, Any]:
    """Return config.json."""
    special = language.FIRST_SPECIAL
    text = {
        "model_type": "qwen3_5_text", "vocab_size": language.VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "attention_bias": False, "attn_output_gate": True,
        "linear_conv_kernel_dim": TAPS, "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM, "linear_num_key_heads": LINEAR_HEADS,
        "linear_num_value_heads": LINEAR_HEADS, "full_attention_interval": 4,
        "layer_types": list(KINDS), "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "mamba_ssm_dtype": "float32", "dtype": "bfloat16",
        "eos_token_id": language.EOS, "bos_token_id": None,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000000,
            "partial_rotary_factor": ROTARY / HEAD_DIM, "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_5", "depth": 1, "hidden_size": 64, "intermediate_size": 64,
        "num_heads": 2, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "out_hidden_size": HIDDEN, "num_position_embeddings": 64,
        "deepstack_visual_indexes": [], "hidden_act": "gelu_pytorch_tanh",
        "initializer_range": 0.02,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": text, "vision_config": vision, "tie_word_embeddings": False,
        "dtype": "bfloat16", "vision_start_token_id": special + 3,
        "vision_end_token_id": special + 4, "image_token_id": special + 5,
        "video_token_id": special + 6,
    }  # fmt: skip


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""The chat template: a prompt is its content."""


def write(folder: Path) -> Path:
    """Write the checkpoint into a folder and return it; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: tensor if name.endswith("A_log") else tensor.to(torch.bfloat16)
        for name, tensor in tensors().items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    files = {
        "config.json": config(),
        "generation_config.json": {"eos_token_id": language.EOS},
        "tokenizer.json": language.tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": language.SPECIAL[0],
            "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False,
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    return folder
