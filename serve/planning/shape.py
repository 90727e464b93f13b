"""A hybrid's geometry: what its caches and states are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from imagebuild.schema import Value
from serve.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=1)]


class Shape(Value, frozen=True, kw_only=True):
    """The geometry of a Qwen3.5 hybrid, by the names of its config.json where that has them.

    Attributes:
        hidden_size: the residual stream's width.
        vocab_size: rows of the embedding.
        full_attention: layers with full attention.
        linear_attention: layers with Gated DeltaNet.
        mtp_layers: layers of the drafter, each with full attention.
        attention_heads, key_value_heads, head_dim: of a full attention layer.
        linear_key_heads, linear_value_heads: of a Gated DeltaNet layer.
        linear_key_dim, linear_value_dim: of one of its heads.
        conv_kernel: taps of its convolution.
        mlp_width: the intermediate size of a dense layer's MLP, or of the shared expert.
        experts: routed experts of a layer; 0 for a dense model.
        active_experts: those that one token uses.
        expert_width: a routed expert's intermediate size.
    """

    hidden_size: Count
    vocab_size: Count
    full_attention: Count
    linear_attention: Count
    mtp_layers: Annotated[int, msgspec.Meta(ge=0)]
    attention_heads: Count
    key_value_heads: Count
    head_dim: Count
    linear_key_heads: Count
    linear_value_heads: Count
    linear_key_dim: Count
    linear_value_dim: Count
    conv_kernel: Count
    mlp_width: Count
    experts: Annotated[int, msgspec.Meta(ge=0)] = 0
    active_experts: Annotated[int, msgspec.Meta(ge=0)] = 0
    expert_width: Annotated[int, msgspec.Meta(ge=0)] = 0


def _asked(text: dict[str, Any], key: str, kind: Callable[[Any], T], path: object) -> T:
    try:
        return kind(text[key])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            "the model's config does not describe a hybrid that this planner knows",
            file=path,
            expected=f"{key}, as Qwen3.5 models have it",
            found="nothing" if isinstance(error, KeyError) else repr(text[key]),
            next_command="python -m serve plan with a Qwen3.5, 3.6 or 3.8 checkpoint",
        ) from error


def of_config(config: dict[str, Any], path: object) -> Shape:
    """Return the geometry that a config.json tells.

    Args:
        config: the whole document; its `text_config` counts if it has one.
        path: the document's name, for errors.

    Raises:
        ModelError: if it is not the config of such a hybrid.
    """
    nested = config.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else config
    kinds = _asked(text, "layer_types", list, path)
    number = {
        name: _asked(text, key, int, path)
        for name, key in {
            "hidden_size": "hidden_size",
            "vocab_size": "vocab_size",
            "attention_heads": "num_attention_heads",
            "key_value_heads": "num_key_value_heads",
            "head_dim": "head_dim",
            "linear_key_heads": "linear_num_key_heads",
            "linear_value_heads": "linear_num_value_heads",
            "linear_key_dim": "linear_key_head_dim",
            "linear_value_dim": "linear_value_head_dim",
            "conv_kernel": "linear_conv_kernel_dim",
        }.items()
    }
    experts = int(text.get("num_experts") or 0)
    mlp = "shared_expert_intermediate_size" if experts else "intermediate_size"
    return Shape(
        full_attention=kinds.count("full_attention"),
        linear_attention=kinds.count("linear_attention"),
        mtp_layers=int(text.get("mtp_num_hidden_layers") or 0),
        mlp_width=_asked(text, mlp, int, path),
        experts=experts,
        active_experts=_asked(text, "num_experts_per_tok", int, path) if experts else 0,
        expert_width=_asked(text, "moe_intermediate_size", int, path) if experts else 0,
        **number,
    )
