"""From a line, its series and a tree to the set of produced files that every artifact carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebuild.digest import sha256_bytes
from imagebuild.errors import ChecksumError, ConflictError
from imagebuild.patching import apply, checksums, identity
from imagebuild.patching.checksums import LineChecksums, TargetPin
from imagebuild.patching.produced import Origin, Patchset, ProducedFile

if TYPE_CHECKING:
    from imagebuild.fetch.tree import Tree
    from imagebuild.patching.apply import Plan
    from imagebuild.patching.series import Series
    from imagebuild.upstream import Line


def raise_first_failure(plan: Plan, tree: Tree, base: Tree | None = None) -> None:
    """Raise the error of the first patch that does not apply, with its explanation.

    Args:
        plan: the plan.
        tree: the tree that the plan was made on.
        base: the release that the series was written for, where `tree` is another one.

    Raises:
        BuildError: of the outcome's class; nothing if every patch applies.
    """
    from imagebuild.patching import explain  # noqa: PLC0415  (difflib, only on failure)

    for report in plan.failures():
        kind = report.outcome.error
        if kind is None:
            continue
        raise kind(
            f"patch {report.patch.name}: {report.outcome.value}",
            file=", ".join(f.path for f in report.files),
            expected=f"{report.patch.name}.patch of {plan.series.line} applies to {plan.label}",
            found=report.reason,
            next_command=explain.next_command(report, plan.series.line),
            detail=explain.explain(report, tree, base),
        )


def _generated(line: Line, series: Series, upstream: Tree) -> dict[str, bytes]:
    digest = checksums.patchset_sha256(series)
    return {
        identity.OVERLAY_MODULE: identity.overlay_module(line, series, digest),
        identity.VERSION_MODULE: identity.version_module(line, upstream),
    }


def _check_generated(series: Series) -> None:
    taken = {identity.OVERLAY_MODULE, identity.VERSION_MODULE} & {*series.overlay, *series.targets}
    for path in sorted(taken):
        raise ConflictError(
            "the series makes a file that the build generates",
            file=path,
            expected="neither a patch nor an overlay file for it",
            found="an overlay file" if path in series.overlay else "a patch that changes it",
            next_command=f"python build.py edit {series.line}",
        )


def check_overlay(series: Series, upstream: Tree, module: bytes | None = None) -> None:
    """Check that upstream has no file of its own where the overlay puts one.

    Args:
        series: the series with its overlay files.
        upstream: the release.
        module: the content of the identity module, if upstream may have just that.

    Raises:
        ConflictError: naming the first file that exists upstream with other content.
    """
    for path, ours in {**series.overlay, identity.OVERLAY_MODULE: module}.items():
        theirs = upstream.read(path)
        if theirs is not None and theirs != ours:
            raise ConflictError(
                "an overlay file exists upstream with other content",
                file=f"{path} in {upstream.label}",
                expected="no such file upstream",
                found=f"sha256 {sha256_bytes(theirs)}",
                next_command=f"python build.py edit {series.line}",
            )


def assemble(line: Line, series: Series, plan: Plan, upstream: Tree) -> Patchset:
    """Return everything that the series produces, from a plan that succeeded.

    Args:
        line: the line.
        series: its series.
        plan: what the series makes of the source tree.
        upstream: the release itself, for the content that the produced files replace.

    Raises:
        ConflictError: if an overlay file exists upstream with other content, or the series makes a
            file that is generated.
        DriftedError: if upstream's version module has an unknown form.
    """
    _check_generated(series)
    generated = _generated(line, series, upstream)
    check_overlay(series, upstream, generated[identity.OVERLAY_MODULE])

    def produced(path: str, data: bytes, origin: Origin) -> ProducedFile:
        before = upstream.read(path)
        return ProducedFile(path, data, None if before is None else sha256_bytes(before), origin)

    files = [
        *(produced(path, data, "patched") for path, data in plan.after.items()),
        *(produced(path, data, "overlay") for path, data in series.overlay.items()),
        *(produced(path, data, "generated") for path, data in generated.items()),
    ]
    return Patchset(
        series.line,
        checksums.patchset_sha256(series),
        {patch.name: patch.text.sha256 for patch in series.patches},
        tuple(sorted(files, key=lambda file: file.path)),
    )


def derive(line: Line, series: Series, tree: Tree) -> LineChecksums:
    """Return the digests that belong in `checksums.lock`, from the line's own sdist.

    Raises:
        BuildError: if a patch does not apply to its own line, or its drop-when holds there.
    """
    plan = apply.plan(series, tree)
    raise_first_failure(plan, tree)
    already = [r for r in plan.reports if r.outcome is apply.Outcome.ALREADY_APPLIED]
    if already:
        raise ConflictError(
            f"patch {already[0].patch.name} changes nothing on its own line",
            file=f"patches/{series.line}/{already[0].patch.name}.patch",
            expected=f"a change to {tree.label}",
            found=already[0].reason,
            next_command=f"python build.py edit {series.line}",
        )
    patchset = assemble(line, series, plan, tree)
    return LineChecksums(
        version=line.local_version,
        sdist=line.sdist.sha256,
        patchset=patchset.sha256,
        patches=dict(checksums.patch_files(series)),
        overlay={path: sha256_bytes(data) for path, data in sorted(series.overlay.items())},
        targets=tuple(
            TargetPin(patch=name, path=path, before=before, after=after)
            for name, path, before, after in plan.steps
        ),
        produced={file.path: file.after for file in patchset.files},
    )


def check_produced(patchset: Patchset, pins: LineChecksums) -> None:
    """Compare everything that a series produced with the lock.

    Raises:
        ChecksumError: naming the first file whose content is not the pinned one.
    """
    found = {file.path: file.after for file in patchset.files}
    for path in sorted({*found, *pins.produced}):
        if pins.produced.get(path) != found.get(path):
            raise ChecksumError(
                "a produced file is not the one in the lock",
                file=path,
                expected=f"sha256 {pins.produced.get(path, 'of no such file')}",
                found=f"sha256 {found.get(path, 'of no such file')}",
                next_command=f"python build.py lock {patchset.line}",
            )


def build_patchset(
    line: Line, series: Series, pins: LineChecksums, tree: Tree, upstream: Tree
) -> Patchset:
    """Return what the series produces, every file compared with the lock.

    Args:
        line: the line.
        series: its series, whose files were compared with the lock already.
        pins: the line's digests.
        tree: the source that is patched; it may be patched already.
        upstream: the line's own release.

    Raises:
        BuildError: of the outcome's class for the first patch that does not apply.
        ChecksumError: if a result is not the pinned one.
    """
    checksums.check_line(pins, line)
    plan = apply.plan(series, tree, pins)
    raise_first_failure(plan, tree)
    apply.check_results(plan, pins)
    patchset = assemble(line, series, plan, upstream)
    check_produced(patchset, pins)
    return patchset
