"""Gates: all pass on a server that is right; of one fault, the right gate and only it speaks.

The server is a fake (tests/support/chatserver), since vLLM cannot be told to misbehave; that the
gates pass on the real one, tests/test_serve_engine.py shows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from serve import profile
from serve.endpoint import Endpoint
from serve.gates import decoding, determinism, gates, reference, report
from serve.gates.client import Answer, AnswerError, Client, Token
from serve.gates.result import Result
from serve.gates.run import Run, Texts
from tests.support.chatserver import ChatServer, Fault

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PATIENCE_S = 5.0
EXPECTED: Mapping[Fault, frozenset[str]] = {
    fault: frozenset(names.split())
    for fault, names in {
        Fault.UNHEALTHY: "health",
        Fault.WRONG_MODEL: "model",
        Fault.SHORT_CONTEXT: "model",
        Fault.WRONG_ANSWER: "chat",
        Fault.SERVER_ERROR: "chat",
        Fault.NOT_JSON: "chat",
        Fault.STALL: "streaming",
        Fault.CUT_STREAM: "streaming",
        Fault.ONE_PIECE: "streaming",
        Fault.SMALL_POOL: "kv-pool",
        Fault.NO_THOUGHT: "thinking-on",
        Fault.LEAKING_THOUGHT: "thinking-on",
        Fault.UNASKED_THOUGHT: "thinking-off",
        Fault.BROKEN_TOOL_JSON: "tool-call",
        Fault.TOOL_SCHEMA: "tool-call",
        Fault.LOST_CALL: "tool-calls-parallel",
        Fault.IGNORED_RESULT: "tool-result",
        Fault.BROKEN_SCHEMA: "json-schema",
        Fault.NO_JSON: "json-schema",
        Fault.NONDETERMINISM: "determinism-repeat",
        Fault.DRIFT: "determinism-repeat",
        Fault.CROWD: "determinism-concurrent",
        Fault.WRONG_NEEDLE: "needle-cold",
        Fault.STALE_CACHE: "needle-cached",
        Fault.INVALID_PYTHON: "long-python",
        Fault.UNFINISHED: "long-python",
        Fault.REPETITION: "repetition",
        Fault.ZERO_ACCEPTANCE: "mtp-acceptance",
        Fault.LAST_PLACE_DEAD: "mtp-acceptance",
        Fault.NO_COUNTERS: "mtp-acceptance",
        Fault.MTP_DIVERGES: "mtp-agreement",
        Fault.FAR_FROM_REFERENCE: "fidelity",
        Fault.COLOUR_BLIND: "vision",
    }.items()
}


def named() -> profile.Named:
    found = profile.load("tiny-cpu")
    model = msgspec.structs.replace(found.profile.model, vision=True)
    return replace_profile(found, msgspec.structs.replace(found.profile, model=model))


def replace_profile(found: profile.Named, to: profile.Profile) -> profile.Named:
    return profile.Named(found.name, found.path, found.sha256, to)


def client(server: ChatServer, key: str | None = None) -> Client:
    return Client(Endpoint(server.url, "tiny-qwen3.5", key), patience=PATIENCE_S)


def verification(server: ChatServer, **more: object) -> Run:
    run = Run(client(server), named().profile, full=True, drafts=3, pool_tokens=87296)
    return replace(run, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def right() -> tuple[Run, dict[str, str]]:
    """A run on a server that is right, and without drafts; its answers are compared with."""
    with ChatServer(drafts=0) as server:
        made = reference.make(client(server), "tiny", "0" * 40, "test")
        run = verification(server, drafts=0, reference=made)
        statuses: dict[str, str] = {e.gate: e.result.status for e in gates.run_all(run)}
    return run, statuses


def outcome(fault: Fault | None, right: Run) -> dict[str, str]:
    with ChatServer(fault) as server:
        run = verification(server, reference=right.reference, other=Texts(0, dict(right.answers)))
        return {each.gate: each.result.status for each in gates.run_all(run)}


def test_every_gate_passes_on_a_server_that_is_right(right: tuple[Run, dict[str, str]]) -> None:
    found = outcome(None, right[0])
    assert set(found.values()) == {"passed"}
    assert list(found) == [gate.name for gate in gates.GATES]


def test_every_fault_has_a_gate() -> None:
    assert set(EXPECTED) == set(Fault)
    assert frozenset().union(*EXPECTED.values()) == {gate.name for gate in gates.GATES}


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_of_one_fault_the_right_gate_fails_and_no_other(
    fault: Fault, right: tuple[Run, dict[str, str]]
) -> None:
    found = outcome(fault, right[0])
    assert {gate for gate, status in found.items() if status == "failed"} == EXPECTED[fault]
    assert "not run" not in found.values()


def test_what_cannot_run_is_not_run_and_never_passed(right: tuple[Run, dict[str, str]]) -> None:
    assert {gate for gate, status in right[1].items() if status == "not run"} == {
        "mtp-acceptance",
        "mtp-agreement",
    }
    with ChatServer() as server:
        bare = verification(server, pool_tokens=None, profile=_bare())
        found = {each.gate: each.result for each in gates.run_all(bare)}
    silent = {gate for gate, result in found.items() if result.status == "not run"}
    assert silent == {
        "kv-pool", "thinking-on", "thinking-off", "tool-call", "tool-calls-parallel",
        "tool-result", "mtp-agreement", "fidelity", "vision",
    }  # fmt: skip
    assert all(found[gate].evidence for gate in silent)


def _bare() -> profile.Profile:
    plain = profile.load("tiny-cpu").profile
    model = msgspec.structs.replace(plain.model, tool_parser=None, reasoning_parser=None)
    return msgspec.structs.replace(plain, model=model)


def test_the_quick_gates_are_those_that_need_no_long_answer() -> None:
    with ChatServer() as server:
        run = replace(verification(server), full=False)
        found = [each.gate for each in gates.run_all(run)]
    assert found == [gate.name for gate in gates.GATES if not gate.full]
    assert len(found) == 15


def test_one_gate_can_be_asked_for() -> None:
    with ChatServer() as server:
        found = [each.gate for each in gates.run_all(verification(server), frozenset({"chat"}))]
    assert found == ["chat"]


def test_a_server_that_is_not_there_fails_every_gate_that_asks_it() -> None:
    with ChatServer() as server:
        run = verification(server, other=Texts(0, {}))
    found = {each.gate: each.result.status for each in gates.run_all(run)}
    assert set(found.values()) == {"failed", "not run"}
    assert found["health"] == "failed"


def test_a_server_that_wants_a_key_gets_it_and_errors_do_not_show_it() -> None:
    with ChatServer(key="s3cret") as server:
        assert client(server, "s3cret").chat("What is the capital of France?", 8).text == "Paris"
        with pytest.raises(AnswerError, match="HTTP 401") as refused:
            client(server, "other").chat("What is the capital of France?", 8)
    assert "other" not in str(refused.value)


def answer(*tokens: tuple[str, float, float]) -> Answer:
    return Answer("".join(t for t, _, _ in tokens), tokens=tuple(Token(*t) for t in tokens))


def test_texts_may_part_where_two_tokens_are_nearly_alike_and_nowhere_else() -> None:
    one = answer(("a", -0.7, 0.02), ("b", -0.1, 3.0))
    other = answer(("c", -0.7, 0.01), ("b", -0.1, 3.0))
    assert determinism.compared(one, other)[0]
    sure = answer(("a", -0.01, 4.0), ("b", -0.1, 3.0))
    assert not determinism.compared(sure, other)[0]


def test_repetition_counts_what_is_new() -> None:
    assert decoding.distinct("one two three four five six") == 1.0
    assert decoding.distinct("round and round it goes " * 50) < 0.05
    assert decoding.distinct("") == 1.0


def test_the_distance_of_a_distribution_to_itself_is_nothing_and_grows() -> None:
    here = {1: -0.1, 2: -3.0}
    assert reference.distance(here, here) == pytest.approx(0, abs=1e-9)
    near, far = {1: -0.2, 2: -2.5}, {2: -0.1, 1: -3.0}
    assert 0 < reference.distance(here, near) < reference.distance(here, far)


def _report(status: str) -> report.Report:
    inputs = report.Inputs(
        artefact="registry.test/vllm@sha256:" + "1" * 64, artefact_sha256="1" * 64,
        profile="p", profile_sha256="2" * 64, model="o/m", revision="3" * 40, drafts=3,
        device="NVIDIA GeForce RTX 5090", driver="580.95", vllm="0.33.0",
    )  # fmt: skip
    result = gates.Timed("chat", Result(status, "m | n", "b", ("e",)), 0.25)  # type: ignore[arg-type]
    return report.of_results(inputs, [result], {"q": "a"}, full=True)


@pytest.mark.parametrize(
    ("status", "told"), [("passed", "PASSED"), ("failed", "FAILED"), ("not run", "WARNED")]
)
def test_the_statement_binds_the_result_to_image_and_model(status: str, told: str) -> None:
    found = report.statement(_report(status))
    assert found["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert found["predicate"]["result"] == told
    assert [s["digest"] for s in found["subject"]] == [
        {"sha256": "1" * 64},
        {"gitCommit": "3" * 40},
    ]
    assert found["predicate"]["configuration"][0]["digest"] == {"sha256": "2" * 64}


def test_a_report_is_read_back_and_expires_with_each_input(tmp_path: Path) -> None:
    path = report.write(_report("passed"), tmp_path)
    found = report.load(path)
    assert found.results == _report("passed").results
    assert "| chat | passed | m \\| n | b |" in path.with_suffix(".md").read_text()
    assert report.changed(found, found.inputs) == []
    for name in found.inputs.__struct_fields__:
        value: object = 9 if name == "drafts" else "other"
        other = msgspec.structs.replace(found.inputs, **{name: value})
        assert report.changed(found, other) == [name.replace("_", " ")]
