"""The quantized modules and exclude lists that the tests of this area start from."""

from __future__ import annotations

from tests.patched.checkpoints import Recipe

# What NVFP4 exports of Qwen3.5 keep in BF16 besides the linear-attention inputs.
KEPT = ("lm_head", "model.visual*", "mtp*")
GDN_WILDCARDS = (
    "*linear_attn.in_proj_a*",
    "*linear_attn.in_proj_b*",
    "*in_proj_qkv*",
    "*in_proj_z*",
)
KEPT_CT = ("lm_head", r"re:^model\.visual.*", "re:^mtp.*")
GDN_REGEX = "re:model.language_model.layers.*.linear_attn.in_proj_.*"
PACKED_LEAVES = frozenset(
    {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "out_proj"}
)


def packed(module: str) -> bool:
    """The target's MLPs, attention and output projections; no experts, nothing else."""
    leaf = module.rpartition(".")[2]
    return module.startswith("model.language_model.") and leaf in PACKED_LEAVES


def packed_except(*parts: str) -> object:
    """`packed`, without the modules whose names contain one of `parts`."""
    return lambda module: packed(module) and not any(part in module for part in parts)


def modelopt(*excluded: str, **changes: object) -> Recipe:
    """A ModelOpt NVFP4 checkpoint with this exclude list."""
    return Recipe(**{"packed": packed, "excluded": excluded, "form": "modelopt", **changes})  # type: ignore[arg-type]


def compressed_tensors(*ignored: str, **changes: object) -> Recipe:
    """An llm-compressor NVFP4 checkpoint with this ignore list."""
    fields = {"packed": packed, "excluded": ignored, "form": "compressed-tensors", **changes}
    return Recipe(**fields)  # type: ignore[arg-type]
