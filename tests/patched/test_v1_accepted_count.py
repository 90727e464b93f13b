"""Model Runner V1 gives each request its own accepted count, wherever its row went and when.

The runner and its batch are the tree's own, in align mode, and told that scheduling is
asynchronous, which the CPU platform is not. The kernel that hands the counts on is Triton for a GPU
and is stood in for; its copy to the host lands at a chosen time, as a GPU's may.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.worker import mamba_utils

from tests.patched import stepping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DRAFTS = 3
ROWS = 8
PROMPT = 8  # longer than a drafted step: the runner moves such rows behind the decodes
EARLY = ("before the rows move", "before the batch is reordered")
LATE = "when it is waited for"


class InFlight(torch.Tensor):
    """Counts on the device, whose copies to the host wait in `queue`."""

    queue: list[tuple[torch.Tensor, torch.Tensor]] = []  # noqa: RUF012 - one device, one queue

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and isinstance(args[1], cls) and not isinstance(args[0], cls):
            cls.queue.append((args[0], args[1].as_subclass(torch.Tensor).clone()))
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def land(cls) -> None:
        """Let all copies arrive."""
        while cls.queue:
            target, counts = cls.queue.pop(0)
            target.copy_(counts)


def hand_on(context: Any, num_reqs: int, num_accepted_tokens_gpu: torch.Tensor, **_: Any) -> None:
    """Do what the kernel does for a request that crosses no block: keep the count."""
    context.num_accepted_tokens_out.as_subclass(torch.Tensor)[:num_reqs] = num_accepted_tokens_gpu[
        :num_reqs
    ]


def then(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **options: Any) -> Any:
        first()
        return second(*args, **options)

    return both


@dataclass
class Batch:
    """The runner's batch, and what each request accepted in the last step."""

    runner: Any
    accepted: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def update(self, decode: Iterable[str], begin: Iterable[str] = ()) -> None:
        """Schedule drafts for `decode` and whole prompts for `begin`; the rest has finished."""
        old, new = list(decode), list(begin)
        tokens = dict.fromkeys(old, 1 + DRAFTS) | dict.fromkeys(new, PROMPT)
        scheduled = SchedulerOutput(
            scheduled_new_reqs=[prompt(name) for name in new],
            scheduled_cached_reqs=CachedRequestData(
                req_ids=old,
                resumed_req_ids=set(),
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[None] * len(old),
                num_computed_tokens=[PROMPT + 4 * self.steps[name] for name in old],
                num_output_tokens=[1 + 4 * self.steps[name] for name in old],
            ),
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_spec_decode_tokens={name: [-1] * DRAFTS for name in old},
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=[],
            finished_req_ids=set(self.steps) - set(old),
            free_encoder_mm_hashes=[],
        )
        self.steps = {name: self.steps[name] + 1 for name in old} | dict.fromkeys(new, 0)
        self.accepted = {name: self.accepted[name] for name in old} | dict.fromkeys(new, 1)
        self.runner._update_states(scheduled)
        order = self.runner.input_batch.req_ids
        self.runner._prepare_inputs(
            scheduled, np.array([tokens[name] for name in order], dtype=np.int32)
        )

    def accept(self, counts: dict[str, int]) -> None:
        """End the step: each request accepted so many tokens, the sampled one among them."""
        order = self.runner.input_batch.req_ids
        self.accepted = {name: counts.get(name, 1) for name in order}
        sampled = torch.full((len(order), 1 + DRAFTS), -1, dtype=torch.int32)
        for row, name in enumerate(order):
            sampled[row, : self.accepted[name]] = 7
        self.runner._update_states_after_model_execute(sampled, None)
        self.runner.input_batch.prev_req_id_to_index = {n: row for row, n in enumerate(order)}

    @property
    def counts(self) -> dict[str, int]:
        """What the kernels of the step are given, by request."""
        order = self.runner.input_batch.req_ids
        return dict(zip(order, self.runner.num_accepted_tokens.gpu.tolist(), strict=False))


def prompt(name: str) -> NewRequestData:
    return NewRequestData(
        req_id=name,
        prompt_token_ids=list(range(10, 10 + PROMPT)),
        mm_features=[],
        sampling_params=SamplingParams(temperature=0),
        pooling_params=None,
        block_ids=([1, 2, 3, 4], [5]),
        num_computed_tokens=0,
        lora_request=None,
    )


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("model")
    options = {"enable_prefix_caching": True, "max_num_seqs": ROWS, "max_num_batched_tokens": 64}
    engine = stepping.engine(folder, DRAFTS, **options)  # its end would be the runner's
    made = stepping.runner_of(engine)
    assert made.cache_config.mamba_cache_mode == "align"
    made.use_async_scheduling = True
    counts = made.num_accepted_tokens
    counts.gpu = counts.cpu.clone()  # on a CPU they are one
    context = made._get_mamba_bufs().postprocess_align
    context.is_initialized = True
    context.num_accepted_tokens_out = context.num_accepted_tokens_out.as_subclass(InFlight)
    yield made
    del engine


@pytest.fixture
def batch(runner: Any, landing: str, monkeypatch: pytest.MonkeyPatch) -> Batch:
    context = mamba_utils.MambaSpecDecodeGPUContext
    monkeypatch.setattr(context, "run_fused_postprocess", hand_on)
    land = InFlight.land
    event = runner.num_accepted_tokens_event
    monkeypatch.setattr(event, "synchronize", land)
    if landing == EARLY[0]:
        monkeypatch.setattr(runner, "_update_states", then(land, runner._update_states))
    elif landing == EARLY[1]:
        monkeypatch.setattr(runner, "_may_reorder_batch", then(land, runner._may_reorder_batch))
    runner.input_batch.prev_req_id_to_index = None
    for name in list(runner.requests):
        runner.requests.pop(name)
        runner.input_batch.remove_request(name)
    runner.input_batch.condense()
    runner.input_batch.refresh_metadata()
    InFlight.queue.clear()
    runner.input_batch.num_accepted_tokens_cpu.fill(1)
    return Batch(runner)


def filled(batch: Batch) -> None:
    """Four requests, one step of drafts behind them, each with another count."""
    batch.update([], "abcd")
    batch.accept({})
    batch.update("abcd")
    batch.accept({"a": 4, "b": 1, "c": 3, "d": 2})


@pytest.mark.parametrize("landing", EARLY)
def test_a_row_that_a_prompt_pushed_away_keeps_its_count(batch: Batch) -> None:
    filled(batch)
    batch.update("bcd", "e")
    assert batch.runner.input_batch.req_ids == ["d", "b", "c", "e"]
    assert batch.counts == {"b": 1, "c": 3, "d": 2, "e": 1}


@pytest.mark.parametrize("landing", EARLY)
def test_two_rows_that_two_prompts_pushed_away_keep_their_counts(batch: Batch) -> None:
    filled(batch)
    batch.update("cd", "ef")
    assert set(batch.runner.input_batch.req_ids[:2]) == {"c", "d"}
    assert batch.counts == {"c": 3, "d": 2, "e": 1, "f": 1}


@pytest.mark.parametrize("landing", [LATE])
def test_a_prompt_in_the_row_of_the_only_request_has_its_own_count(batch: Batch) -> None:
    batch.update([], "a")
    batch.accept({})
    batch.update("a")
    batch.accept({"a": 3})
    batch.update("", "b")
    assert batch.counts == {"b": 1}


def churn(batch: Batch, steps: int) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Let requests come and go; return, step by step, the counts given and those accepted."""
    chance, names, seen = random.Random(1), iter(range(10_000)), []  # noqa: S311
    live: list[str] = []
    for _ in range(steps):
        kept = [name for name in live if chance.random() < 0.8]
        live = kept or live[-1:]  # with none left, the runner has no rows to map
        new = [str(next(names)) for _ in range(chance.randint(0, min(2, ROWS - len(live))))]
        if not live and not new:
            new = [str(next(names))]
        batch.update(live, new)
        seen.append((batch.counts, dict(batch.accepted)))
        batch.accept({name: chance.randint(1, 1 + DRAFTS) for name in live})
        live += new
    return seen


@pytest.mark.parametrize("landing", EARLY)
def test_each_request_has_its_own_count_while_others_come_and_go(batch: Batch) -> None:
    seen = churn(batch, 60)
    assert sum(count > 1 for _, accepted in seen for count in accepted.values()) > 40
    assert [given for given, _ in seen] == [accepted for _, accepted in seen]


@pytest.mark.parametrize("landing", [LATE])
def test_a_copy_that_lands_when_it_is_waited_for_gives_the_same_counts(batch: Batch) -> None:
    seen = churn(batch, 60)
    assert [given for given, _ in seen] == [accepted for _, accepted in seen]
