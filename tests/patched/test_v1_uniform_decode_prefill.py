"""Model Runner V1 gives no decode graph to a step that computes the state of a prompt.

The engine, its scheduler and its runner are the tree's own; stepping.py says what stands for the
graphs. The listed tests first show that the step in question has the shape of a decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.patched.stepping import BUDGET, Row, Step, Stepped

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAFTS = 3
QUERY = 1 + DRAFTS


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Stepped:
    return Stepped(tmp_path_factory.mktemp("drafting"), DRAFTS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Stepped:
    return Stepped(tmp_path_factory.mktemp("plain"), 0)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("drafting", "plain"):
        if name in request.fixturenames:
            request.getfixturevalue(name).finish()


def decode(row: Row) -> bool:
    return row.scheduled == 1 + row.drafts and row.computed > 0


def uniform(step: Step, query: int) -> bool:
    return all(row.scheduled == query for row in step.rows)


@pytest.mark.parametrize("requests", [1, 2, 4])
def test_prompts_as_long_as_a_drafted_step_run_no_decode_graph(
    drafting: Stepped, requests: int
) -> None:
    for _ in range(requests):
        drafting.add(QUERY, 4)
    step = drafting.step()
    assert step.rows == (Row(QUERY, 0, 0),) * requests
    assert step.graph != "FULL"


def test_a_last_chunk_as_long_as_a_drafted_step_runs_no_decode_graph(drafting: Stepped) -> None:
    drafting.add(BUDGET + QUERY, 4)
    drafting.step()
    step = drafting.step()
    assert step.rows == (Row(QUERY, 0, BUDGET),)
    assert step.graph != "FULL"


def test_a_prompt_beside_a_drafted_step_runs_no_decode_graph(drafting: Stepped) -> None:
    drafting.add(QUERY + 3, 8)
    drafting.step()
    drafting.add(QUERY, 4)
    step = drafting.step()
    assert sorted(row.drafts for row in step.rows) == [0, DRAFTS]
    assert uniform(step, QUERY)
    assert step.graph != "FULL"


def test_recomputed_tokens_past_the_prompt_run_no_decode_graph(drafting: Stepped) -> None:
    """The last chunk after a preemption holds sampled tokens only, and is no decode."""
    prompt, wanted = BUDGET - 2, 12
    drafting.add(prompt, wanted)
    (request,) = drafting.running
    while request.num_tokens < BUDGET + QUERY:
        drafting.step()
    assert request.num_tokens == BUDGET + QUERY, "an accepted draft jumped over the length"
    drafting.preempt()
    drafting.step()
    step = drafting.step()
    assert step.rows == (Row(QUERY, 0, BUDGET),)
    assert step.graph != "FULL"


def test_prompts_of_one_token_run_no_decode_graph_without_drafts(plain: Stepped) -> None:
    for _ in range(2):  # the CPU's own convolution takes no single token
        plain.add(1, 4)
    step = plain.step()
    assert step.rows == (Row(1, 0, 0),) * 2
    assert step.graph != "FULL"


def test_drafted_steps_run_decode_graphs(drafting: Stepped) -> None:
    for length in (5, 9):
        drafting.add(length, 12)
    steps = [step for step in drafting.finish() if all(decode(row) for row in step.rows)]
    drafted = [step for step in steps if uniform(step, QUERY)]
    assert len(drafted) >= 3
    assert {step.graph for step in drafted} == {"FULL"}


def test_steps_of_one_token_run_decode_graphs_without_drafts(plain: Stepped) -> None:
    for length in (5, 7):
        plain.add(length, 6)
    steps = [step for step in plain.finish() if all(decode(row) for row in step.rows)]
    assert len(steps) >= 4
    assert {step.graph for step in steps} == {"FULL"}
