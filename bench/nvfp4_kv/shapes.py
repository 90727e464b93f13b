"""The attention and GDN geometry of public models, for engines with random weights."""

from __future__ import annotations

from typing import Any

# Public config.json files: hidden size, layers, query and KV heads, GDN key and value heads.
SHAPES = {
    "27B": (5120, 64, 24, 4, 16, 48),
    "35B-A3B": (2048, 40, 16, 2, 16, 32),
}


def config(shape: str) -> dict[str, Any]:
    """Return the config.json of a dense hybrid with the shape's attention and GDN layers."""
    hidden, layers, heads, kv_heads, keys, values = SHAPES[shape]
    text = {
        "model_type": "qwen3_5_text",
        "vocab_size": 2048,
        "hidden_size": hidden,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "full_attention_interval": 4,
        "layer_types": [
            "linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layers)
        ],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "mamba_ssm_dtype": "float32",
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "bos_token_id": 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "model_type": "qwen3_5",
        "depth": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 4,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
        "hidden_act": "gelu_pytorch_tanh",
        "initializer_range": 0.02,
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 2044,
        "video_token_id": 2045,
        "vision_start_token_id": 2042,
        "vision_end_token_id": 2043,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
