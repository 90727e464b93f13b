"""NVFP4 layers choose their GEMM by the number of rows, inside one opaque op.

The GEMMs are stubs that count their calls; everything else is vLLM's.
"""

# ruff: noqa: ARG003, ARG005  (stand-ins for vLLM's classes)
from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from vllm import logger as vllm_logger
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.quantization.compressed_tensors.transform.schemes import (
    linear_qutlass_nvfp4 as qutlass,
)

from tests.patched import logs, nvfp4

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
N, K, CUTOFF = 48, 32, 12
AROUND = [0, 1, CUTOFF - 1, CUTOFF, CUTOFF + 1, 64, 65, 300]
VERSIONS = {"vllm": "0.33.0", "driver": "580.1"}


def dispatch() -> Any:
    return nvfp4.module("m_dispatch")


def table_module() -> Any:
    return nvfp4.module("m_dispatch_table")


class Counts:
    """The rows that each kernel was called with."""

    def __init__(self) -> None:
        self.small: list[int] = []
        self.large: list[int] = []


def product(x: torch.Tensor, n: int) -> torch.Tensor:
    return x.sum(-1, keepdim=True).expand(*x.shape[:-1], n).contiguous()


def base_class(counts: Counts) -> type:
    """FlashInfer's CUTLASS kernel by its name and layout, with its GEMM replaced."""

    class FlashInferCutlassNvFp4LinearKernel(linear.NvFp4LinearKernel):
        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, None]:
            return True, None

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, None]:
            return True, None

        def input_quant_key(self) -> str:
            return "a key"

        def process_weights_after_loading(self, layer: Any) -> None:
            layer.processed = True

        def apply_weights(
            self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            assert layer.alpha is not None
            assert layer.input_global_scale_inv is not None
            assert layer.input_size_per_partition == x.shape[-1]
            counts.large.append(x.shape[0])
            out = product(x, layer.output_size_per_partition)
            return out if bias is None else out + bias

    return FlashInferCutlassNvFp4LinearKernel


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, counts: Counts) -> Iterator[None]:
    """A card of SM 12.0, stub GEMMs, and no choice left over from another test."""
    monkeypatch.delenv("VLLM_NVFP4_M_DISPATCH", raising=False)
    if nvfp4.importlib.util.find_spec(f"{nvfp4.PACKAGE}.m_dispatch") is None:
        yield
        return
    module = dispatch()

    def small(x: torch.Tensor, *args: Any) -> torch.Tensor:
        counts.small.append(x.shape[0])
        out = product(x, args[-1])
        return out if args[-2] is None else out + args[-2]

    monkeypatch.setattr(module, "WEIGHT_ONLY", {"triton": small, "flashinfer_native": small})
    monkeypatch.setattr(module, "has_flashinfer_native", lambda: False)
    monkeypatch.setattr(
        module,
        "this_machine",
        lambda: table_module().Machine("NVIDIA GeForce RTX 5090", "12.0", VERSIONS),
    )
    monkeypatch.setattr(
        type(module.current_platform),
        "is_device_capability_family",
        classmethod(lambda cls, capability, device_id=0: capability == 120),
    )
    monkeypatch.setattr(
        module.TritonNvFp4W4A16LinearKernel, "is_supported", lambda *_: (True, None)
    )
    clear()
    yield
    clear()


def clear() -> None:
    vllm_logger._print_info_once.cache_clear()
    vllm_logger._print_warning_once.cache_clear()
    dispatch().make_plan.cache_clear()
    dispatch().resolve_table.cache_clear()


def contents(**changed: Any) -> dict[str, Any]:
    rule = {"base": "FlashInferCutlassNvFp4LinearKernel", "n": N, "k": K}
    return {
        "schema": 1,
        "origin": "measured",
        "source": "a test",
        "device": {"name": "NVIDIA GeForce RTX 5090", "capabilities": ["12.0"]},
        "versions": VERSIONS,
        "rules": [rule | {"steps": [["w4a16", CUTOFF]]}],
    } | changed


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def made(**changed: Any) -> str:
        file = tmp_path / "table.json"
        file.write_text(json.dumps(contents(**changed)))
        return str(file)

    return made


def kernel(counts: Counts, mode: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    base = base_class(counts)
    monkeypatch.setattr(dispatch(), "SHARED_LAYOUT_KERNELS", (base,))
    monkeypatch.setenv("VLLM_NVFP4_M_DISPATCH", mode)
    return dispatch().dispatch_on_m(base(linear.NvFp4LinearLayerConfig()))


def layer(n: int = N, k: int = K) -> Any:
    one = torch.ones(())
    return SimpleNamespace(
        weight=torch.zeros(n, k // 2, dtype=torch.uint8),
        weight_scale=torch.zeros(128, 4, dtype=torch.float8_e4m3fn),
        weight_global_scale=one,
        input_global_scale_inv=one.clone(),
        alpha=one.clone(),
        output_size_per_partition=n,
        input_size_per_partition=k,
    )


def x_of(m: int, k: int = K) -> torch.Tensor:
    return torch.ones(m, k, dtype=torch.bfloat16)


@pytest.mark.parametrize("m", AROUND)
def test_the_rows_choose_the_kernel(
    m: int, counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(), monkeypatch)
    bias = torch.ones(N, dtype=torch.bfloat16)
    out = made.apply_weights(layer(), x_of(m), bias)
    assert out.shape == (m, N)
    assert bool((out == K + 1).all())
    small, large = ([m], []) if m <= CUTOFF else ([], [m])
    assert (counts.small, counts.large) == (small, large)


def test_batch_dimensions_count_as_rows(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(), monkeypatch)
    assert made.apply_weights(layer(), x_of(14).view(2, 7, K)).shape == (2, 7, N)
    assert counts.large == [14]


def compiled(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, CompileCounter]:
    torch._dynamo.reset()
    counter = CompileCounter()
    return torch.compile(function, backend=counter, fullgraph=True, dynamic=True), counter


def marked(m: int) -> torch.Tensor:
    x = x_of(m)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def test_one_graph_serves_every_number_of_rows(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that dynamo sees would make a second graph, or a constraint violation."""
    made = kernel(counts, write(), monkeypatch)
    target = layer()
    function, counter = compiled(lambda x: made.apply_weights(target, x))
    sizes = [m for m in AROUND if m > 1]
    for m in sizes:
        assert function(marked(m)).shape == (m, N)
    assert counter.frame_count == 1
    assert counts.small == [m for m in sizes if m <= CUTOFF]
    assert counts.large == [m for m in sizes if m > CUTOFF]


def test_a_branch_in_the_layer_is_what_the_last_test_would_catch(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel(counts, write(), monkeypatch)
    function, counter = compiled(lambda x: x + 1 if x.shape[0] <= CUTOFF else x + 2)
    for m in (CUTOFF, CUTOFF + 1):
        function(marked(m))
    assert counter.frame_count == 2


def test_the_graph_holds_one_op_and_no_branch(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(), monkeypatch)
    target, seen = layer(), []

    def backend(graph: Any, _: Any) -> Any:
        seen.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda x: made.apply_weights(target, x), backend=backend, dynamic=True)(marked(5))
    (targets,) = seen
    assert [t for t in targets if "nvfp4" in str(t)] == [torch.ops.vllm.nvfp4_m_dispatch_gemm]


def test_the_fake_agrees_with_the_op(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(), monkeypatch)
    made.apply_weights(layer(), x_of(3))
    target = layer()
    torch.library.opcheck(
        torch.ops.vllm.nvfp4_m_dispatch_gemm.default,
        (
            x_of(5), target.weight, target.weight_scale.view(torch.uint8),
            target.weight_global_scale,
            target.input_global_scale_inv, target.alpha, None, N, made.base_name, made.mode,
        ),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip
    assert counts.small == [3, *counts.small[1:]]


def test_quantised_activations_are_not_taken(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(), monkeypatch)
    assert made.base.input_quant_key() == "a key"
    assert made.input_quant_key() is None


def test_the_weights_are_the_bases_own(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second copy: the base processes them, and both GEMMs get those very buffers."""
    made = kernel(counts, write(), monkeypatch)
    target, seen = layer(), []
    made.process_weights_after_loading(target)
    assert target.processed
    attributes = [name for name, value in vars(target).items() if torch.is_tensor(value)]
    assert sorted(attributes) == sorted(
        name for name, value in vars(layer()).items() if torch.is_tensor(value)
    )

    def spy(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append((weight.data_ptr(), scale.data_ptr()))
        return product(x, rest[-1])

    monkeypatch.setitem(dispatch().WEIGHT_ONLY, "triton", spy)
    monkeypatch.setattr(
        type(made.base),
        "apply_weights",
        lambda _, held, x, bias: spy(x, held.weight, held.weight_scale, bias, N),
    )
    made.apply_weights(target, x_of(1))
    made.apply_weights(target, x_of(CUTOFF + 1))
    assert seen == [(target.weight.data_ptr(), target.weight_scale.data_ptr())] * 2


def test_a_shard_has_its_own_rule(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "FlashInferCutlassNvFp4LinearKernel"
    rules = [
        {"base": name, "n": N, "k": K, "steps": [["triton", 4]]},
        {"base": name, "n": N // 2, "k": K, "steps": [["triton", 8]]},
        {"base": name, "n": None, "k": None, "steps": [["triton", 2]]},
    ]
    made = kernel(counts, write(rules=rules), monkeypatch)
    for shape, limit in (((N, K), 4), ((N // 2, K), 8), ((N, K // 2), 2)):
        counts.small.clear()
        counts.large.clear()
        for m in (limit, limit + 1):
            made.apply_weights(layer(*shape), x_of(m, shape[1]))
        assert (counts.small, counts.large) == ([limit], [limit + 1])


def test_always_takes_the_weight_only_kernel(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, "always-w4a16", monkeypatch)
    for m in AROUND:
        made.apply_weights(layer(), x_of(m))
    assert (counts.small, counts.large) == (AROUND, [])


def test_off_leaves_the_kernel_alone(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(kernel(counts, "off", monkeypatch)).__name__ != "MDispatchNvFp4LinearKernel"
    assert type(kernel(counts, "auto", monkeypatch)).__name__ == "MDispatchNvFp4LinearKernel"


def test_auto_is_off_on_a_card_without_figures(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(dispatch().current_platform),
        "is_device_capability_family",
        classmethod(lambda cls, capability, device_id=0: False),
    )
    assert type(kernel(counts, "auto", monkeypatch)).__name__ != "MDispatchNvFp4LinearKernel"


def test_the_option_is_read_and_the_variable_overrides_it(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = VllmConfig()
    assert getattr(config.kernel_config, "nvfp4_m_dispatch", None) == "auto"
    config.kernel_config.nvfp4_m_dispatch = "always-w4a16"
    with set_current_vllm_config(config):
        assert dispatch().resolve_mode() == "always-w4a16"
        monkeypatch.setenv("VLLM_NVFP4_M_DISPATCH", "off")
        assert dispatch().resolve_mode() == "off"
    assert counts.small == []


def test_the_kernels_of_a_shape_are_logged(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(), monkeypatch)
    with logs.caught() as records:
        made.process_weights_after_loading(layer())
        made.process_weights_after_loading(layer())
    (line,) = [r.getMessage() for r in records if "NVFP4 linear [N 48, K 32]" in r.getMessage()]
    assert "M 1..12 triton, M 13 and more FlashInferCutlassNvFp4LinearKernel" in line
    assert "table.json, measured" in line


def warned(records: list[Any], words: str) -> bool:
    return any(words in r.getMessage() for r in records)


def test_a_shape_without_a_rule_stays_with_the_base_and_says_so(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(rules=[]), monkeypatch)
    with logs.caught() as records:
        made.apply_weights(layer(), x_of(1))
    assert counts.large == [1]
    assert warned(records, "no rule for FlashInferCutlassNvFp4LinearKernel")


def test_half_precision_stays_with_the_base_and_says_so(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(), monkeypatch)
    with logs.caught() as records:
        made.apply_weights(layer(), x_of(1).half())
    assert counts.large == [1]
    assert warned(records, "take BF16 activations")


def test_a_kernel_of_another_layout_stays_and_says_so(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = dispatch()
    monkeypatch.setenv("VLLM_NVFP4_M_DISPATCH", write())
    base = base_class(counts)(linear.NvFp4LinearLayerConfig())
    with logs.caught() as records:
        assert module.dispatch_on_m(base) is base
    assert warned(records, "does not use the shared layout")


def test_batch_invariance_wants_one_kernel(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with logs.caught() as records:
        made = kernel(counts, write(), monkeypatch)
    assert type(made).__name__ != "MDispatchNvFp4LinearKernel"
    assert warned(records, "VLLM_BATCH_INVARIANT")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": {"name": "NVIDIA H200", "capabilities": ["12.0"]}}, "card 'NVIDIA GeForce"),
        ({"device": {"name": "NVIDIA H200", "capabilities": ["9.0"]}}, "capability 12.0"),
        ({"versions": VERSIONS | {"driver": "570.2"}}, "driver 580.1, table is for 570.2"),
        ({"versions": VERSIONS | {"vllm": "0.32.0"}}, "vllm 0.33.0, table is for 0.32.0"),
        ({"versions": VERSIONS | {"other": "1"}}, "other none, table is for 1"),
    ],
)
def test_a_stale_table_is_refused(
    changed: dict[str, Any], words: str, counts: Counts, write: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    error = table_module().TableError
    with pytest.raises(error, match="is not for this machine") as caught:
        kernel(counts, write(**changed), monkeypatch)
    assert words in str(caught.value)
    assert "nvfp4_census" in str(caught.value)


def steps(*pairs: Any) -> dict[str, Any]:
    rule = {"base": "B", "n": None, "k": None, "steps": list(pairs)}
    return {"rules": [rule]}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"schema": 2}, "expected schema 1, found 2"),
        ({"origin": "guessed"}, "expected origin measured or public"),
        ({"extra": 1}, "unknown keys ['extra']"),
        ({"device": {"name": None, "capabilities": []}}, "names its card"),
        ({"rules": [{"base": "B", "n": 1, "k": 1}]}, "missing keys ['steps']"),
        ({"rules": [{"base": "B", "n": 1, "k": None, "steps": []}]}, "both null"),
        ({"rules": [{"base": "B", "n": -1, "k": 1, "steps": []}]}, "positive integer"),
        (steps(["triton", 65]), "the cutoff is 65"),
        (steps(["w4a16", 0]), "the cutoff is 0"),
        (steps(["marlin", 8]), "unknown kernel 'marlin'"),
        (steps(["triton", 8], ["w4a16", 8]), "cutoffs must rise"),
        (steps("triton"), "expected [kernel, largest M]"),
    ],
)
def test_a_broken_table_is_refused(
    changed: dict[str, Any], words: str, write: Callable[..., str]
) -> None:
    module = table_module()
    with pytest.raises(module.TableError) as caught:
        module.load_table(Path(write(**changed)))
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "1"}'])
def test_what_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    module = table_module()
    file = tmp_path / "table.json"
    file.write_text(text)
    with pytest.raises(module.TableError, match=r"table\.json"):
        module.load_table(file)


def test_a_missing_table_is_refused(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(table_module().TableError, match="absent"):
        kernel(counts, "absent.json", monkeypatch)


def test_a_table_reads_back_as_it_was_written(write: Callable[..., str]) -> None:
    module = table_module()
    table = module.load_table(Path(write(measurements=[{"n": 1}])))
    assert module.parse_table(module.to_json(table), table.path) == table


def at(points: dict[int, float], m: float) -> float:
    """Return the straight line between the measured points at `m`."""
    known = sorted(points)
    low = max(p for p in known if p <= m)
    high = min(p for p in known if p >= m)
    if low == high:
        return points[low]
    return points[low] + (points[high] - points[low]) * (m - low) / (high - low)


def test_the_shipped_cutoffs_follow_from_the_public_figures() -> None:
    module = table_module()
    table = module.load_table(module.DEFAULT_TABLE)
    assert (table.origin, table.device_name, table.versions) == ("public", None, {})
    assert table.capabilities == ("12.0", "12.1")
    assert "not measured by us" in table.source
    times: dict[str, dict[int, float]] = {}
    for row in table.measurements:
        times.setdefault(row["kernel"], {})[row["m"]] = row["us"]
    small = times.pop("w4a16")
    assert set(times) == {rule.base for rule in table.rules}
    for rule in table.rules:
        wins = [m for m in range(16, 81, 8) if at(small, m) <= at(times[rule.base], m)]
        assert [(s.kernel, s.max_m) for s in rule.steps] == [("w4a16", max(wins))]


def test_the_fused_path_of_qutlass_finds_the_kernel_below(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kernel(counts, write(), monkeypatch)
    known = {"flashinfer_cutlass": {type(made.base)}}
    monkeypatch.setattr(qutlass, "_LINEAR_BACKEND_KERNEL_MAP", known)
    names = [n for n in vars(qutlass) if n.startswith("QutlassNvFP4")]
    backend = vars(qutlass)[names[0]]._get_flashinfer_gemm_backend
    assert backend(made) == "cutlass"


def test_selection_puts_the_dispatch_above_the_chosen_kernel(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_class(counts)
    monkeypatch.setattr(dispatch(), "SHARED_LAYOUT_KERNELS", (base,))
    platform = linear.current_platform._enum
    monkeypatch.setitem(linear._POSSIBLE_NVFP4_KERNELS, platform, [base])
    monkeypatch.setenv("VLLM_NVFP4_M_DISPATCH", write())
    made = linear.init_nvfp4_linear_kernel()
    assert type(made).__name__ == "MDispatchNvFp4LinearKernel"
    assert type(made.base) is base


def test_switched_off_the_release_chooses_as_before(
    counts: Counts, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    """Holds on the stock release, too."""
    base = base_class(counts)
    platform = linear.current_platform._enum
    known = linear._POSSIBLE_NVFP4_KERNELS
    order = [k.__name__ for k in known[linear.PlatformEnum.CUDA] if "Triton" not in k.__name__]
    record_property("order", " ".join(order))
    monkeypatch.setitem(known, platform, [base])
    monkeypatch.setenv("VLLM_NVFP4_M_DISPATCH", "off")
    made = linear.init_nvfp4_linear_kernel()
    assert type(made) is base
    assert made.apply_weights(layer(), x_of(3)).shape == (3, N)
    assert (counts.small, counts.large) == ([], [3])


def test_flashinfers_native_gemm_gets_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checks, as FlashInfer 0.7.2 states them; the GEMM itself needs a card of SM12x."""
    module, seen = dispatch(), []

    def mm_bf16_fp4(
        a: torch.Tensor, b: torch.Tensor, b_descale: torch.Tensor, alpha: torch.Tensor, *,
        backend: str,
    ) -> torch.Tensor:  # fmt: skip
        n, k = b.shape[0], b.shape[1] * 2
        assert backend == "cute-dsl-native"
        assert (b.dtype, b.is_contiguous(), k % 16) == (torch.uint8, True, 0)
        assert b_descale.dtype in (torch.uint8, torch.float8_e4m3fn)
        assert b_descale.is_contiguous()
        assert b_descale.numel() == -(-n // 128) * -(-k // 64) * 512
        assert (alpha.dtype, alpha.shape) == (torch.float32, (1,))
        assert (a.dtype, a.is_contiguous(), a.shape[1]) == (torch.bfloat16, True, k)
        seen.append(a.clone())
        return product(a, n)

    gemm = ModuleType("flashinfer.gemm")
    gemm.mm_bf16_fp4 = mm_bf16_fp4  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    monkeypatch.setitem(sys.modules, "flashinfer.gemm", gemm)
    w = nvfp4.random_weights(50, 48, seed=1)
    packed, scales = w.padded()
    x = nvfp4.activations(3, 96, seed=2)[:, :48]
    bias = torch.ones(50, dtype=torch.bfloat16)
    out = module._flashinfer_native(x, packed, scales, w.global_scale, bias, 50)
    assert out.shape == (3, 50)
    assert torch.equal(seen[0][:, :48], x)
    assert not seen[0][:, 48:].any()
    assert torch.equal(out, product(seen[0], 50) + 1)


def test_the_native_gemm_is_taken_where_it_is(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch(), "has_flashinfer_native", lambda: True)
    made = kernel(counts, write(), monkeypatch)
    with logs.caught() as records:
        made.process_weights_after_loading(layer())
    assert warned(records, f"M 1..{CUTOFF} flashinfer_native")


def test_a_table_that_asks_for_a_missing_kernel_says_so(
    counts: Counts, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = {"base": "FlashInferCutlassNvFp4LinearKernel", "n": N, "k": K}
    rules = [rule | {"steps": [["flashinfer_native", 4], ["triton", 8]]}]
    made = kernel(counts, write(rules=rules), monkeypatch)
    with logs.caught() as records:
        for m in (4, 8, 9):
            made.apply_weights(layer(), x_of(m))
    assert (counts.small, counts.large) == ([4, 8], [9])
    assert warned(records, "which is not available here")
