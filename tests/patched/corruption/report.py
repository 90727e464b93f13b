"""The gate's results as tables.

usage: python -m tests.patched.corruption.report GATE.json   (prints Markdown)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.patched.corruption.plan import Setting

Result = dict[str, Any]


def _name(result: Result) -> str:
    return Setting(**result["setting"]).name


def verdict(result: Result) -> str:
    """Return "passed", "failed", "died" or "not run" for an engine and all its cases.

    It passed if no case failed and at least one ran.
    """
    if "died" in result:
        return "died"
    states = {case["status"] for case in result["cases"]}
    if "failed" in states:
        return "failed"
    return "passed" if "passed" in states else "not run"


def line(result: Result) -> str:
    """Return one line on an engine, for watching."""
    said = verdict(result)
    cases = " ".join(
        f"{case['case']}={case['status']}" for case in result["cases"] if case["status"] != "passed"
    )
    end = str(result.get("died", result.get("not_run", "")))[-1500:]
    fault = result["fault"] or "-"
    return f"{_name(result)} | {fault} | {said} | {result.get('total_s')} s | {cases} {end}"


def is_as_it_should_be(results: list[Result]) -> bool:
    """Return whether all engines ran, those without a fault passed, and those with one did not."""
    return bool(results) and all(
        verdict(result) == ("failed" if result["fault"] else "passed") for result in results
    )


def _share(case: Result) -> str:
    return f"{case['accepted'] / case['drafted']:.2f}" if case["drafted"] else "-"


def table(results: list[Result]) -> str:
    """Return two Markdown tables: the settings, and the faults."""
    clean = sorted((r for r in results if r["part"] == "cover"), key=_name)
    names = sorted({case["case"] for r in clean for case in r["cases"]})
    lines = [
        "| setting | " + " | ".join(names) + " | preempted | cached tokens | accepted |",
        "| --- |" + " --- |" * (len(names) + 3),
    ]
    for result in clean:
        cases = {case["case"]: case for case in result["cases"]}
        if not cases:
            blank = [verdict(result)] * len(names)
            lines.append(f"| {_name(result)} | " + " | ".join([*blank, "-", "-", "-"]) + " |")
            continue
        states = [cases[name]["status"] if name in cases else "not run" for name in names]
        preempted = sum(case["preemptions"] for case in cases.values())
        cached = sum(case["cached_tokens"] for case in cases.values())
        plain = cases.get("staggered-plain", next(iter(cases.values())))
        more = [str(preempted), str(cached), _share(plain)]
        lines.append(f"| {_name(result)} | " + " | ".join([*states, *more]) + " |")
    lines += [
        "",
        "| fault | caught | right answers | first wrong token at | least log-probability |",
        "| --- | --- | --- | --- | --- |",
    ]
    compared = [r for r in results if r["part"] == "faults"]
    for result in sorted(compared, key=lambda r: r["fault"] or ""):
        said = verdict(result)
        caught = {"failed": "yes", "passed": "no"}.get(said, said)
        cases = result["cases"]
        right = f"{sum(c['right'] for c in cases)} of {sum(c['requests'] for c in cases)}"
        agreed = f"{min((c['agreed'] for c in cases), default=0):.2f} of the answer"
        known = [
            c["least_log_probability"] for c in cases if c["least_log_probability"] is not None
        ]
        least = f"{min(known):.2f}" if known else "-"
        if not result["fault"]:
            caught, agreed = said, "-"
        lines.append(f"| {result['fault'] or 'none'} | {caught} | {right} | {agreed} | {least} |")
    return "\n".join(lines) + "\n"


def product(results: list[Result]) -> str:
    """Return a Markdown table of the whole product of settings: right answers of those asked for.

    An engine with a case that failed, or that did not run, shows so in its cell.
    """
    found = {_name(r): r for r in results if r["part"] == "product"}
    settings = [Setting(**r["setting"]) for r in found.values()]
    columns = sorted({(s.prefix, s.graphs) for s in settings}, key=str)
    heads = [f"{prefix}, {'graphs' if graphs else 'eager'}" for prefix, graphs in columns]
    lines = [
        "| MTP | KV cache | " + " | ".join(heads) + " |",
        "| --- |" + " --- |" * (len(heads) + 1),
    ]
    for drafts, kv in sorted({(s.drafts, s.kv) for s in settings}):
        cells = []
        for prefix, graphs in columns:
            result = found[Setting(drafts, kv, prefix, graphs).name]
            right = sum(case["right"] for case in result["cases"])
            asked = sum(case["requests"] for case in result["cases"])
            said = verdict(result)
            cells.append(f"{right} of {asked}" + ("" if said == "passed" else f", {said}"))
        lines.append(f"| {drafts} | {kv} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())), end="")
