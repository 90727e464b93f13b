"""Make a tiny Qwen3.5 with NVIDIA's ModelOpt or with llm-compressor, not with our own writer.

usage: python -m tests.patched.make_with_tools modelopt|llm-compressor BF16_FOLDER OUT

BF16_FOLDER is what tests.patched.checkpoints.write makes of Recipe(). The tools' model classes have
no MTP. llm-compressor 0.14 carries its tensors over by itself; for ModelOpt they are added as they
are, in BF16, and no list names them: published exports have been made in this way. Needs
nvidia-modelopt 0.47 or llmcompressor 0.14 in the environment.
"""
# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-call,no-any-unimported"

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

KEPT = ["lm_head", "re:.*visual.*", "re:.*linear_attn.in_proj_.*", "re:.*conv1d.*"]


def _with_modelopt(model: Any, out: Path) -> None:
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    def calibrate(inner: Any) -> None:
        for start in range(4):
            tokens = (torch.arange(32) * 7 + start * 31) % 480 + 10
            inner(input_ids=tokens[None])

    mtq.quantize(model, mtq.NVFP4_DEFAULT_CFG, calibrate)
    with torch.no_grad():
        export_hf_checkpoint(model, export_dir=str(out))


def _with_llm_compressor(model: Any, out: Path) -> None:
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier

    tokens = [(torch.arange(32) * 7 + start * 31) % 480 + 10 for start in range(4)]
    samples = DataLoader([{"input_ids": t, "attention_mask": torch.ones_like(t)} for t in tokens])
    recipe = QuantizationModifier(targets="Linear", scheme="NVFP4", ignore=KEPT)
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a")))
    oneshot(model=model, recipe=recipe, dataset=samples, processor=words, pipeline="basic")
    model.save_pretrained(out, save_compressed=True)


def main(arguments: list[str]) -> int:
    """Run the command line."""
    tool, source, out = arguments[0], Path(arguments[1]), Path(arguments[2])
    model = AutoModelForImageTextToText.from_pretrained(source, dtype=torch.bfloat16)
    {"modelopt": _with_modelopt, "llm-compressor": _with_llm_compressor}[tool](model, out)
    files = list(out.glob("*.safetensors"))
    if len(files) == 1:
        whole = load_file(source / "model.safetensors")
        drafter = {name: tensor for name, tensor in whole.items() if name.startswith("mtp.")}
        save_file({**load_file(files[0]), **drafter}, files[0], metadata={"format": "pt"})
    made = json.loads((out / "config.json").read_text())
    original = json.loads((source / "config.json").read_text())
    quantization = made.get("quantization_config") or made["text_config"].get("quantization_config")
    merged = {**original, "quantization_config": quantization}
    (out / "config.json").write_text(json.dumps(merged, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
