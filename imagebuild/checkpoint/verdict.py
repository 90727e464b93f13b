"""What becomes of each module: how vLLM builds it, and whether the checkpoint then loads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from imagebuild.checkpoint import patched, stock
from imagebuild.checkpoint.modules import Family, Module, Stored
from imagebuild.checkpoint.stock import PartlyExcludedError

if TYPE_CHECKING:
    from imagebuild.checkpoint.quantization import Quantization

RESOLVER, MTP, LM_HEAD = (
    "exclusion-resolver",
    "mtp-quant-by-tensors",
    "lm-head-tensors-over-exclude",
)


_ROW_PARALLEL = frozenset({"o_proj", "out_proj", "down_proj", "proj", "linear_fc2"})


class Built(Enum):
    """How vLLM builds a module."""

    PLAIN = "BF16"
    QUANTIZED = "quantized"
    REFUSED = "refused"


class Verdict(Enum):
    """What a user sees."""

    LOADS = "loads"
    REFUSED = "clear error"
    RANDOM = "random drafter"
    CRASH = "crash"
    GARBAGE = "garbage"


@dataclass(frozen=True)
class Row:
    """One module's line of the table."""

    module: Module
    says: str
    stock: Built
    patched: Built
    stock_verdict: Verdict
    patched_verdict: Verdict


class Reader:
    """Answers for one checkpoint and one line with its patches.

    Attributes:
        line: the release line.
        patches: names of the line's patches.
    """

    def __init__(
        self,
        family: Family,
        quantization: Quantization | None,
        line: str,
        patches: frozenset[str],
    ) -> None:
        self.line = line
        self.family = family
        self.quantization = quantization
        self.patches = patches
        entries = quantization.entries if quantization else ()
        if quantization and quantization.form == "compressed-tensors":
            self.renamed = stock.compressed_tensors_entries(entries, family)
        elif quantization and quantization.form == "fp8":
            self.renamed = [family.in_vllm(entry) for entry in entries]
        else:
            self.renamed = stock.modelopt_entries(entries, family)

    def row(self, module: Module) -> Row:
        """Return the module's line."""
        as_released = self._stock(module)
        as_patched = self._patched(module, as_released)
        return Row(
            module,
            self._says(module),
            as_released,
            as_patched,
            self._verdict(module, as_released),
            self._verdict(module, as_patched),
        )

    def _asked(self, module: Module) -> bool:
        """Whether the module's weight is quantized unless the list excludes it."""
        quantization = self.quantization
        if quantization is None or not module.may_be_quantized:
            return False
        is_head = module.name.rpartition(".")[2] == "lm_head"
        match quantization.form:
            case "fp8":
                return not is_head
            case "compressed-tensors":
                targets = [t for t in quantization.targets if not (is_head and t == "Linear")]
                return stock.is_target(module.name, targets, self.family.fused)
            case "modelopt-mixed":
                return self._is_listed(module)
            case "modelopt":
                return True

    def _is_listed(self, module: Module) -> bool:
        listed = self.quantization.listed if self.quantization else frozenset()
        names = {module.name, *module.shards, *self.family.in_checkpoint(module.name)}
        return any(n in listed or any(x.startswith(f"{n}.") for x in listed) for n in names)

    def _excluded_by_stock(self, module: Module) -> bool:
        quantization, fused = self.quantization, self._fused(module)
        if quantization is None:
            return False
        match quantization.form:
            case "compressed-tensors":
                name = module.name
                if name.endswith(".experts"):
                    leaves = ("gate_proj", "up_proj", "down_proj")
                    answers = [
                        stock.compressed_tensors_ignores(
                            f"{name}.0.{leaf}", self.renamed, fused, self.line
                        )
                        for leaf in leaves
                    ]
                    if len(set(answers)) > 1:
                        raise PartlyExcludedError
                    return answers[0]
                return stock.compressed_tensors_ignores(name, self.renamed, fused, self.line)
            case "fp8":
                return stock.skipped(module.name, self.renamed, fused)
            case _:
                return stock.modelopt_excludes(module.name, self.renamed, fused)

    def _fused(self, module: Module) -> dict[str, tuple[str, ...]]:
        # The drafters' classes map attention and MLP only.
        fused = dict(self.family.fused)
        if module.of_drafter:
            fused = {name: fused[name] for name in ("qkv_proj", "gate_up_proj")}
        return fused

    def _stock(self, module: Module) -> Built:
        if not self._asked(module):
            return Built.PLAIN
        if module.name == "mtp.fc" and self.quantization and self.quantization.is_nvfp4:
            return Built.PLAIN
        try:
            excluded = self._excluded_by_stock(module)
        except PartlyExcludedError:
            return Built.REFUSED
        return Built.PLAIN if excluded else Built.QUANTIZED

    def _patched(self, module: Module, as_released: Built) -> Built:
        by_tensors = {Stored.PLAIN: Built.PLAIN, Stored.PACKED: Built.QUANTIZED}.get(module.stored)
        if self.quantization is None or not module.may_be_quantized:
            return as_released
        is_head = module.name.rpartition(".")[2] == "lm_head"
        decider = MTP if module.of_drafter else LM_HEAD if is_head else None
        if decider in self.patches and by_tensors is not None:
            is_served = by_tensors is Built.PLAIN or self._asked(module)
            return by_tensors if is_served else as_released
        if RESOLVER not in self.patches or self.quantization.form == "fp8":
            return as_released
        if not self._asked(module):
            return Built.PLAIN
        excluded = self._excluded_by_resolver(module)
        if excluded is None:
            return by_tensors or Built.REFUSED
        return Built.PLAIN if excluded else Built.QUANTIZED

    def _excluded_by_resolver(self, module: Module) -> bool | None:
        if self.quantization is None:
            return False
        form, entries = self.quantization.form, self.quantization.entries
        if form == "compressed-tensors" and module.name.endswith(".experts"):
            leaves = ("gate_proj", "up_proj", "down_proj")
            names = [f"{module.name}.0.{leaf}" for leaf in leaves]
            answers = {patched.excludes(n, entries, self.family, form) for n in names}
            return answers.pop() if len(answers) == 1 else None
        return patched.excludes(module.name, entries, self.family, form)

    def _says(self, module: Module) -> str:
        if self.quantization is None or not module.may_be_quantized:
            return "-"
        if not self._asked(module):
            return "not a target"
        excluded = self._excluded_by_resolver(module)
        if excluded is None:
            return "excluded in part"
        return "excluded" if excluded else "quantized"

    def _unpacked_into_packed(self, module: Module) -> Verdict:
        """What a BF16 weight does to quantized parameters, whose scales it leaves as they are."""
        algorithm = self.quantization.algorithm if self.quantization else ""
        if "FP8" in algorithm:
            return Verdict.GARBAGE  # the parameter has the same shape
        # A row-parallel layer takes as much of the weight's columns as its parameter has.
        is_row_parallel = module.name.rpartition(".")[2] in _ROW_PARALLEL
        is_packed_in_place = self.quantization is not None and "NVFP4" in algorithm
        return Verdict.GARBAGE if is_row_parallel and is_packed_in_place else Verdict.CRASH

    def _verdict(self, module: Module, built: Built) -> Verdict:
        if not module.name.startswith(self.family.roots):
            return Verdict.CRASH
        match built, module.stored:
            case Built.REFUSED, _:
                return Verdict.REFUSED
            case _, Stored.MIXED:
                return Verdict.CRASH
            case (Built.PLAIN, Stored.PLAIN) | (Built.QUANTIZED, Stored.PACKED):
                return Verdict.LOADS
            case Built.QUANTIZED, Stored.PLAIN:
                return self._unpacked_into_packed(module)
            case _:
                return Verdict.CRASH


def drafter_verdict(missing: list[str], patches: frozenset[str], *, patched_line: bool) -> Verdict:
    """What a drafter becomes that lacks tensors; loading tracks none when a model is quantized."""
    if not missing:
        return Verdict.LOADS
    return Verdict.REFUSED if patched_line and MTP in patches else Verdict.RANDOM
