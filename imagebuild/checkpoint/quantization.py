"""A checkpoint's quantization config, as vLLM reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from imagebuild.errors import UsageError

if TYPE_CHECKING:
    from imagebuild.checkpoint.source import Checkpoint

Form = Literal["modelopt", "modelopt-mixed", "compressed-tensors", "fp8"]
_MODELOPT_PLAIN = ("NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8")


@dataclass(frozen=True)
class Quantization:
    """What the config says.

    Attributes:
        form: which of vLLM's configs reads it.
        algorithm: ModelOpt's quant_algo, or compressed-tensors' format, or FP8.
        entries: the exclude list, as written.
        targets: compressed-tensors' targets, of all groups.
        listed: the module names that MIXED_PRECISION quantizes.
    """

    form: Form
    algorithm: str
    entries: tuple[str, ...]
    targets: tuple[str, ...] = ()
    listed: frozenset[str] = field(default_factory=frozenset)

    @property
    def is_nvfp4(self) -> bool:
        """Whether vLLM calls it modelopt_fp4."""
        return self.form == "modelopt" and "NVFP4" in self.algorithm


def _unsupported(checkpoint: Checkpoint, what: str, found: object) -> UsageError:
    return UsageError(
        f"{what} is not one that this command knows",
        file=f"{checkpoint.name}: quantization_config",
        expected="modelopt, compressed-tensors or fp8",
        found=found,
        next_command="start vLLM with the checkpoint; this command cannot tell",
    )


def _strings(value: object, checkpoint: Checkpoint, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise UsageError(
            f"{key} cannot be read",
            file=f"{checkpoint.name}: quantization_config",
            expected="a list of texts",
            found=type(value).__name__,
            next_command="mend the config, or export the checkpoint again",
        )
    return tuple(value)


def _modelopt(checkpoint: Checkpoint, config: dict[str, Any]) -> Quantization:
    inner = config.get("quantization")
    if isinstance(inner, dict):
        entries, key = inner.get("exclude_modules", []), "exclude_modules"
    else:
        inner = config
        key = "ignore" if "ignore" in config else "exclude_modules"
        entries = config.get(key, [])
    algorithm = str(inner.get("quant_algo", "")).upper()
    excluded = _strings(entries, checkpoint, key)
    if algorithm == "MIXED_PRECISION":
        listed = inner.get("quantized_layers")
        if not isinstance(listed, dict) and checkpoint.quant_config is not None:
            listed = checkpoint.quant_config.get("quantization", {}).get("quantized_layers")
        return Quantization("modelopt-mixed", algorithm, excluded, listed=frozenset(listed or {}))
    if algorithm not in _MODELOPT_PLAIN:
        raise _unsupported(checkpoint, "the quant_algo", algorithm or "none")
    return Quantization("modelopt", algorithm, excluded)


def _compressed_tensors(checkpoint: Checkpoint, config: dict[str, Any]) -> Quantization:
    groups = config.get("config_groups")
    targets: list[str] = []
    for group in groups.values() if isinstance(groups, dict) else ():
        named = group.get("targets", [])
        # vLLM reads a group of attention modules as one of the KV cache.
        if not (len(named) == 1 and str(named[0]).endswith("Attention")):
            targets += named
    entries = _strings(config.get("ignore", []), checkpoint, "ignore")
    algorithm = str(config.get("format", "unknown"))
    return Quantization("compressed-tensors", algorithm, entries, tuple(targets))


def read(checkpoint: Checkpoint) -> Quantization | None:
    """Return what the checkpoint's config says, or None for one without quantization.

    Raises:
        UsageError: if the config is of a kind that this command does not know.
    """
    text = checkpoint.config.get("text_config")
    config = checkpoint.config.get("quantization_config")
    if config is None and isinstance(text, dict):
        config = text.get("quantization_config")
    if config is None:
        config = checkpoint.config.get("compression_config")
    if config is None and checkpoint.quant_config is not None:
        config = {"quant_method": "modelopt", **checkpoint.quant_config}
    if config is None:
        return None
    if not isinstance(config, dict):
        raise _unsupported(checkpoint, "the quantization config", type(config).__name__)
    match str(config.get("quant_method", "")).lower():
        case method if method.startswith("modelopt"):
            return _modelopt(checkpoint, config)
        case "compressed-tensors":
            return _compressed_tensors(checkpoint, config)
        case "fp8":
            key = "ignored_layers" if config.get("ignored_layers") else "modules_to_not_convert"
            entries = _strings(config.get(key) or [], checkpoint, key)
            return Quantization("fp8", "FP8", entries)
        case method:
            raise _unsupported(checkpoint, "the quant_method", method or "none")
