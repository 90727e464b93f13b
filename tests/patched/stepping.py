"""A real engine on a CPU, stepped by hand: what each step ran, and the CUDA graph it was given.

The model is a tiny Qwen3.5 hybrid. Its drafter is of the kind that only Model Runner V1 takes. A
CPU captures no graph, so the runner's dispatcher is told which it would have on a GPU, and its
choice is recorded.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams
from vllm.config import CUDAGraphMode
from vllm.inputs import TokensPrompt

from tests.patched import checkpoints, loading

if TYPE_CHECKING:
    from pathlib import Path

DRAFT_TOKEN = 3
BUDGET = 16  # tokens that one step takes
LIMIT = 200  # steps after which requests that are not done never will be


class ConstantDrafter:
    """Drafts one token over and over; the interface is that of the method `custom_class`."""

    def __init__(self, config: Any) -> None:
        self.tokens = config.speculative_config.num_speculative_tokens

    def load_model(self, *_: Any) -> None:
        """Have no weights."""

    def propose(self, sampled: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return a draft for each request that sampled a token."""
        return [[DRAFT_TOKEN] * self.tokens if tokens else [] for tokens in sampled]


class AlternatingDrafter(ConstantDrafter):
    """Drafts for the first rows at every second step only, so that the last ones find no room."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.first = BUDGET // (1 + self.tokens)
        self.calls = 0

    def propose(self, sampled: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return a draft for some of the requests."""
        self.calls += 1
        drafts = super().propose(sampled)
        return [[]] * self.first + drafts[self.first :] if self.calls % 2 else drafts


@dataclass(frozen=True)
class Row:
    """What one step did for one request.

    Attributes:
        scheduled: tokens that it ran.
        drafts: how many of them were drafts.
        computed: tokens whose state was there before.
    """

    scheduled: int
    drafts: int
    computed: int


@dataclass(frozen=True)
class Step:
    """One step of the engine; `graph` is the name of its CUDA graph mode."""

    graph: str
    rows: tuple[Row, ...]


def engine(
    folder: Path,
    drafts: int,
    drafter: type[ConstantDrafter] = ConstantDrafter,
    **options: Any,
) -> Any:
    """Return an engine that runs in this process, on a checkpoint written to `folder`."""
    checkpoints.write(folder, checkpoints.Recipe())
    chosen: dict[str, Any] = {
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_batched_tokens": BUDGET,
    }
    if drafts:
        chosen["speculative_config"] = {
            "method": "custom_class",
            "model": f"{__name__}.{drafter.__name__}",
            "num_speculative_tokens": drafts,
        }
    return LLM(**loading.engine_arguments(folder) | chosen | options).llm_engine


def runner_of(engine: Any) -> Any:
    """Return the engine's model runner."""
    return engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


class Stepped:
    """An engine and the steps that it took."""

    def __init__(self, folder: Path, drafts: int) -> None:
        self.engine = engine(folder, drafts)
        self.core = self.engine.engine_core.engine_core
        self.runner = runner_of(self.engine)
        self.steps: list[Step] = []
        self.requests = 0
        self._offer_graphs()
        self._record()

    def _offer_graphs(self) -> None:
        runner, query = self.runner, self.runner.uniform_decode_query_len
        sizes = [query * count for count in range(1, BUDGET // query + 1)]
        runner.compilation_config.cudagraph_capture_sizes = sizes
        runner.compilation_config.max_cudagraph_capture_size = sizes[-1]
        runner.cudagraph_dispatcher.initialize_cudagraph_keys(
            CUDAGraphMode.FULL_AND_PIECEWISE, query
        )

    def _record(self) -> None:
        runner, dispatcher = self.runner, self.runner.cudagraph_dispatcher
        execute, dispatch = runner.execute_model, dispatcher.dispatch
        chosen: list[str] = []

        def recording_dispatch(*args: Any, **options: Any) -> Any:
            mode, batch = dispatch(*args, **options)
            chosen.append(mode.name)
            return mode, batch

        def recording_execute(scheduled: Any, *rest: Any) -> Any:
            chosen.clear()
            output = execute(scheduled, *rest)
            if scheduled.total_num_scheduled_tokens:
                self.steps.append(Step(chosen[0], _rows(scheduled)))
            return output

        dispatcher.dispatch, runner.execute_model = recording_dispatch, recording_execute

    def add(self, length: int, tokens: int) -> None:
        """Add a request of `length` prompt tokens that wants `tokens` more."""
        self.requests += 1
        ids = [(7 * self.requests + 3 * place) % 480 + 10 for place in range(length)]
        wanted = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(str(self.requests), TokensPrompt(prompt_token_ids=ids), wanted)

    @property
    def running(self) -> list[Any]:
        """The scheduler's requests that run or wait to."""
        return list(self.core.scheduler.requests.values())

    def preempt(self) -> None:
        """Preempt all requests: what they had is computed anew."""
        assert self.engine.reset_prefix_cache(reset_running_requests=True)

    def step(self) -> Step:
        """Run one step."""
        before = len(self.steps)
        self.engine.step()
        assert len(self.steps) == before + 1
        return self.steps[-1]

    def finish(self) -> list[Step]:
        """Run to the end of all requests; return the steps since the last call."""
        for _ in range(LIMIT):
            if not self.engine.has_unfinished_requests():
                break
            self.engine.step()
        else:
            raise AssertionError(f"requests are unfinished after {LIMIT} steps")
        taken, self.steps = self.steps, []
        return taken


def _rows(scheduled: Any) -> tuple[Row, ...]:
    computed = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
    cached = scheduled.scheduled_cached_reqs
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    drafts = scheduled.scheduled_spec_decode_tokens
    return tuple(
        Row(tokens, len(drafts.get(name, ())), computed[name])
        for name, tokens in scheduled.num_scheduled_tokens.items()
    )
