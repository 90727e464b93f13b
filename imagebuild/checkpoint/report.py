"""The whole answer for one checkpoint: its modules, its drafter, and a table of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imagebuild.checkpoint import modules, quantization, verdict
from imagebuild.checkpoint.verdict import Reader, Row, Verdict
from imagebuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagebuild.checkpoint.quantization import Quantization
    from imagebuild.checkpoint.source import Checkpoint

# vLLM 0.16.0 has no Qwen3.5, and other rules.
LINES = ("v0.33.0", "v0.27.1")
# Of several verdicts, the one that a user meets: loading ends at the first error.
_ORDER = (Verdict.LOADS, Verdict.RANDOM, Verdict.GARBAGE, Verdict.REFUSED, Verdict.CRASH)
_NORMS = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
_WEIGHTS = ("weight", "weight_packed", "qweight")
_SHOWN = 12


@dataclass(frozen=True)
class Report:
    """What vLLM makes of one checkpoint, alone and with its drafter.

    Attributes:
        checkpoint: the folder or repository.
        line: the release line.
        method: the quantization method, in words.
        rows: one for each module.
        missing: the drafter's tensors that the checkpoint does not hold.
        has_drafter: whether the config speaks of one.
    """

    checkpoint: str
    line: str
    method: str
    rows: tuple[Row, ...]
    missing: tuple[str, ...]
    has_drafter: bool
    stock: Verdict
    patched: Verdict
    stock_drafter: Verdict
    patched_drafter: Verdict


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=_ORDER.index, default=Verdict.LOADS)


def _drafter_layers(checkpoint: Checkpoint) -> tuple[int, dict[str, Any]]:
    text = checkpoint.config.get("text_config")
    config = text if isinstance(text, dict) else checkpoint.config
    count = config.get("mtp_num_hidden_layers", config.get("num_nextn_predict_layers", 0))
    return int(count or 0), config


def missing_of_drafter(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the keys that vLLM's drafter needs and the checkpoint does not hold."""
    count, config = _drafter_layers(checkpoint)
    experts = int(config.get("num_experts") or 0)
    wanted = ["mtp.fc", *(f"mtp.{norm}" for norm in _NORMS)] if count else []
    for index in range(count):
        layer = f"mtp.layers.{index}"
        wanted += [f"{layer}.{norm}_layernorm" for norm in ("input", "post_attention")]
        wanted += [f"{layer}.self_attn.{name}" for name in _ATTENTION]
        mlp = f"{layer}.mlp.shared_expert" if experts else f"{layer}.mlp"
        wanted += [f"{mlp}.{name}_proj" for name in ("gate", "up", "down")]
        if experts:
            wanted += [f"{layer}.mlp.gate", f"{layer}.mlp.shared_expert_gate"]
            wanted += _expert_modules(checkpoint, f"{layer}.mlp.experts", experts)
    return tuple(
        f"{module}.weight"
        for module in wanted
        if not any(f"{module}.{leaf}" in checkpoint.tensors for leaf in _WEIGHTS)
    )


def _expert_modules(checkpoint: Checkpoint, module: str, experts: int) -> list[str]:
    wanted = []
    for name in ("gate_proj", "up_proj", "down_proj"):
        stack = f"{module}.{name if name == 'down_proj' else 'gate_up_proj'}"
        if not any(key == stack or key.startswith(f"{stack}.") for key in checkpoint.tensors):
            wanted += [f"{module}.{expert}.{name}" for expert in range(experts)]
    return wanted


def make(checkpoint: Checkpoint, line: str, patches: frozenset[str]) -> Report:
    """Return the report on a checkpoint for a line with these patches.

    Raises:
        UsageError: if the line's rules, the model or the quantization are not known here.
    """
    if line not in LINES:
        raise UsageError(
            f"{line} reads checkpoints by rules that this command does not know",
            file="--line",
            expected=f"one of {', '.join(LINES)}",
            found=line,
            next_command=f"python build.py checkpoint {checkpoint.name} --line {LINES[0]}",
        )
    family, quant = modules.family_of(checkpoint, line), quantization.read(checkpoint)
    reader = Reader(family, quant, line, patches)
    rows = tuple(reader.row(module) for module in modules.modules_of(checkpoint, family))
    missing = missing_of_drafter(checkpoint)
    mine = [row for row in rows if not row.module.of_drafter]
    drafters = [row for row in rows if row.module.of_drafter]
    # Without quantization every weight is tracked, and a missing one is vLLM's own error.
    lacks = [verdict.drafter_verdict(list(missing), patches, patched_line=p) for p in (False, True)]
    if quant is None and missing:
        lacks = [Verdict.REFUSED, Verdict.REFUSED]
    alone = [
        _worst(row.stock_verdict for row in mine),
        _worst(row.patched_verdict for row in mine),
    ]
    return Report(
        checkpoint=checkpoint.name,
        line=line,
        method=_method(quant),
        rows=rows,
        missing=missing,
        has_drafter=_drafter_layers(checkpoint)[0] > 0,
        stock=alone[0],
        patched=alone[1],
        stock_drafter=_worst([alone[0], lacks[0], *(row.stock_verdict for row in drafters)]),
        patched_drafter=_worst([alone[1], lacks[1], *(row.patched_verdict for row in drafters)]),
    )


def _method(quant: Quantization | None) -> str:
    return "not quantized" if quant is None else f"{quant.form}, {quant.algorithm}"


def _ranges(numbers: Sequence[int]) -> str:
    parts, start, previous = [], numbers[0], numbers[0]
    for number in [*numbers[1:], -1]:
        if number != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = number
        previous = number
    return ",".join(parts)


def _groups(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Rows that differ in their layer's number alone, as one."""
    groups: dict[tuple[str, ...], list[tuple[int, Row]]] = {}
    for row in rows:
        parts = row.module.name.split(".")
        place = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        number = int(parts[place]) if place is not None else 0
        if place is not None:
            parts[place] = "{}"
        kinds = (row.module.stored, row.stock, row.patched, row.stock_verdict, row.patched_verdict)
        key = (".".join(parts), row.says, *(kind.name for kind in kinds))
        groups.setdefault(key, []).append((number, row))
    named = []
    for key, members in groups.items():
        numbers = _ranges(sorted(number for number, _ in members))
        named.append((key[0].replace("{}", f"[{numbers}]"), members[0][1]))
    return named


def table(report: Report) -> str:
    """Return the report for people."""
    head = ("module", "config says", "tensors are", "stock builds", "patched builds", "verdict")
    lines: list[tuple[str, ...]] = [head]
    for name, row in _groups(report.rows):
        verdicts = [row.stock_verdict.value, row.patched_verdict.value]
        shown = verdicts[0] if verdicts[0] == verdicts[1] else " -> ".join(verdicts)
        built = (row.stock.value, row.patched.value)
        lines.append((name, row.says, row.module.stored.value, *built, shown))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = ["  ".join(map(str.ljust, line, widths)) for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    facts = [f"{report.checkpoint}  ({report.method})  read as vLLM {report.line}", ""]
    end = ["", f"stock {report.line}: {report.stock.value}; patched: {report.patched.value}"]
    if report.has_drafter:
        both = f"stock: {report.stock_drafter.value}; patched: {report.patched_drafter.value}"
        end.append(f"with the MTP drafter: {both}")
    if report.missing:
        more = len(report.missing) - _SHOWN
        names = ", ".join(report.missing[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        end.append(f"the drafter's tensors that are missing: {names}")
    return "\n".join(line.rstrip() for line in [*facts, *text, *end])


def facts(report: Report) -> dict[str, Any]:
    """Return the report for programs."""
    return {
        "checkpoint": report.checkpoint,
        "line": report.line,
        "method": report.method,
        "stock": report.stock.value,
        "patched": report.patched.value,
        "stock_drafter": report.stock_drafter.value if report.has_drafter else None,
        "patched_drafter": report.patched_drafter.value if report.has_drafter else None,
        "missing": list(report.missing),
        "modules": [
            {
                "module": row.module.name,
                "checkpoint": list(row.module.shards),
                "config": row.says,
                "tensors": row.module.stored.value,
                "stock": {"builds": row.stock.value, "verdict": row.stock_verdict.value},
                "patched": {"builds": row.patched.value, "verdict": row.patched_verdict.value},
            }
            for row in report.rows
        ],
    }
