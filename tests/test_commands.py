"""check, edit, export, lock and verify on a tiny project, as processes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from imagebuild import errors, upstream
from imagebuild.digest import sha256_bytes
from imagebuild.fetch.git import Git
from imagebuild.patching import checksums
from tests.support import tiny as tinies
from tests.support.baseimage import BaseImage
from tests.support.command import Command
from tests.support.scripted_registry import Answer, Request, ScriptedRegistry
from tests.support.tiny import KERNELS, LINE, LOCAL_VERSION, WORKER, Tiny

if TYPE_CHECKING:
    from pathlib import Path

SITE = "/usr/local/lib/python3.12/dist-packages"  # as the tiny line pins it


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return tinies.make(tmp_path / "project")


@pytest.fixture
def command(tiny: Tiny, tmp_path: Path) -> Command:
    return Command.on(tiny, tmp_path)


def _checkout(tiny: Tiny, folder: Path, **changed: bytes | None) -> Path:
    """Write upstream's tree into `folder`, with some files (`a__b` for `a/b`) changed or gone."""
    contents: dict[str, bytes | None] = {**tiny.tree, **changed}
    tinies.write_tree(folder, {path: data for path, data in contents.items() if data is not None})
    return folder


# check -------------------------------------------------------------------------------------------


def test_check_says_applies_for_every_patch_on_its_own_release(command: Command) -> None:
    document = command.json("check")
    outcomes = [patch["outcome"] for patch in document["lines"][0]["patches"]]
    assert outcomes == ["applies"] * 3
    assert command.run("check").returncode == 0


def test_check_writes_nothing_outside_the_cache(command: Command, tiny: Tiny) -> None:
    before = sorted(tiny.project.root.rglob("*"))
    command.ok("check")
    after = [p for p in sorted(tiny.project.root.rglob("*")) if "__pycache__" not in p.parts]
    assert after == before


def test_check_of_drifted_code_shows_the_hunk_and_the_lines_now_there(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    content = tiny.tree[WORKER].replace(b"offset = accepted - 1", b"offset = accepted + 7")
    folder = _checkout(tiny, tmp_path / "other", **{WORKER: content})
    done = command.run("check", "--tree", str(folder))
    assert done.returncode == errors.DriftedError.exit_code
    assert "-        offset = accepted - 1" in done.stdout
    assert "offset = accepted + 7" in done.stdout.partition("has there now:")[2]
    assert f"next: python build.py edit {LINE}" in done.stdout


def test_check_of_a_file_that_moved_says_where_its_content_went(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    moved = {WORKER: None, "vllm/v2/elsewhere.py": tiny.tree[WORKER]}
    folder = _checkout(tiny, tmp_path / "other", **moved)
    done = command.run("check", "--tree", str(folder))
    assert done.returncode == errors.TargetGoneError.exit_code
    assert "vllm/v2/elsewhere.py:" in done.stdout


def test_check_of_a_half_patched_tree_is_partial(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    half = tiny.tree[WORKER].replace(b"offset = accepted - 1", b"offset = max(accepted - 1, 0)")
    folder = _checkout(tiny, tmp_path / "other", **{WORKER: half})
    done = command.run("check", "--tree", str(folder))
    assert done.returncode == errors.PartialError.exit_code
    assert f"{WORKER} is patched" in done.stdout


def test_check_of_a_tree_that_no_longer_needs_the_patch_says_upstreamed(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    name = "state-index-bounds"
    path = tiny.project.patches(LINE) / f"{name}.toml"
    check = {"file": KERNELS, "contains": "def bounded_column("}
    path.write_bytes(tinies.metadata(name, drop_when=[check]))
    tiny.relock()
    fixed = b"def bounded_column(count):\n    return max(count - 1, 0)\n"
    folder = _checkout(tiny, tmp_path / "other", **{KERNELS: fixed})
    done = command.run("check", "--tree", str(folder))
    assert done.returncode == errors.UpstreamedError.exit_code
    assert f"upstreamed       {name}: drop-when holds" in done.stdout


def test_a_drop_when_that_holds_on_its_own_line_stops_check_lock_and_build(
    command: Command, tiny: Tiny
) -> None:
    name = "state-index-bounds"
    path = tiny.project.patches(LINE) / f"{name}.toml"
    path.write_bytes(tinies.metadata(name, drop_when=[{"file": KERNELS, "contains": "def "}]))
    assert command.json("lock", "--write")["error"] == "upstreamed"
    lock = tiny.project.checksums_lock
    old = next(digest for file, digest in tiny.pins.patches.items() if file == f"{name}.toml")
    lock.write_text(lock.read_text().replace(old, sha256_bytes(path.read_bytes())))
    assert command.run("check").returncode == errors.UpstreamedError.exit_code
    assert command.json()["error"] == "upstreamed"


def test_check_of_something_that_is_no_tree_is_an_error(command: Command, tmp_path: Path) -> None:
    assert command.json("check", "--tree", str(tmp_path / "nowhere"))["error"] == "source"


def test_check_against_a_release_that_the_index_lacks_is_an_error(command: Command) -> None:
    facts = command.json("check", "--release", "9.9.9")
    assert (facts["error"], facts["exit_code"]) == ("source", 13)


def test_check_against_another_release_of_the_index(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    page = tmp_path / "simple" / "vllm"
    other = tinies.sdist({**tiny.tree, "vllm/new.py": b"x = 1\n"})
    (page / "vllm-1.2.4.tar.gz").write_bytes(other)
    link = f'<a href="vllm-1.2.4.tar.gz#sha256={sha256_bytes(other)}">vllm-1.2.4.tar.gz</a>'
    index = page / "index.html"
    index.write_text(index.read_text().replace("</body>", f"{link}</body>"))
    document = command.json("check", "--release", "1.2.4")
    assert document["lines"][0]["exit_code"] == 0


# edit and export ---------------------------------------------------------------------------------


def test_export_of_an_untouched_scratch_repository_changes_nothing(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    before = {p: p.read_bytes() for p in tiny.project.root.rglob("*") if p.is_file()}
    scratch = str(tmp_path / "scratch")
    command.ok("edit", LINE, "--dir", scratch)
    assert "nothing has changed" in command.ok("export", LINE, "--dir", scratch)
    command.ok("export", LINE, "--dir", scratch, "--check")
    after = {p: p.read_bytes() for p in tiny.project.root.rglob("*") if p.is_file()}
    assert {p: d for p, d in after.items() if "__pycache__" not in p.parts} == before


def test_a_repaired_patch_is_written_back_with_its_checksums(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    command.ok("edit", LINE, "--dir", str(scratch))
    git = Git(scratch)
    file = scratch / KERNELS
    file.write_bytes(file.read_bytes().replace(b"range(1, len(states))", b"range(2, len(states))"))
    git.run("commit", "--quiet", "--all", "--amend", "--no-edit")
    assert command.run("export", LINE, "--dir", str(scratch), "--check").returncode == 24
    assert "written: clear-null-block" in command.ok("export", LINE, "--dir", str(scratch))
    patch = tiny.project.patches(LINE) / "clear-null-block.patch"
    assert b"+" in patch.read_bytes()
    assert b"range(2, len(states))" in patch.read_bytes()
    assert checksums.load(tiny.project.checksums_lock).line(LINE).patches[patch.name] == (
        sha256_bytes(patch.read_bytes())
    )
    command.ok("check")


def test_a_new_commit_needs_its_metadata_before_anything_is_written(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    command.ok("edit", LINE, "--dir", str(scratch))
    file = scratch / "vllm" / "version.py"
    file.write_bytes(file.read_bytes() + b"# more\n")
    Git(scratch).run(
        "commit", "--quiet", "--all", "-m", "Say more of the version", "-m", "Nobody knew it."
    )
    before = {p: p.read_bytes() for p in tiny.project.patches(LINE).iterdir()}
    facts = command.json("export", LINE, "--dir", str(scratch))
    assert facts["error"] == "lock"
    assert facts["file"].endswith("say-more-of-the-version.toml")
    assert {p: p.read_bytes() for p in tiny.project.patches(LINE).iterdir()} == before
    meta = tinies.metadata("say-more-of-the-version")
    (tiny.project.patches(LINE) / "say-more-of-the-version.toml").write_bytes(meta)
    command.ok("export", LINE, "--dir", str(scratch))
    assert command.json("check")["lines"][0]["patches"][-1]["name"] == "say-more-of-the-version"


def test_export_leaves_overlay_files_alone_that_the_scratch_repository_did_not_change(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    command.ok("edit", LINE, "--dir", str(scratch))
    meanwhile = tiny.project.overlay(LINE) / "vllm" / "v1" / "meanwhile.py"
    meanwhile.write_bytes(b"x = 1\n")
    path = tiny.project.patches(LINE) / "clear-null-block.toml"
    path.write_bytes(tinies.metadata("clear-null-block", overlay=["vllm/v1/meanwhile.py"]))
    file = scratch / KERNELS
    file.write_bytes(file.read_bytes().replace(b"range(1, len(states))", b"range(2, len(states))"))
    Git(scratch).run("commit", "--quiet", "--all", "--amend", "--no-edit")
    command.ok("export", LINE, "--dir", str(scratch))
    assert meanwhile.read_bytes() == b"x = 1\n"
    command.ok("check")


def test_export_takes_out_an_overlay_file_that_the_overlay_commit_lost(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    command.ok("edit", LINE, "--dir", str(scratch))
    git = Git(scratch)
    first = git.text("rev-list", "--reverse", "upstream..HEAD").split()[0]
    rest = git.text("rev-list", "--reverse", f"{first}..HEAD").split()
    git.run("reset", "--quiet", "--hard", "upstream")
    git.run("commit", "--quiet", "--allow-empty", "-m", "Overlay files")
    git.run("cherry-pick", *rest)
    (tiny.project.patches(LINE) / "kv-scale-warning.toml").write_bytes(
        tinies.metadata("kv-scale-warning")
    )
    command.ok("export", LINE, "--dir", str(scratch))
    assert not (tiny.project.overlay(LINE) / tinies.REPORT).exists()
    command.ok("check")


def test_edit_does_not_overwrite_a_scratch_repository(command: Command, tmp_path: Path) -> None:
    scratch = str(tmp_path / "scratch")
    command.ok("edit", LINE, "--dir", scratch)
    facts = command.json("edit", LINE, "--dir", scratch)
    assert facts["error"] == "usage"
    assert "export" in facts["next"]


# lock --------------------------------------------------------------------------------------------


def test_lock_finds_nothing_different_where_nothing_is(command: Command, tiny: Tiny) -> None:
    before = tiny.project.upstream_lock.read_bytes(), tiny.project.checksums_lock.read_bytes()
    document = command.json("lock", "--offline")
    assert document == command.json("lock", "--offline")
    command.ok("check")
    done = command.run("lock", "--offline", "--write")
    assert done.returncode == 0, done.stderr
    assert (
        tiny.project.upstream_lock.read_bytes(),
        tiny.project.checksums_lock.read_bytes(),
    ) == before


def test_lock_shows_changed_checksums_and_writes_them_only_when_told(
    command: Command, tiny: Tiny
) -> None:
    command.ok("check")
    path = tiny.project.patches(LINE) / "state-index-bounds.toml"
    path.write_bytes(tinies.metadata("state-index-bounds", summary="Said better"))
    before = tiny.project.checksums_lock.read_bytes()
    text = command.ok("lock", "--offline")
    assert "checksums: patches.state-index-bounds.toml" in text
    assert "not written; --write takes this over" in text
    assert tiny.project.checksums_lock.read_bytes() == before
    assert command.json("build", "--offline")["error"] == "checksum"
    command.ok("lock", "--offline", "--write")
    command.ok("check", "--offline")


def _pin_missing(tiny: Tiny) -> None:
    text = tinies.upstream_lock().decode()
    assert '"linux/arm64"' in text
    document = tinies.line_document()
    wheels = dict(document["wheels"])  # type: ignore[call-overload]
    wheels.pop("linux/arm64")
    tiny.project.upstream_lock.write_bytes(b"# Kept.\n" + tinies.upstream_lock(wheels=wheels))


def test_lock_takes_over_what_the_index_says_and_keeps_comments(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    _pin_missing(tiny)
    page = tmp_path / "simple" / "vllm"
    links = [
        f'<a href="{f.name}#sha256={sha256_bytes(f.read_bytes())}">{f.name}</a>'
        for f in sorted(tiny.index.iterdir())
    ]
    (page / "index.html").write_text(f"<html><body>{''.join(links)}</body></html>")
    command.extra = {"GIT_SSH_COMMAND": "false", "https_proxy": "http://127.0.0.1:9"}
    document = command.json("lock", "--write")
    keys = [pin["key"] for pin in document["lines"][LINE]["pins"]]
    assert ["wheels", "linux/arm64", "sha256"] in keys
    assert set(document["lines"][LINE]["unresolved"]) == {
        "commit",
        "image",
        "bases.FINAL_BASE_IMAGE",
    }
    text = tiny.project.upstream_lock.read_text()
    assert text.startswith("# Kept.\n")
    wheel = upstream.load(tiny.project.upstream_lock).lines[LINE].wheel("linux/arm64")
    assert wheel.sha256 == sha256_bytes((tiny.index / wheel.name).read_bytes())


def test_lock_refuses_a_pinned_file_that_its_source_no_longer_confirms(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    page = tmp_path / "simple" / "vllm"
    name = tinies.SDIST_NAME
    link = f'<a href="{name}#sha256={"0" * 64}">{name}</a>'
    (page / "index.html").write_text(f"<html><body>{link}</body></html>")
    before = tiny.project.upstream_lock.read_bytes()
    facts = command.json("lock", "--write")
    assert facts["error"] == "checksum"
    assert "0" * 64 in facts["found"]
    assert tiny.project.upstream_lock.read_bytes() == before


def test_lock_resolves_an_images_tag_to_digests(
    command: Command, tiny: Tiny, tmp_path: Path
) -> None:
    base = BaseImage(tmp_path / "base", site=SITE)

    def script(request: Request) -> Answer:
        assert request.path.endswith(f"/manifests/{LINE}")
        kind = "application/vnd.oci.image.index.v1+json"
        return Answer(200, base.get(base.index), {"Content-Type": kind})

    with ScriptedRegistry(script) as registry:
        pin = {"ref": f"{registry.host}/vllm/vllm-openai:{LINE}"}
        tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(image=pin))
        command.extra = {"https_proxy": "http://127.0.0.1:9"}
        command.ok("lock", "--write")
    image = upstream.load(tiny.project.upstream_lock).lines[LINE].image
    assert image is not None
    assert image.digest == f"sha256:{base.index}"
    assert image.platforms == {p: f"sha256:{d}" for p, d in base.manifests.items()}


# verify ------------------------------------------------------------------------------------------


@pytest.fixture
def pinned(tiny: Tiny, tmp_path: Path) -> BaseImage:
    """A stand-in for the official image, pinned in the lock."""
    base = BaseImage(tmp_path / "base", site=SITE)
    pin = {"ref": f"docker.io/vllm/vllm-openai:{LINE}", "digest": f"sha256:{base.index}"}
    tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(image=pin))
    return base


def test_verify_accepts_what_build_made(command: Command, tiny: Tiny, pinned: BaseImage) -> None:
    base = ("--base", str(pinned.root))
    command.ok(*base, "--export")
    wheel = next(tiny.project.dist.glob("*.whl"))
    assert {c["verdict"] for c in command.json("verify", str(wheel))["checks"]} == {"ok"}
    layout = tiny.project.dist / f"image-{LINE}-linux-amd64"
    checks = command.json("verify", str(layout), *base)["checks"]
    assert {c["verdict"] for c in checks} == {"ok"}, checks


def test_verify_refuses_a_wheel_with_one_changed_byte(command: Command, tiny: Tiny) -> None:
    command.ok("--target", "wheel")
    wheel = next(tiny.project.dist.glob("*.whl"))
    data = wheel.read_bytes()
    at = data.index(b"max(count - 1, 0)")
    wheel.write_bytes(data[:at] + b"min" + data[at + 3 :])
    document = command.json("verify", str(wheel))
    assert not document["ok"]
    done = command.run("verify", str(wheel))
    assert done.returncode == errors.VerifyError.exit_code
    assert "BAD" in done.stdout
    assert "do not use it" in done.stderr


def test_verify_refuses_an_image_on_another_base(
    command: Command, tiny: Tiny, pinned: BaseImage, tmp_path: Path
) -> None:
    other = BaseImage(tmp_path / "other", history=False, site=SITE)
    pin = {"ref": f"docker.io/vllm/vllm-openai:{LINE}", "digest": f"sha256:{other.index}"}
    right = tiny.project.upstream_lock.read_bytes()
    tiny.project.upstream_lock.write_bytes(tinies.upstream_lock(image=pin))
    command.ok("--target", "image", "--base", str(other.root))
    tiny.project.upstream_lock.write_bytes(right)
    layout = tiny.project.dist / f"image-{LINE}-linux-amd64"
    done = command.run("verify", str(layout), "--base", str(pinned.root))
    assert done.returncode == errors.VerifyError.exit_code


def test_verify_says_what_it_could_not_check(
    command: Command, tiny: Tiny, pinned: BaseImage
) -> None:
    command.ok("--target", "image", "--base", str(pinned.root))
    layout = tiny.project.dist / f"image-{LINE}-linux-amd64"
    shutil.rmtree(command.home)
    command.index = "http://127.0.0.1:9/simple"
    document = command.json("verify", str(layout), "--offline")
    assert document["ok"], document
    open_ = {check["name"] for check in document["checks"] if check["verdict"] == "not checked"}
    assert "the base's layers" in open_
    assert len(open_) > 1


def test_verify_of_nothing_is_an_error(command: Command, tmp_path: Path) -> None:
    assert command.json("verify", str(tmp_path / "nothing"))["error"] == "source"


def test_a_wheel_of_no_line_needs_the_line_by_name(command: Command, tiny: Tiny) -> None:
    official = next(tiny.index.glob("*x86_64.whl"))
    facts = command.json("verify", str(official))
    assert (facts["error"], facts["expected"]) == ("usage", LOCAL_VERSION)
    assert not command.json("verify", str(official), "--line", LINE)["ok"]
