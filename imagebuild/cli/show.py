"""`build.py show`: the lines, a line's patches, one patch."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import msgspec

from imagebuild import schema, upstream
from imagebuild.cli.output import emit
from imagebuild.errors import UsageError
from imagebuild.following import skew
from imagebuild.patching import patch_table, series
from imagebuild.patching.metadata import HARDWARE

if TYPE_CHECKING:
    import argparse

    from imagebuild.patching.metadata import Metadata
    from imagebuild.patching.series import Patch
    from imagebuild.project import Project
    from imagebuild.upstream import Line, UpstreamLock

_WIDTH = 96


def _wrap(label: str, text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=f"    {label + ':':<10} ",
        subsequent_indent=" " * 15,
    )


def _upstream(meta: Metadata) -> str:
    parts = [meta.upstream.status, meta.upstream.ref, meta.upstream.reason]
    return "; ".join(part for part in parts if part)


def _hardware(patch: Patch, line: Line) -> str:
    return ", ".join(f"{name} {skew.witness(patch, line, name)}" for name in HARDWARE)


def _brief(patch: Patch, line: Line) -> list[str]:
    return [
        f"  {patch.name}  [{patch.meta.area}]",
        _wrap("what", patch.meta.summary),
        _wrap("why", patch.meta.why),
        _wrap("upstream", _upstream(patch.meta)),
        _wrap("verified", _hardware(patch, line)),
    ]


def _whole(patch: Patch, line: Line) -> list[str]:
    meta = patch.meta
    lines = _brief(patch, line)
    lines.append(_wrap("origin", " ".join([meta.origin.kind, *meta.origin.links])))
    if meta.kill_switch:
        switch = meta.kill_switch
        lines.append(_wrap("off by", f"{switch.variable or switch.option}: {switch.effect}"))
    lines += [_wrap("changes", path) for path in (*patch.targets, *meta.overlay)]
    for check in meta.drop_when:
        verb, text = next(
            (verb, text)
            for verb, text in (
                ("contains", check.contains),
                ("lacks", check.lacks),
                ("defines", check.symbol),
            )
            if text is not None
        )
        lines.append(_wrap("drop when", f"{check.file} {verb} {text!r}"))
    lines += [_wrap("test", node) for node in meta.tests]
    lines += [
        _wrap("evidence", f"{entry.hardware}, {entry.when}: {entry.what} ({entry.on})")
        for entry in meta.evidence
    ]
    lines.append(_wrap("sha256", patch.text.sha256))
    return lines


def _patch_facts(patch: Patch) -> dict[str, Any]:
    return {
        "name": patch.name,
        "sha256": patch.text.sha256,
        "changes": list(patch.targets),
        **msgspec.to_builtins(patch.meta),
    }


def _show_lines(lock: UpstreamLock, project: Project) -> tuple[str, dict[str, Any]]:
    rows, facts = [], {}
    for name, line in lock.lines.items():
        file = project.patches(name) / "series"
        names = series.parse_names(schema.read_bytes(file, "the series"), file)
        mark = "*" if name == lock.default else " "
        rows.append(
            f"{mark} {name:<9} {line.local_version:<18} {len(names)} patches  {line.summary}"
        )
        facts[name] = {
            "default": name == lock.default,
            "version": line.local_version,
            "summary": line.summary,
            "patches": list(names),
        }
    rows.append("\n* is built by default. One line's patches: python build.py show v0.33.0")
    return "\n".join(rows), {"lines": facts}


def _show_line(name: str, line: Line, patches: tuple[Patch, ...]) -> str:
    built_on = f"torch {line.torch}, FlashInfer {line.flashinfer}, CUDA {line.cuda}"
    released = f"commit {line.best_commit}, released {line.released:%Y-%m-%d}"
    head = [
        f"{name}  {line.local_version}  {line.summary}",
        f"  upstream {line.tag}, {released}; {built_on}",
    ]
    return "\n".join([*head, *(text for patch in patches for text in ["", *_brief(patch, line)])])


def run(arguments: argparse.Namespace, project: Project) -> int:
    """Print what is asked for.

    Raises:
        UsageError: if there is no such line or patch.
    """
    lock = upstream.load(project.upstream_lock)
    if arguments.markdown:
        loaded = [(line, series.load(project, name)) for name, line in lock.lines.items()]
        print(patch_table.render(loaded), end="")
        return 0
    if arguments.line is None:
        text, facts = _show_lines(lock, project)
        emit(arguments, text, facts)
        return 0
    name, line = lock.line(arguments.line)
    found = series.load(project, name)
    if arguments.patch is None:
        facts = {"line": name, "upstream": msgspec.to_builtins(line)}
        facts["patches"] = [_patch_facts(patch) for patch in found.patches]
        emit(arguments, _show_line(name, line, found.patches), facts)
        return 0
    patch = found.patch(arguments.patch)
    if patch is None:
        raise UsageError(
            f"no patch {arguments.patch} in line {name}",
            file=project.patches(name) / "series",
            expected=f"one of {', '.join(p.name for p in found.patches)}",
            found=arguments.patch,
            next_command=f"python build.py show {name}",
        )
    emit(arguments, "\n".join(_whole(patch, line)), _patch_facts(patch))
    return 0
