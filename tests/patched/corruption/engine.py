"""One engine, in a process of its own: a setting, its cases, and at most one fault.

usage: python -m tests.patched.corruption.engine JOB.json RESULT.json
"""
# mypy: disable-error-code="import-not-found,no-untyped-call"

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.patched.corruption import language
from tests.patched.corruption.judge import acceptance_is_as_built, judge
from tests.patched.corruption.plan import CASES, Case, Setting
from tests.patched.interpreter import accept_integer_masks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.patched.corruption.judge import Verdict
    from tests.patched.corruption.language import Request

PATTERN = f"([{language.NAMES}][{language.HEX}])"


@dataclass(frozen=True)
class Sizes:
    """How much is asked of an engine.

    Attributes:
        filler: tokens between the steps and the first round.
        answer: tokens of an answer.
        requests: requests of a case with several.
        chunk: prompt tokens that one step takes.
        stagger: steps between two requests.
        pools: requests that fit into the pool, for each state of the prefix cache; fewer than
            `requests`, so that some are preempted. None for a pool as large as the memory.
        context: `max_model_len`.
    """

    filler: int = 1100
    answer: int = 96
    requests: int = 8
    chunk: int = 256
    stagger: int = 3
    pools: dict[str, float] | None = None
    context: int = 2048


@dataclass(frozen=True)
class Job:
    """What one process does."""

    model: str
    setting: Setting
    cases: tuple[Case, ...] = CASES
    fault: str | None = None
    sizes: Sizes = field(default_factory=Sizes)
    device: str = "cuda"
    part: str = "cover"


def read_job(path: Path) -> Job:
    """Return the job in a file."""
    plain = json.loads(path.read_text())
    plain["setting"] = Setting(**plain["setting"])
    plain["cases"] = tuple(Case(**case) for case in plain["cases"])
    plain["sizes"] = Sizes(**plain["sizes"])
    return Job(**plain)


def prepare(job: Job) -> None:
    """Set this process up, before vLLM is imported."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if job.device == "cpu" and job.setting.drafts:
        # vLLM's MTP prepares its inputs with Triton kernels: run those in the interpreter.
        # The folder is for the processes that vLLM starts, and its module for this one.
        folder = str(Path(__file__).parent / "interpreted")
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        runpy.run_path(f"{folder}/sitecustomize.py")
        accept_integer_masks()


def options(job: Job) -> dict[str, Any]:
    """Return the engine's arguments."""
    setting, sizes = job.setting, job.sizes
    found: dict[str, Any] = {
        "model": job.model,
        "max_model_len": sizes.context,
        "max_num_seqs": sizes.requests,
        "max_num_batched_tokens": sizes.chunk,
        "enforce_eager": not setting.graphs,
        "limit_mm_per_prompt": {"image": 0, "video": 0},
        "enable_prefix_caching": setting.prefix != "off",
        "mamba_ssm_cache_dtype": "float32",
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "seed": 0,
        "disable_log_stats": False,
    }
    if setting.drafts:
        found["speculative_config"] = {
            "method": "mtp", "num_speculative_tokens": setting.drafts,
        }  # fmt: skip
    if job.device == "cuda":
        found |= {
            "kv_cache_dtype": setting.kv,
            "attention_backend": "FLASHINFER",
            "kernel_config": {"enable_flashinfer_autotune": False},
            "gdn_prefill_backend": "triton",
            "gpu_memory_utilization": 0.06,
            "kv_cache_memory_bytes": 2 << 30,
        }
    if setting.graphs:
        found["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    if sizes.pools:
        fitting = sizes.pools[setting.prefix]
        found["num_gpu_blocks_override"] = 8 + round(fitting * blocks_of_a_request(setting))
    return found


def blocks_of_a_request(setting: Setting) -> int:
    """Return the KV blocks that a request takes, about: three groups of states, one of pages."""
    return 3 * (2 + setting.drafts) + (2 if setting.kv == "nvfp4" else 4)


def prompts(case: Case, setting: Setting, sizes: Sizes, seed: int) -> list[Request]:
    """Return the requests of a case; with a prefix cache, two of three share their beginning."""
    speakers = [language.Speaker(seed * 10 + i, sizes.filler - 37 * i) for i in range(3)]
    count = 1 if case.traffic == "one" else sizes.requests
    made = []
    for number in range(count):
        speaker = speakers[number % 3]
        shared = setting.prefix != "off" and number % 3 != 2
        made.append(speaker.request(shared=shared))
    return made


def end_on_a_draft(request: Request, chunk: int, drafts: int) -> Request:
    """Return the request with more filler, so that its last chunk is as long as a decode.

    The filler stands after the steps, so that these stay in the first page.
    """
    over = (len(request.prompt) - (1 + drafts)) % chunk
    more = (language.FIRST_FILLER,) * ((chunk - over) % chunk)
    told, rest = request.prompt[: language.COUNTERS], request.prompt[language.COUNTERS :]
    return replace(request, prompt=told + more + rest)


class Asked:
    """What a form asks for, and the right answer to it."""

    def __init__(self, form: str, request: Request, answer: int) -> None:
        self.form = form
        self.structured: dict[str, Any] | None = None
        readings = answer if form == "plain" else answer // 2
        self.most = answer if form == "plain" else readings + 100
        said = request.right_text(readings)
        pattern = f"{PATTERN}{{{readings}}}"
        if form == "plain":
            self.right: Sequence[object] = request.right(readings)
        elif form == "json":
            schema = {
                "type": "object",
                "properties": {"log": {"type": "string", "pattern": f"^{pattern}$"}},
                "required": ["log"],
                "additionalProperties": False,
            }
            self.structured = {"json": schema}
            self.right = f'{{"log":"{said}"}}'
        else:
            start = '<tool_call>\n{"name": "append", "arguments": {"log": "'
            end = '"}}\n</tool_call>'
            self.structured = {"regex": _escaped(start) + pattern + _escaped(end)}
            self.right = start + said + end


def _escaped(text: str) -> str:
    return "".join("\\" + c if c in "{}[]()\\.*+?|^$" else c for c in text)


def run(job: Job) -> dict[str, Any]:
    """Make the engine, ask it all cases, and return what became of each."""
    prepare(job)
    from vllm import LLM

    if job.fault is not None:
        from tests.patched.corruption.faults import FAULTS

        FAULTS[job.fault](job.setting.drafts)
    began = time.monotonic()
    llm = LLM(**options(job))
    loaded = time.monotonic() - began
    results = [_case(llm, job, case, number) for number, case in enumerate(job.cases)]
    return {
        "setting": asdict(job.setting), "fault": job.fault, "part": job.part,
        "load_s": round(loaded, 1),
        "total_s": round(time.monotonic() - began, 1), "cases": results,
        "versions": _versions(),
    }  # fmt: skip


def _versions() -> dict[str, str]:
    import torch
    import vllm

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"vllm": vllm.__version__, "torch": torch.__version__, "device": device}


def _case(llm: Any, job: Job, case: Case, number: int) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import StructuredOutputsParams

    sizes = job.sizes
    requests = prompts(case, job.setting, sizes, 11 + number)
    if job.setting.drafts:
        requests = [end_on_a_draft(r, sizes.chunk, job.setting.drafts) for r in requests]
    before = _counters(llm)
    asked = [Asked(case.form, request, sizes.answer) for request in requests]
    wanted = []
    for one in asked:
        structured = one.structured and StructuredOutputsParams(**one.structured)
        wanted.append(
            SamplingParams(
                temperature=0,
                max_tokens=one.most,
                logprobs=1,
                ignore_eos=case.form == "plain",
                structured_outputs=structured,
            )
        )
    inputs = [TokensPrompt(prompt_token_ids=list(request.prompt)) for request in requests]
    stagger = {"one": 0, "staggered": sizes.stagger, "preempted": 0}[case.traffic]
    outputs = _answers(llm, inputs, wanted, stagger)
    verdicts = [_verdict(one, output) for one, output in zip(asked, outputs, strict=True)]
    after = _counters(llm)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    drafted, accepted = grown["drafted"], grown["accepted"]
    passed = all(verdict.passed for verdict in verdicts)
    if job.setting.drafts and case.form == "plain":
        passed = passed and acceptance_is_as_built(accepted, drafted)
    status = "passed" if passed else "failed"
    if passed and case.traffic == "preempted" and not grown["preemptions"]:
        status = "not run"  # the pool was large enough for all: nothing was preempted
    return {
        "case": case.name,
        "status": status,
        "right": sum(verdict.right for verdict in verdicts),
        "requests": len(verdicts),
        "agreed": min(verdict.agreed / verdict.wanted for verdict in verdicts),
        "least_log_probability": min(
            (v.least for v in verdicts if v.least is not None), default=None
        ),
        **grown,
    }


def _answers(llm: Any, inputs: list[Any], wanted: list[Any], stagger: int) -> list[Any]:
    """Give the engine each request when its time has come; return the outputs in order."""
    engine = llm.llm_engine
    done: dict[str, Any] = {}
    waiting = list(enumerate(zip(inputs, wanted, strict=True)))
    steps = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and (stagger == 0 or steps >= waiting[0][0] * stagger):
            number, (prompt, parameters) = waiting.pop(0)
            engine.add_request(str(number), prompt, parameters)
        for output in engine.step():
            if output.finished:
                done[output.request_id.split("-")[0]] = output.outputs[0]
        steps += 1
    return [done[str(number)] for number in range(len(inputs))]


def _verdict(asked: Asked, output: Any) -> Verdict:
    chosen = [
        step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)
    ]
    if asked.form == "plain":
        return judge(list(output.token_ids), asked.right, chosen)
    readings = range(language.FIRST_READING, language.FIRST_STEP)
    free = [p for token, p in zip(output.token_ids, chosen, strict=True) if token in readings]
    return judge(output.text, asked.right, free)


def _counters(llm: Any) -> dict[str, int]:
    names = {
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
        "vllm:num_preemptions": "preemptions",
        "vllm:prefix_cache_hits": "cached_tokens",
    }
    found = dict.fromkeys(names.values(), 0)
    for metric in llm.get_metrics():
        if metric.name in names:
            found[names[metric.name]] += metric.value
    return found


def main() -> None:
    """Run the job in a file, and write what became of it to another."""
    job, result = map(Path, sys.argv[1:])
    result.write_text(json.dumps(run(read_job(job)), indent=1) + "\n")


if __name__ == "__main__":
    main()
