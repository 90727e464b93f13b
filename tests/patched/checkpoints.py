"""Tiny, complete Qwen3.5 checkpoints whose weights NVFP4 and FP8 hold without loss.

Every matrix is e2m1 values times powers of two, so that a packed module and its BF16 twin hold the
same numbers, and what a loader made of them can be compared value by value.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Format = Literal["modelopt", "compressed-tensors", "fp8"]

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
BLOCK = 16
HIDDEN, INTERMEDIATE, VOCABULARY = 128, 256, 512
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_HEAD_DIM, KERNEL = 2, 4, 64, 4
EXPERTS, EXPERT_INTERMEDIATE = 4, 64
VISION_HIDDEN, VISION_INTERMEDIATE, VISION_DEPTH = 64, 128, 1
TEXT_ROOT = "model.language_model."
INPUT_SCALE = 0.25


def nothing(_module: str) -> bool:
    """Pack no module."""
    return False


def same(name: str) -> str | None:
    """Keep a tensor's name."""
    return name


@dataclass(frozen=True)
class Recipe:
    """What to write.

    Attributes:
        packed: which modules, by the checkpoint's name, are stored quantized.
        excluded: the exclude list as the quantization config gives it.
        form: the quantization format, or None for a checkpoint without one.
        config: keys to add to the quantization config.
        name: the name under which a tensor is written; None leaves it out.
        layers: the kinds of the decoder layers.
    """

    packed: Callable[[str], bool] = nothing
    excluded: tuple[str, ...] = ()
    form: Format | None = None
    config: dict[str, Any] = field(default_factory=dict)
    moe: bool = False
    mtp: bool = True
    name: Callable[[str], str | None] = same
    layers: tuple[str, ...] = ("linear_attention", "full_attention")
    extra: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class Exact:
    """A matrix as e2m1 codes, block scales and one global scale, all powers of two or e2m1."""

    codes: torch.Tensor
    blocks: torch.Tensor
    scale: float

    @property
    def values(self) -> torch.Tensor:
        """The matrix in FP32; BF16 holds it exactly."""
        rows, columns = self.codes.shape
        signs = 1.0 - 2.0 * (self.codes >= 8).float()
        plain = (E2M1[self.codes.long() % 8] * signs).view(rows, columns // BLOCK, BLOCK)
        return (plain * self.blocks[..., None]).view(rows, columns) * self.scale

    def stored(self, form: Format) -> dict[str, torch.Tensor]:
        """The tensors of a packed module, by the last part of their names."""
        packed = (self.codes[:, 0::2] | (self.codes[:, 1::2] << 4)).contiguous()
        blocks = self.blocks.to(torch.float8_e4m3fn)
        if form == "modelopt":
            return {
                "weight": packed,
                "weight_scale": blocks,
                "weight_scale_2": torch.tensor(self.scale),
                "input_scale": torch.tensor(INPUT_SCALE),
            }
        if form == "compressed-tensors":
            return {
                "weight_packed": packed,
                "weight_scale": blocks,
                "weight_global_scale": torch.tensor([1 / self.scale]),
                "input_global_scale": torch.tensor([1 / INPUT_SCALE]),
            }
        return {
            "weight": (self.values / self.scale).to(torch.float8_e4m3fn),
            "weight_scale": torch.tensor(self.scale),
        }


class Writer:
    """Collects the tensors of one checkpoint.

    Attributes:
        tensors: what the file will hold.
        matrices: the true values of every matrix, by module, packed or not.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.generator = torch.Generator().manual_seed(0)
        self.tensors: dict[str, torch.Tensor] = dict(recipe.extra)
        self.matrices: dict[str, torch.Tensor] = {}

    def put(self, name: str, tensor: torch.Tensor) -> None:
        written = self.recipe.name(name)
        if written is not None:
            self.tensors[written] = tensor

    def exact(self, rows: int, columns: int) -> Exact:
        codes = torch.randint(0, 16, (rows, columns), generator=self.generator, dtype=torch.uint8)
        shape = (rows, columns // BLOCK)
        powers = torch.randint(-1, 2, shape, generator=self.generator)
        scale = 2.0 ** round(math.log2(columns**-0.5 / 3))
        return Exact(codes, torch.exp2(powers.float()), scale)

    def linear(self, module: str, rows: int, columns: int) -> None:
        matrix = self.exact(rows, columns)
        self.matrices[module] = matrix.values
        if self.recipe.form is not None and self.recipe.packed(module):
            for leaf, tensor in matrix.stored(self.recipe.form).items():
                self.put(f"{module}.{leaf}", tensor)
        else:
            self.put(f"{module}.weight", matrix.values.to(torch.bfloat16))

    def vector(self, name: str, length: int, value: float = 0.0) -> None:
        self.put(name, torch.full((length,), value, dtype=torch.bfloat16))

    def random(self, name: str, *shape: int, std: float = 0.02) -> None:
        tensor = torch.randn(*shape, generator=self.generator) * std
        self.put(name, tensor.to(torch.bfloat16))

    def experts(self, module: str) -> None:
        """BF16 experts as the model's own two stacked tensors, packed ones each by itself."""
        form = self.recipe.form
        stacks: dict[str, list[torch.Tensor]] = {"gate_up_proj": [], "down_proj": []}
        packs = form is not None and self.recipe.packed(module)
        for expert in range(EXPERTS):
            shapes = {
                "gate_proj": (EXPERT_INTERMEDIATE, HIDDEN),
                "up_proj": (EXPERT_INTERMEDIATE, HIDDEN),
                "down_proj": (HIDDEN, EXPERT_INTERMEDIATE),
            }
            made = {leaf: self.exact(*shape) for leaf, shape in shapes.items()}
            for leaf, matrix in made.items():
                self.matrices[f"{module}.{expert}.{leaf}"] = matrix.values
                if packs and form is not None:
                    for kind, tensor in matrix.stored(form).items():
                        self.put(f"{module}.{expert}.{leaf}.{kind}", tensor)
            pair = [made["gate_proj"].values, made["up_proj"].values]
            stacks["gate_up_proj"].append(torch.cat(pair))
            stacks["down_proj"].append(made["down_proj"].values)
        if not packs:
            for leaf, parts in stacks.items():
                self.put(f"{module}.{leaf}", torch.stack(parts).to(torch.bfloat16))

    def mlp(self, module: str, intermediate: int = INTERMEDIATE) -> None:
        self.linear(f"{module}.gate_proj", intermediate, HIDDEN)
        self.linear(f"{module}.up_proj", intermediate, HIDDEN)
        self.linear(f"{module}.down_proj", HIDDEN, intermediate)

    def feed_forward(self, layer: str) -> None:
        if not self.recipe.moe:
            self.mlp(f"{layer}.mlp")
            return
        self.linear(f"{layer}.mlp.gate", EXPERTS, HIDDEN)
        self.linear(f"{layer}.mlp.shared_expert_gate", 1, HIDDEN)
        self.mlp(f"{layer}.mlp.shared_expert", EXPERT_INTERMEDIATE)
        self.experts(f"{layer}.mlp.experts")

    def attention(self, module: str) -> None:
        self.linear(f"{module}.q_proj", 2 * HEADS * HEAD_DIM, HIDDEN)
        self.linear(f"{module}.k_proj", KV_HEADS * HEAD_DIM, HIDDEN)
        self.linear(f"{module}.v_proj", KV_HEADS * HEAD_DIM, HIDDEN)
        self.linear(f"{module}.o_proj", HIDDEN, HEADS * HEAD_DIM)
        self.vector(f"{module}.q_norm.weight", HEAD_DIM)
        self.vector(f"{module}.k_norm.weight", HEAD_DIM)

    def linear_attention(self, module: str) -> None:
        keys = LINEAR_KEY_HEADS * LINEAR_HEAD_DIM
        values = LINEAR_VALUE_HEADS * LINEAR_HEAD_DIM
        self.linear(f"{module}.in_proj_qkv", 2 * keys + values, HIDDEN)
        self.linear(f"{module}.in_proj_z", values, HIDDEN)
        self.linear(f"{module}.in_proj_b", LINEAR_VALUE_HEADS, HIDDEN)
        self.linear(f"{module}.in_proj_a", LINEAR_VALUE_HEADS, HIDDEN)
        self.linear(f"{module}.out_proj", HIDDEN, values)
        self.random(f"{module}.conv1d.weight", 2 * keys + values, 1, KERNEL, std=0.5)
        self.put(f"{module}.A_log", torch.zeros(LINEAR_VALUE_HEADS))
        self.vector(f"{module}.dt_bias", LINEAR_VALUE_HEADS, 1.0)
        self.vector(f"{module}.norm.weight", LINEAR_HEAD_DIM, 1.0)

    def layer(self, module: str, kind: str) -> None:
        self.vector(f"{module}.input_layernorm.weight", HIDDEN)
        self.vector(f"{module}.post_attention_layernorm.weight", HIDDEN)
        if kind == "full_attention":
            self.attention(f"{module}.self_attn")
        else:
            self.linear_attention(f"{module}.linear_attn")
        self.feed_forward(module)

    def drafter(self) -> None:
        self.linear("mtp.fc", HIDDEN, 2 * HIDDEN)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            self.vector(f"mtp.{name}.weight", HIDDEN)
        self.layer("mtp.layers.0", "full_attention")

    def vision(self) -> None:
        root = "model.visual."
        self.random(f"{root}patch_embed.proj.weight", VISION_HIDDEN, 3, 2, 16, 16)
        self.vector(f"{root}patch_embed.proj.bias", VISION_HIDDEN)
        self.random(f"{root}pos_embed.weight", 16, VISION_HIDDEN)
        for block in range(VISION_DEPTH):
            module = f"{root}blocks.{block}"
            for norm in ("norm1", "norm2"):
                self.vector(f"{module}.{norm}.weight", VISION_HIDDEN, 1.0)
                self.vector(f"{module}.{norm}.bias", VISION_HIDDEN)
            self.biased(f"{module}.attn.qkv", 3 * VISION_HIDDEN, VISION_HIDDEN)
            self.biased(f"{module}.attn.proj", VISION_HIDDEN, VISION_HIDDEN)
            self.biased(f"{module}.mlp.linear_fc1", VISION_INTERMEDIATE, VISION_HIDDEN)
            self.biased(f"{module}.mlp.linear_fc2", VISION_HIDDEN, VISION_INTERMEDIATE)
        self.vector(f"{root}merger.norm.weight", VISION_HIDDEN, 1.0)
        self.vector(f"{root}merger.norm.bias", VISION_HIDDEN)
        self.biased(f"{root}merger.linear_fc1", 4 * VISION_HIDDEN, 4 * VISION_HIDDEN)
        self.biased(f"{root}merger.linear_fc2", HIDDEN, 4 * VISION_HIDDEN)

    def biased(self, module: str, rows: int, columns: int) -> None:
        self.linear(module, rows, columns)
        self.vector(f"{module}.bias", rows)

    def model(self) -> None:
        embedding = self.exact(VOCABULARY, HIDDEN)
        self.put(f"{TEXT_ROOT}embed_tokens.weight", (embedding.values * 16).to(torch.bfloat16))
        self.vector(f"{TEXT_ROOT}norm.weight", HIDDEN)
        self.linear("lm_head", VOCABULARY, HIDDEN)
        for index, kind in enumerate(self.recipe.layers):
            self.layer(f"{TEXT_ROOT}layers.{index}", kind)
        self.vision()
        if self.recipe.mtp:
            self.drafter()


def _text_config(recipe: Recipe) -> dict[str, Any]:
    moe = {
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT_INTERMEDIATE,
        "shared_expert_intermediate_size": EXPERT_INTERMEDIATE,
        "norm_topk_prob": True,
    }
    return {
        "model_type": "qwen3_5_moe_text" if recipe.moe else "qwen3_5_text",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": len(recipe.layers),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": KERNEL,
        "linear_key_head_dim": LINEAR_HEAD_DIM,
        "linear_value_head_dim": LINEAR_HEAD_DIM,
        "linear_num_key_heads": LINEAR_KEY_HEADS,
        "linear_num_value_heads": LINEAR_VALUE_HEADS,
        "layer_types": list(recipe.layers),
        "full_attention_interval": 2,
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
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
        **(moe if recipe.moe else {}),
    }


def quantization_config(recipe: Recipe) -> dict[str, Any] | None:
    """The recipe's quantization config as `config.json` holds it."""
    float4 = {"num_bits": 4, "type": "float", "group_size": BLOCK}
    excluded = list(recipe.excluded)
    match recipe.form:
        case None:
            return None
        case "modelopt":
            made: dict[str, Any] = {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "group_size": BLOCK,
                "ignore": excluded,
                "producer": {"name": "modelopt", "version": "0.47.0"},
            }
        case "compressed-tensors":
            args = {**float4, "strategy": "tensor_group", "symmetric": True, "dynamic": False}
            group = {
                "targets": ["Linear"],
                "weights": args,
                "input_activations": {**args, "dynamic": "local"},
                "format": "nvfp4-pack-quantized",
            }
            made = {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "quantization_status": "compressed",
                "config_groups": {"group_0": group},
                "ignore": excluded,
            }
        case "fp8":
            made = {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "ignored_layers": excluded,
            }
    return {**made, **recipe.config}


def write(folder: Path, recipe: Recipe) -> Writer:
    """Write the checkpoint; give what it holds."""
    writer = Writer(recipe)
    writer.model()
    kind = "qwen3_5_moe" if recipe.moe else "qwen3_5"
    config: dict[str, Any] = {
        "architectures": [f"Qwen3_5{'Moe' if recipe.moe else ''}ForConditionalGeneration"],
        "model_type": kind,
        "text_config": _text_config(recipe),
        "image_token_id": VOCABULARY - 4,
        "video_token_id": VOCABULARY - 3,
        "vision_start_token_id": VOCABULARY - 6,
        "vision_end_token_id": VOCABULARY - 5,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "vision_config": {
            "model_type": kind,
            "depth": VISION_DEPTH,
            "hidden_size": VISION_HIDDEN,
            "intermediate_size": VISION_INTERMEDIATE,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": HIDDEN,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [],
            "hidden_act": "gelu_pytorch_tanh",
            "initializer_range": 0.02,
        },
    }
    quantization = quantization_config(recipe)
    if quantization is not None:
        config["quantization_config"] = quantization
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    save_file(writer.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return writer
