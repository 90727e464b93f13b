"""`build.py checkpoint`: reading headers alone, its table, and what bad input gets."""

from __future__ import annotations

import contextlib
import http.server
import json
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuild.checkpoint import headers, report, source
from imagebuild.checkpoint.headers import INDEX
from imagebuild.checkpoint.verdict import LM_HEAD, MTP, RESOLVER
from imagebuild.errors import ArchiveError, BuildError, SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

PATCHES = frozenset({RESOLVER, MTP, LM_HEAD})
LAYER = "model.language_model.layers."
PLAIN = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
NORMS = ("mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding")


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """A file whose data are as long as the header says, and empty."""
    sizes = {"BF16": 2, "U8": 1, "F8_E4M3": 1, "F32": 4}
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, count = end, sizes[dtype]
        for size in shape:
            count *= size
        end += count
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def packed(module: str) -> dict[str, tuple[str, list[int]]]:
    return {
        f"{module}.weight": ("U8", [32, 16]),
        f"{module}.weight_scale": ("F8_E4M3", [32, 2]),
        f"{module}.weight_scale_2": ("F32", []),
        f"{module}.input_scale": ("F32", []),
    }


def plain(module: str) -> dict[str, tuple[str, list[int]]]:
    return {f"{module}.weight": ("BF16", [32, 32])}


def config(excluded: list[str], **more: object) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {"mtp_num_hidden_layers": 0, **more},
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "ignore": excluded,
        },
    }


def tensors() -> dict[str, tuple[str, list[int]]]:
    found = plain("lm_head")
    for layer in (0, 1, 2):
        for name in PLAIN:
            found |= plain(f"{LAYER}{layer}.linear_attn.{name}")
        found |= packed(f"{LAYER}{layer}.mlp.gate_proj") | packed(f"{LAYER}{layer}.mlp.up_proj")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint whose list names linear attention by wildcards for its four inputs."""
    made = config(["lm_head", *(f"*linear_attn.{name}*" for name in PLAIN)])
    (tmp_path / "config.json").write_text(json.dumps(made))
    write_safetensors(tmp_path / "model.safetensors", tensors())
    return tmp_path


def made(folder: Path, line: str = "v0.33.0") -> report.Report:
    return report.make(source.read(str(folder), None), line, PATCHES)


def fails(kind: type[BuildError], folder: Path) -> BuildError:
    """The error that reading ends in; each says file, expected, found and the next command."""
    with pytest.raises(kind) as error:
        made(folder)
    assert all((error.value.file, error.value.expected, error.value.found))
    assert error.value.next_command
    return error.value


def test_the_table_says_what_stock_and_patched_vllm_build(folder: Path) -> None:
    told = made(folder)
    assert (told.stock.value, told.patched.value) == ("crash", "loads")
    table = report.table(told)
    line = next(
        line for line in table.splitlines() if "layers.[0-2].linear_attn.in_proj_ba" in line
    )
    assert line.split()[1:] == ["excluded", "BF16", "quantized", "BF16", "crash", "->", "loads"]
    assert "stock v0.33.0: crash; patched: loads" in table


def test_json_names_every_module(folder: Path) -> None:
    facts = json.loads(json.dumps(report.facts(made(folder))))
    by_name = {entry["module"]: entry for entry in facts["modules"]}
    gate = by_name["language_model.model.layers.2.mlp.gate_up_proj"]
    assert gate["checkpoint"] == [f"{LAYER}2.mlp.gate_proj", f"{LAYER}2.mlp.up_proj"]
    assert gate["patched"] == {"builds": "quantized", "verdict": "loads"}


def test_a_drafter_without_tensors_is_told(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(config(["*in_proj*"], mtp_num_hidden_layers=1)))
    told = made(folder)
    assert told.stock_drafter.value != told.patched_drafter.value == "clear error"
    assert "mtp.fc.weight" in report.table(told)
    assert set(told.missing) >= {f"{norm}.weight" for norm in NORMS}


def test_shards_are_read_through_the_index(folder: Path) -> None:
    whole = tensors()
    (folder / "model.safetensors").unlink()
    names = sorted(whole)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        write_safetensors(folder / file, {name: whole[name] for name in part})
    weights = {name: file for file, part in parts.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"weight_map": weights}))
    assert made(folder).patched.value == "loads"
    (folder / "b.safetensors").unlink()
    assert "b.safetensors" in (fails(SourceError, folder).file or "")


def test_a_missing_index_is_named(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    write_safetensors(folder / "model-00002-of-00002.safetensors", plain("lm_head"))
    assert (fails(SourceError, folder).file or "").endswith(INDEX)


def test_a_folder_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    assert fails(SourceError, tmp_path).found == "nothing"


@pytest.mark.parametrize("keep", [0, 5, 8, 40])
def test_a_truncated_header_is_an_error(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "truncated" in fails(ArchiveError, folder).summary


def test_truncated_data_are_an_error(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "truncated" in fails(ArchiveError, folder).summary


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"[]", b'{"a": {"dtype": "BF16"}}', b'{"a": 1}', b"{" * 50_000]
)
def test_a_damaged_header_is_an_error(folder: Path, text: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    fails(ArchiveError, folder)


def test_a_header_of_absurd_length_is_an_error(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}")
    fails(ArchiveError, folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../b"}}'])
def test_a_damaged_index_is_an_error(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    fails(ArchiveError, folder)


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_a_damaged_config_is_an_error(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    fails(ArchiveError, folder)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"quantization_config": {"quant_method": "awq"}},
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NEW"}},
        {"quantization_config": {"quant_method": "fp8", "ignored_layers": "lm_head"}},
        {"quantization_config": []},
    ],
)
def test_what_is_not_known_is_not_guessed(folder: Path, change: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config([]) | change))
    fails(UsageError, folder)


def test_a_line_with_other_rules_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"v0\.16\.0"):
        made(folder, "v0.16.0")


def test_a_folder_has_no_revision(folder: Path) -> None:
    with pytest.raises(UsageError, match="no revisions"):
        source.read(str(folder), "main")


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "one", "a/b/c"])
def test_a_name_of_nothing_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match="no such checkpoint"):
        source.read(name, None)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_an_error(text: bytes) -> None:
    with contextlib.suppress(ArchiveError):
        assert all("__metadata__" not in name for name in headers.parse(text, "file", None))


def test_neither_torch_nor_vllm_nor_the_hub_is_imported(folder: Path) -> None:
    code = (
        "import sys; from imagebuild.checkpoint import source, report\n"
        "report.make(source.read(sys.argv[1], None), 'v0.33.0', frozenset())\n"
        "print(sorted({'torch', 'vllm', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[1]
    run = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class _Hub(http.server.BaseHTTPRequestHandler):
    """A hub that knows the repository own/model at `main`, and answers as the real one."""

    root: Path

    def _answer(self, status: int, body: bytes = b"", **more: str) -> None:
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        commit = "0123456789" * 4
        path = self.path.partition("?")[0]
        known = ("/main", f"/{commit}")
        if not path.startswith(("/api/models/own/model", "/own/model/resolve/")):
            self._answer(404, X_Error_Code="RepoNotFound")
        elif path.startswith("/api/"):
            revision = path.partition("/revision")[2] or "/main"
            if revision not in known:
                self._answer(404, X_Error_Code="RevisionNotFound")
                return
            files = [{"rfilename": file.name} for file in sorted(self.root.iterdir())]
            answer = {"id": "own/model", "sha": commit, "siblings": files}
            self._answer(200, json.dumps(answer).encode(), Content_Type="application/json")
        else:
            data = (self.root / path.rpartition("/")[2]).read_bytes()
            more = {"X_Repo_Commit": commit, "ETag": '"1"'}
            asked = self.headers.get("Range")
            if asked:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                part = data[int(first) : int(last) + 1]
                more["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
                self._answer(206, part, **more)
            else:
                self._answer(200, data, **more)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def hub(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    handler = type("Hub", (_Hub,), {"root": folder})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = tmp_path_factory.mktemp("hub")
    yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home)}
    server.shutdown()
    server.server_close()


def ask(hub: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Read from the hub in a process of its own, since its client takes the address at import."""
    code = (
        "import sys\n"
        "from imagebuild.checkpoint import source, report\n"
        "from imagebuild.errors import BuildError\n"
        "try:\n"
        "    read = source.read(sys.argv[1], (sys.argv[2:] or [None])[0])\n"
        "except BuildError as error:\n"
        "    print(error.kind, error.diagnostics())\n"
        "else:\n"
        "    print(report.table(report.make(read, 'v0.33.0', frozenset())))\n"
    )
    root = Path(__file__).parents[1]
    run = [sys.executable, "-c", code, *arguments]
    environ = {"PATH": "", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", **hub}
    return subprocess.run(run, cwd=root, env=environ, capture_output=True, text=True, check=True)


def test_a_repository_is_read_by_its_headers(hub: dict[str, str]) -> None:
    done = ask(hub, "own/model")
    assert "own/model at 0123456789" in done.stdout
    assert "stock v0.33.0: crash" in done.stdout


def test_a_revision_is_looked_for_in_this_repository(hub: dict[str, str]) -> None:
    done = ask(hub, "own/model", "elsewhere")
    assert done.stdout.startswith("source")
    assert "own/model has no revision elsewhere" in done.stdout


def test_an_unknown_repository_is_an_error(hub: dict[str, str]) -> None:
    assert "no repository own/other" in ask(hub, "own/other").stdout


def test_a_file_missing_from_the_repository_is_named(hub: dict[str, str], folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "own/model has no config.json" in ask(hub, "own/model").stdout
