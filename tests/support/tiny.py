"""A whole tiny project: locks, a series of real git patches, overlay, sdist and official wheels.

`make(folder)` writes it all; each part can also be had alone, so that a test can break one thing.
"""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import hashlib
import io
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import tomli_w

from imagebuild import upstream
from imagebuild.digest import sha256_bytes
from imagebuild.fetch.tree import MemoryTree
from imagebuild.patching import assemble, checksums, scratch, series
from imagebuild.project import Project
from tests.support import tinytree
from tests.support.tinytree import SDIST_ONLY, TREE, WHEEL_ONLY

VERSION = tinytree.VERSION
LINE = f"v{VERSION}"
LOCAL_VERSION = f"{VERSION}+sm120.1"
SDIST_NAME = f"vllm-{VERSION}.tar.gz"
WHEEL_NAMES: dict[upstream.Platform, str] = {
    "linux/amd64": f"vllm-{VERSION}-cp38-abi3-manylinux_2_28_x86_64.whl",
    "linux/arm64": f"vllm-{VERSION}-cp38-abi3-manylinux_2_28_aarch64.whl",
}
KERNELS = "vllm/model_executor/kernels.py"
SCALES = "vllm/model_executor/scales.py"
WORKER = "vllm/v1/worker.py"
REPORT = "vllm/v1/scale_report.py"
BASE_REF = "docker.io/nvidia/cuda:13.0.3-base-ubuntu24.04"
_RELEASED = dt.datetime(2026, 11, 2, 10, 12, 56, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Edit:
    """Text that a change replaces, everywhere it stands in one file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Change:
    """One commit to make a patch of.

    Attributes:
        name: the patch's name.
        subject, body: the commit's message.
        edits: what it does.
        author: as git writes it.
    """

    name: str
    subject: str
    edits: tuple[Edit, ...]
    body: str = "A stale count reads another request's state."
    author: str = "A Maintainer <maintainer@example.org>"

    def put_in(self, tree: dict[str, bytes]) -> dict[str, bytes]:
        """Return `tree` with the change made."""
        after = dict(tree)
        for edit in self.edits:
            content = after[edit.path]
            if edit.old.encode() not in content:
                raise AssertionError(f"{edit.old!r} is not in {edit.path}")
            after[edit.path] = content.replace(edit.old.encode(), edit.new.encode())
        return after


BOUNDS = Change(
    "state-index-bounds",
    "Keep a stale accepted count inside its row",
    (
        Edit(KERNELS, "column = count - 1\n", "column = max(count - 1, 0)\n"),
        Edit(WORKER, "offset = accepted - 1\n", "offset = max(accepted - 1, 0)\n"),
    ),
)
WARNING = Change(
    "kv-scale-warning",
    "Name the format when a KV cache runs on scale 1.0",
    (
        Edit(
            SCALES,
            '        logger.warning("Using KV cache scaling factor 1.0 for fp8_e4m3.")\n',
            "        from vllm.v1.scale_report import report\n\n"
            "        logger.warning(report(layer))\n",
        ),
    ),
    body="The text speaks of fp8_e4m3 whatever the format is.",
)
CLEAR = Change(
    "clear-null-block",
    "Leave the null block alone",
    (Edit(KERNELS, "in range(len(states)):\n", "in range(1, len(states)):\n"),),
    body="The null block is shared by all requests.",
    author="Zoë Müller <zoe@example.org>",
)
CHANGES = (BOUNDS, WARNING, CLEAR)
OVERLAY = {REPORT: b'def report(layer):\n    return f"{layer}: scale 1.0"\n'}


def write_tree(folder: Path, contents: dict[str, bytes]) -> None:
    """Write `contents` below `folder`."""
    for path, data in contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def mails(changes: tuple[Change, ...], tree: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """Return each change as a patch file, in the very form that `build.py export` writes."""
    return dict(_mails(changes, tuple(sorted((TREE if tree is None else tree).items()))))


@cache
def _mails(
    changes: tuple[Change, ...], tree: tuple[tuple[str, bytes], ...]
) -> tuple[tuple[str, bytes], ...]:
    with tempfile.TemporaryDirectory() as folder:
        git = scratch._init(Path(folder))
        state = dict(tree)
        write_tree(Path(folder), state)
        git.run("add", "--all", "--force")
        git.run("commit", "--quiet", "--message", "upstream")
        found = []
        for change in changes:
            state = change.put_in(state)
            write_tree(Path(folder), {edit.path: state[edit.path] for edit in change.edits})
            git.run(
                *("commit", "--quiet", "--all", "--author", change.author),
                *("--date", "2026-11-03T09:00:00+0100"),
                *("--message", change.subject, "--message", change.body),
            )
            found.append((change.name, git.run(*scratch._FORMAT, "HEAD")))
        return tuple(found)


def metadata(name: str = BOUNDS.name, /, **changed: object) -> bytes:
    """Return well-formed metadata of a patch as TOML, with some keys changed; None drops a key."""
    document: dict[str, object] = {
        "summary": f"What {name} does",
        "why": "A request answers with another one's text.",
        "area": "hardening",
        "origin": {"kind": "own"},
        "upstream": {"status": "pending"},
        "drop-when": [{"file": KERNELS, "symbol": f"fixed_{name.replace('-', '_')}"}],
        "tests": [f"tests/patched/test_{name.replace('-', '_')}.py::test_it"],
        "hardware": {"cpu": "verified", "sm90": "unverified", "sm120": "unverified"},
        "evidence": [
            {
                "hardware": "cpu",
                "what": "the test",
                "on": "a CPU, vLLM 1.2.3",
                "when": dt.date(2026, 11, 4),
            }
        ],
    }
    document |= {key.replace("_", "-"): value for key, value in changed.items()}
    return tomli_w.dumps({k: v for k, v in document.items() if v is not None}).encode()


def sdist(tree: dict[str, bytes] | None = None) -> bytes:
    """Return the sdist of a tree: gzip, one folder, upstream's own owner names."""
    contents = (TREE if tree is None else tree) | SDIST_ONLY
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(contents):
            member = tarfile.TarInfo(f"vllm-{VERSION}/{path}")
            member.size = len(contents[path])
            member.mode = 0o664
            member.uname = member.gname = "ubuntu"
            member.mtime = _RELEASED.timestamp()
            archive.addfile(member, io.BytesIO(contents[path]))
    return buffer.getvalue()


def _record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def wheel(
    platform: upstream.Platform = "linux/amd64", tree: dict[str, bytes] | None = None
) -> bytes:
    """Return the official wheel: deflated, tagged `linux` inside although its name says manylinux.

    So does the real one.
    """
    machine = "x86_64" if platform == "linux/amd64" else "aarch64"
    info = f"vllm-{VERSION}.dist-info"
    contents = (TREE if tree is None else tree) | WHEEL_ONLY
    contents = dict(sorted(contents.items())) | {
        f"{info}/licenses/LICENSE": b"Apache License, Version 2.0\n",
        f"{info}/METADATA": (
            f"Metadata-Version: 2.4\nName: vllm\nVersion: {VERSION}\n"
            "Summary: A tiny stand-in\nLicense-Expression: Apache-2.0\n"
            "License-File: LICENSE\nRequires-Python: <3.15,>=3.10\n\n# vLLM\n"
        ).encode(),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: setuptools (80.10.2)\nRoot-Is-Purelib: false\n"
            f"Tag: cp38-abi3-linux_{machine}\n\n"
        ).encode(),
        f"{info}/entry_points.txt": b"[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n",
        f"{info}/top_level.txt": b"vllm\n",
    }
    record = "".join(_record_line(path, data) for path, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            member = zipfile.ZipInfo(path, _RELEASED.timetuple()[:6])
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            archive.writestr(member, data)
    return buffer.getvalue()


def line_document(**changed: object) -> dict[str, object]:
    """Return the line's table in `upstream.lock`, with some keys changed; None drops a key."""
    dockerfile = SDIST_ONLY["docker/Dockerfile"]
    document: dict[str, object] = {
        "summary": "a tiny line for tests",
        "version": VERSION,
        "revision": 1,
        "tag": LINE,
        "commit-prefix": "0123456ab",
        "released": _RELEASED,
        "torch": "2.14.0",
        "flashinfer": "0.7.2.post1",
        "cuda": "13.0.3",
        "python": "3.12",
        "site-packages": "/usr/local/lib/python3.12/dist-packages",
        "cuda-archs": {"linux/amd64": "12.0", "linux/arm64": "12.0;12.1"},
        "sdist": {"name": SDIST_NAME, "sha256": sha256_bytes(sdist())},
        "wheels": {
            platform: {"name": name, "sha256": sha256_bytes(wheel(platform))}
            for platform, name in WHEEL_NAMES.items()
        },
        "dockerfile": {"path": "docker/Dockerfile", "sha256": sha256_bytes(dockerfile)},
        "image": {"ref": f"docker.io/vllm/vllm-openai:{LINE}"},
        "bases": {"FINAL_BASE_IMAGE": {"ref": BASE_REF}},
    }
    document |= {key.replace("_", "-"): value for key, value in changed.items()}
    return {key: value for key, value in document.items() if value is not None}


def upstream_lock(**changed: object) -> bytes:
    """Return `upstream.lock` with the one line, some keys of the line's table changed."""
    return tomli_w.dumps(
        {"schema": 1, "default": LINE, "lines": {LINE: line_document(**changed)}}
    ).encode()


@dataclass(frozen=True)
class Tiny:
    """What `make` wrote.

    Attributes:
        project: the project's folder.
        index: the folder with the sdist and the two official wheels, under their real names.
        tree: upstream's files, as the sdist has them.
    """

    project: Project
    index: Path
    tree: dict[str, bytes] = field(repr=False)

    @property
    def lock(self) -> upstream.UpstreamLock:
        """The upstream lock."""
        return upstream.load(self.project.upstream_lock)

    @property
    def line(self) -> upstream.Line:
        """The line."""
        return self.lock.lines[LINE]

    @property
    def series(self) -> series.Series:
        """The line's series."""
        return series.load(self.project, LINE)

    @property
    def pins(self) -> checksums.LineChecksums:
        """The line's digests."""
        return checksums.load(self.project.checksums_lock).line(LINE)

    @property
    def source(self) -> MemoryTree:
        """The release as a tree."""
        return MemoryTree(self.tree, SDIST_NAME)

    def relock(self) -> None:
        """Write `checksums.lock` anew."""
        derived = assemble.derive(self.line, self.series, self.source)
        lock = checksums.Checksums(schema=checksums.SCHEMA, lines={LINE: derived})
        self.project.checksums_lock.write_bytes(checksums.dump(lock))


def write_series(
    project: Project,
    changes: tuple[Change, ...] = CHANGES,
    tree: dict[str, bytes] | None = None,
    overlay: dict[str, bytes] | None = None,
) -> None:
    """Write a line's patches, metadata, series and overlay; the last patch owns the overlay."""
    overlay = OVERLAY if overlay is None else overlay
    folder = project.patches(LINE)
    folder.mkdir(parents=True, exist_ok=True)
    texts = mails(changes, tree)
    owner = WARNING.name if WARNING.name in texts else next(reversed(texts), None)
    for name, text in texts.items():
        (folder / f"{name}.patch").write_bytes(text)
        owned = sorted(overlay) if name == owner else []
        (folder / f"{name}.toml").write_bytes(metadata(name, overlay=owned))
    (folder / "series").write_text("# one fix a patch\n" + "".join(f"{n}\n" for n in texts))
    write_tree(project.overlay(LINE), overlay)


def make(folder: Path, changes: tuple[Change, ...] = CHANGES) -> Tiny:
    """Write the whole project into `folder`, and its downloads into `folder`'s sibling `index`."""
    project, index = Project(folder), folder.parent / f"{folder.name}-index"
    folder.mkdir(parents=True, exist_ok=True)
    project.upstream_lock.write_bytes(upstream_lock())
    write_series(project, changes)
    write_tree(index, {SDIST_NAME: sdist()})
    write_tree(index, {name: wheel(platform) for platform, name in WHEEL_NAMES.items()})
    tiny = Tiny(project, index, TREE | SDIST_ONLY)
    tiny.relock()
    return tiny
