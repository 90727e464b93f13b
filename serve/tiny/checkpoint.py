"""The tiny model as a checkpoint: config, weights, tokenizer and chat template, the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuild.files import write_atomic
from serve.tiny import weights
from serve.tiny.vocabulary import ADDED, BYTES, CLOSE, END, SPECIAL, build, byte_characters, shown

if TYPE_CHECKING:
    from serve.tiny.vocabulary import Vocabulary

TEMPLATE = Path(__file__).parent / "texts" / "chat_template.jinja"
CONTEXT = 32768


def config(made: Vocabulary) -> dict[str, Any]:
    """Return config.json."""
    text = {
        "model_type": "qwen3_5_text", "vocab_size": weights.rows(made),
        "hidden_size": weights.HIDDEN, "intermediate_size": weights.INTERMEDIATE,
        "num_hidden_layers": weights.LAYERS, "num_attention_heads": weights.HEADS,
        "num_key_value_heads": weights.KV_HEADS, "head_dim": weights.HEAD_DIM,
        "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, "attention_bias": False, "attn_output_gate": True,
        "linear_conv_kernel_dim": weights.TAPS, "linear_key_head_dim": weights.LINEAR_DIM,
        "linear_value_head_dim": weights.LINEAR_DIM,
        "linear_num_key_heads": weights.LINEAR_HEADS,
        "linear_num_value_heads": weights.LINEAR_HEADS, "full_attention_interval": 4,
        "layer_types": list(weights.KINDS), "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "mamba_ssm_dtype": "float32", "dtype": "bfloat16",
        "eos_token_id": made.ids[CLOSE], "bos_token_id": None,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000000,
            "partial_rotary_factor": weights.ROTARY / weights.HEAD_DIM,
            "mrope_section": [11, 11, 10], "mrope_interleaved": True,
        },
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_5", "depth": 1, "hidden_size": weights.VISION,
        "intermediate_size": weights.VISION, "num_heads": 2, "in_channels": 3, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": weights.HIDDEN,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [],
        "hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.02,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": text, "vision_config": vision, "tie_word_embeddings": False,
        "dtype": "bfloat16", "vision_start_token_id": made.ids[SPECIAL[3]],
        "vision_end_token_id": made.ids[SPECIAL[4]], "image_token_id": made.ids[SPECIAL[5]],
        "video_token_id": made.ids[SPECIAL[6]],
    }  # fmt: skip


def tokenizer(made: Vocabulary) -> dict[str, object]:
    """Return tokenizer.json: byte-level BPE, as the `tokenizers` library reads it."""
    table = byte_characters()
    vocabulary = {table[byte]: byte for byte in range(BYTES)}
    vocabulary |= {shown(text): token for text, token in made.ids.items() if token >= BYTES}
    tokens = [
        {
            "id": made.ids[text], "content": text, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": text in SPECIAL,
        }
        for text in (*SPECIAL, *ADDED)
    ]  # fmt: skip
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": sorted(tokens, key=lambda token: str(token["id"]).zfill(9)),
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocabulary,
            "merges": [[shown(left), shown(right)] for left, right in made.merges],
        },
    }  # fmt: skip


def safetensors(tensors: dict[str, weights.Tensor]) -> bytes:
    """Return a safetensors file: the header's length, the header, the tensors by their names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in sorted(tensors.items()):
        end = at + len(tensor.data)
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join(
        (len(text).to_bytes(8, "little"), text, *(bytes(tensors[n].data) for n in sorted(tensors)))
    )


def write(folder: Path) -> Path:
    """Write the checkpoint into a folder and return it; the same bytes every time.

    Raises:
        StorageError: if the folder cannot be written.
    """
    made = build()
    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": config(made),
        "generation_config.json": {"eos_token_id": [made.ids[CLOSE], made.ids[END]]},
        "tokenizer.json": tokenizer(made),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": CLOSE,
            "pad_token": END, "clean_up_tokenization_spaces": False,
        },
    }  # fmt: skip
    for name, content in documents.items():
        write_atomic(folder / name, (json.dumps(content, indent=1) + "\n").encode())
    write_atomic(folder / "chat_template.jinja", TEMPLATE.read_bytes())
    write_atomic(folder / "model.safetensors", safetensors(weights.tensors(made)))
    return folder
