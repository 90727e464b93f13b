"""Profiles: read, checked, and rendered to a command line and to a compose file."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from imagebuild.errors import UnpinnedError, UsageError
from serve import arguments, artefact, models, profile
from serve.artefact import Image
from serve.composing import compose
from serve.composing.compose import Mounts
from serve.errors import ModelError, ProfileError
from serve.gates import report
from tests.support.serving import ROOT, serve

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGE = Image("registry.test/vllm@sha256:" + "a" * 64, "sha256:" + "a" * 64)
NAMES = profile.names()


def changed(name: str, part: str | None = None, **values: object) -> profile.Named:
    found = profile.load(name)
    of = found.profile
    if part is None:
        of = msgspec.structs.replace(of, **values)
    else:
        of = msgspec.structs.replace(
            of, **{part: msgspec.structs.replace(getattr(of, part), **values)}
        )
    return profile.Named(found.name, found.path, found.sha256, of)


def line(named: profile.Named, *, mtp: bool = True) -> str:
    found = arguments.arguments(named.profile, "MODEL", host="127.0.0.1", port=8000, mtp=mtp)
    return " ".join(found)


def document(named: profile.Named) -> dict[str, Any]:
    return compose.document(named, IMAGE, Mounts(hub=Path("/h")), gpus=("GPU-1",), mtp=True)


def test_the_profiles_that_people_expect_are_there() -> None:
    assert set(NAMES) >= {
        "qwen3.8-27b-nvfp4", "qwen3.5-27b-nvfp4", "qwen3.5-35b-a3b-nvfp4", "tp2", "spark",
        "tiny-cpu",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_is_whole_and_opens_nothing(name: str) -> None:
    named = profile.load(name)
    arguments.check(named, key=False)
    assert named.profile.service.host == "127.0.0.1"
    assert len(named.sha256) == 64


def test_the_first_profile_is_what_the_public_results_were_made_with() -> None:
    found = line(profile.load("qwen3.8-27b-nvfp4"))
    for part in (
        "--kv-cache-dtype nvfp4", "--mamba-ssm-cache-dtype bfloat16", "--max-model-len 262144",
        "--kv-cache-memory-bytes 8589934592", "--max-num-seqs 8", "--enable-prefix-caching",
        '--speculative-config {"method": "mtp", "num_speculative_tokens": 3}',
        "--enable-auto-tool-choice --tool-call-parser qwen3_xml", "--reasoning-parser qwen3",
    ):  # fmt: skip
        assert part in found


@pytest.mark.parametrize("path", sorted((ROOT / "docs/examples/serve").glob("*.toml")), ids=str)
def test_every_example_is_a_profile(path: Path) -> None:
    arguments.check(profile.load(str(path)), key=False)


def test_the_example_report_is_of_its_profile_and_passed_on_a_gpu() -> None:
    folder = ROOT / "docs/examples/serve"
    found = report.load(folder / "h200-verify.json")
    assert found.inputs.profile_sha256 == profile.load(str(folder / "tiny-sm90.toml")).sha256
    assert found.inputs.device == "NVIDIA H200"
    assert (len(found.of_status("passed")), found.of_status("failed")) == (20, [])
    assert report.markdown(found) == (folder / "h200-verify.md").read_text()
    assert report.statement(found) == json.loads((folder / "h200-verify.intoto.json").read_text())


def test_mtp_can_be_left_out() -> None:
    assert "speculative" not in line(profile.load("qwen3.8-27b-nvfp4"), mtp=False)


def test_a_pinned_revision_is_given_to_the_server() -> None:
    named = changed("qwen3.8-27b-nvfp4", "model", revision="1" * 40)
    assert f"--revision {'1' * 40}" in line(named)


def test_flags_are_given_as_they_are() -> None:
    named = changed("tiny-cpu", flags={"enforce-eager": True, "seed": 7, "async-scheduling": False})
    found = line(named)
    assert "--enforce-eager --seed 7" in found
    assert "async-scheduling" not in found


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.test"])  # noqa: S104
def test_an_open_address_needs_a_key(host: str) -> None:
    named = changed("qwen3.8-27b-nvfp4", "service", host=host)
    with pytest.raises(ProfileError) as refused:
        arguments.check(named, key=False)
    assert "VLLM_API_KEY" in str(refused.value.next_command)
    arguments.check(named, key=True)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda: changed("tiny-cpu", flags={"port": 1}), "stands in the profile"),
        (lambda: changed("tiny-cpu", flags={"api-key": "x"}), "no secret"),
        (lambda: changed("tiny-cpu", environment={"HF_TOKEN": "x"}), "no secret"),
        (lambda: changed("tp2", "engine", tensor_parallel=1), "differ"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(
    change: Callable[[], profile.Named], part: str
) -> None:
    with pytest.raises(ProfileError, match=part):
        arguments.check(change(), key=True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("schema = 9\n", "newer schema"),
        ("schema = 1\nsumary = 'x'\n", "form"),
        ("schema = [\n", "not TOML"),
    ],
)
def test_a_file_that_is_no_profile_is_an_error(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=found):
        profile.load(str(path))


@pytest.mark.parametrize("name", NAMES)
def test_the_compose_file_shows_the_server_only_what_it_needs(name: str) -> None:
    named = profile.load(name)
    found = document(named)
    service = found["services"]["vllm"]
    assert service["image"] == IMAGE.ref
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "device_ids": ["GPU-1"], "capabilities": ["gpu"]}
    ]
    assert all(volume.endswith(":ro") for volume in service["volumes"][1:])
    assert yaml.safe_load(compose.render(found)) == found


def test_no_secret_stands_in_the_compose_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    text = compose.render(document(profile.load("qwen3.8-27b-nvfp4")))
    assert "s3cret" not in text
    assert "- VLLM_API_KEY\n" in text


def test_another_image_has_another_volume_for_its_kernels() -> None:
    other = Image("registry.test/vllm@sha256:" + "b" * 64, "sha256:" + "b" * 64)
    assert compose.cache_volume(IMAGE) != compose.cache_volume(other)


def test_an_ipv6_address_is_written_as_compose_wants_it() -> None:
    named = changed("qwen3.8-27b-nvfp4", "service", host="::1")
    assert document(named)["services"]["vllm"]["ports"] == ["[::1]:8000:8000"]


@pytest.mark.docker
@pytest.mark.parametrize("name", NAMES)
def test_compose_itself_reads_every_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(compose.render(document(profile.load(name))))
    command = ["docker", "compose", "--file", str(file), "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    service = json.loads(done.stdout)["services"]["vllm"]
    assert service["ports"][0]["host_ip"] == "127.0.0.1"
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["GPU-1"]


@pytest.mark.parametrize("ref", ["vllm:latest", "r/vllm@sha256:abc", "r/v@sha512:" + "a" * 64, ""])
def test_an_image_without_its_digest_is_refused(ref: str) -> None:
    with pytest.raises(UsageError, match="digest"):
        artefact.image(ref)


def test_without_a_published_image_the_next_command_names_two_ways() -> None:
    with pytest.raises(UnpinnedError) as refused:
        artefact.published(profile.load("qwen3.8-27b-nvfp4"))
    assert "--image" in str(refused.value.next_command)
    assert "--wheel" in str(refused.value.next_command)


def test_an_interpreter_without_the_patched_vllm_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        artefact.environment(Path(shutil.which("python3") or "/usr/bin/python3"))
    assert "No module named 'vllm" in str(refused.value.found)
    with pytest.raises(UsageError, match="does not have the patched vLLM"):
        artefact.environment(Path("/nonexistent/python"))


def test_an_unpinned_model_is_not_downloaded() -> None:
    with pytest.raises(UnpinnedError) as refused:
        models.fetch(profile.load("qwen3.8-27b-nvfp4"))
    assert refused.value.next_command == "python -m serve pin qwen3.8-27b-nvfp4 --write"


def test_a_model_of_another_geometry_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert len(models.fetch(profile.load("tiny-cpu")).revision) == 64
    named = changed("tiny-cpu", "shape", head_dim=128)
    with pytest.raises(ModelError) as refused:
        models.fetch(named)
    assert refused.value.found == "head_dim 256"
    template = changed("tiny-cpu", "model", chat_template="0" * 64)
    with pytest.raises(ModelError, match="chat template"):
        models.fetch(template)


def test_the_command_lists_the_profiles() -> None:
    done = serve("profiles", "--json")
    assert sorted(json.loads(done.stdout)) == list(NAMES)


def test_an_unknown_profile_is_an_error_with_its_own_code() -> None:
    done = serve("start", "qwen9")
    assert done.returncode == ProfileError.exit_code
    assert "tiny-cpu" in done.stderr
    assert "next:     python -m serve profiles" in done.stderr


def test_the_scripts_that_people_expect_pass_their_arguments_on() -> None:
    for name in ("start", "status", "verify", "stop"):
        script = ROOT / "serve" / f"{name}.sh"
        assert f'exec python3 -m serve {name} "$@"' in script.read_text()
        assert script.stat().st_mode & 0o111


def test_the_scripts_are_clean_under_shellcheck() -> None:
    scripts = [str(path) for path in sorted((ROOT / "serve").glob("*.sh"))]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
