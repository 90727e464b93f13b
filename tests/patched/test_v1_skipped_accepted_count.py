"""Model Runner V1 keeps the accepted count of a request that a step left out.

The engine, scheduler and runner are the tree's own. Five requests whose drafts are all accepted
want more tokens than a step takes; every second step leaves the last one out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.patched import stepping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm import SamplingParams

DRAFTS = 3
PROMPT = 3
REQUESTS = 5
LAST = str(REQUESTS - 1)


def wanted() -> SamplingParams:
    """Ask for the drafter's token alone, so that each draft is accepted."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0,
        max_tokens=60,
        ignore_eos=True,
        detokenize=False,
        allowed_token_ids=[stepping.DRAFT_TOKEN],
    )


class Counting:
    """An engine, and for each step the counts that its kernels were given, by request."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.runner = stepping.runner_of(engine)
        self.scheduler = engine.engine_core.engine_core.scheduler
        self.given: list[dict[str, int]] = []
        execute = self.runner.execute_model

        def recording(scheduled: Any, *rest: Any) -> Any:
            output = execute(scheduled, *rest)
            names = [name.partition("-")[0] for name in self.runner.input_batch.req_ids]
            counts = self.runner.num_accepted_tokens.gpu.tolist()
            self.given.append(dict(zip(names, counts, strict=False)))
            return output

        self.runner.execute_model = recording

    def lengths(self) -> dict[str, int]:
        """Return the tokens that each request has, prompt included."""
        held = self.scheduler.requests.items()
        return {name.partition("-")[0]: request.num_tokens for name, request in held}

    def step(self) -> tuple[dict[str, int], dict[str, int]]:
        """Run one step; return the counts that it was given, and the tokens that it added."""
        before = self.lengths()
        self.engine.step()
        after = self.lengths()
        return self.given[-1], {name: after[name] - before[name] for name in after}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, drafter = tmp_path_factory.mktemp("model"), stepping.AlternatingDrafter
    return stepping.engine(folder, DRAFTS, drafter, max_num_seqs=2 * REQUESTS)


@pytest.fixture
def counting(engine: Any) -> Iterator[Counting]:
    from vllm.inputs import TokensPrompt

    made = Counting(engine)
    made.runner.drafter.calls = 0
    for number in range(REQUESTS):
        ids = [20 * number + place + 10 for place in range(PROMPT)]
        engine.add_request(str(number), TokensPrompt(prompt_token_ids=ids), wanted())
    yield made
    engine.abort_request([str(number) for number in range(REQUESTS)])
    while engine.has_unfinished_requests():
        engine.step()


def until_left_out(counting: Counting) -> int:
    """Step until the last request is left out; return what it accepted in the step before."""
    accepted = 0
    for _ in range(6):
        given, added = counting.step()
        if LAST not in given:
            return accepted
        accepted = added[LAST]
    raise AssertionError("no step left the last request out")


def test_a_request_that_a_step_left_out_keeps_its_accepted_count(counting: Counting) -> None:
    accepted = until_left_out(counting)
    assert accepted == 1 + DRAFTS
    given, _ = counting.step()
    assert given[LAST] == accepted


def test_a_request_preempted_while_it_was_left_out_starts_anew(counting: Counting) -> None:
    until_left_out(counting)
    assert counting.engine.reset_prefix_cache(reset_running_requests=True)
    given: dict[str, int] = {}
    while LAST not in given:
        given, _ = counting.step()
    assert given[LAST] == 1


def test_requests_that_every_step_takes_have_the_counts_of_the_step_before(
    counting: Counting,
) -> None:
    _, before = counting.step()
    for _ in range(6):
        given, added = counting.step()
        taken = [name for name in given if name != LAST]
        assert len(taken) == REQUESTS - 1
        assert {name: given[name] for name in taken} == {name: before[name] for name in taken}
        before = added
