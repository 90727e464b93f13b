"""Profiles: what to serve, on which hardware, with which memory, as small typed TOML files.

A profile names a release line, never an image: the image's digest comes from the release file. A
pin that nobody has resolved yet (a model's revision) is absent, never a placeholder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from imagebuild import schema
from imagebuild.errors import LockError
from imagebuild.schema import Commit, Hash, Text, Value
from imagebuild.upstream import LineName, Platform
from serve.errors import ProfileError
from serve.planning.shape import Shape

SCHEMA = 1
WHAT = "the profile"
FOLDER = Path(__file__).parent / "profiles"

Count = Annotated[int, msgspec.Meta(ge=1)]
Bytes = Annotated[int, msgspec.Meta(ge=0)]
Capability = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]\Z")]
ProfileName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9.-]*\Z")]
Flag = bool | int | float | str


class Model(Value, frozen=True, kw_only=True):
    """The checkpoint.

    Attributes:
        source: `hub` for a repository of the Hugging Face hub, `generated` for one that this
            project makes itself from fixed seeds.
        id: OWNER/NAME on the hub, or the generated model's name.
        revision: the commit on the hub; absent until `python -m serve pin PROFILE --write`.
        served_name: the name under which the API offers it.
        chat_template: SHA-256 of the chat template that the checkpoint ships, where pinned.
        tool_parser, reasoning_parser: vLLM's names of them, where the model has the ability.
        vision: whether the profile serves images.
    """

    source: Literal["hub", "generated"] = "hub"
    id: Text
    revision: Commit | None = None
    served_name: Text
    chat_template: Hash | None = None
    tool_parser: Text | None = None
    reasoning_parser: Text | None = None
    vision: bool = False


class Hardware(Value, frozen=True, kw_only=True):
    """Where the profile may run.

    Attributes:
        device: what vLLM runs on.
        platforms: the machines' platforms, as the locks name them.
        capabilities: the compute capabilities, such as 12.0; empty for a CPU.
        gpus: how many of them, all alike.
        vram: bytes that one card must have; 0 for a CPU or a machine with unified memory.
    """

    device: Literal["cuda", "cpu"] = "cuda"
    platforms: tuple[Platform, ...]
    capabilities: tuple[Capability, ...] = ()
    gpus: Annotated[int, msgspec.Meta(ge=0)] = 1
    vram: Bytes = 0


class Memory(Value, frozen=True, kw_only=True):
    """Bytes on each card; the preflight adds them up, the planner explains them.

    Attributes:
        weights: the checkpoint's tensors, all cards together; absent until `python -m serve pin
            PROFILE --write` has read the headers of the pinned revision. Estimated until then.
        kv_pin: vLLM's `--kv-cache-memory-bytes`: attention blocks and GDN states together.
        graphs: CUDA graphs, activations and workspace at the profile's sizes: an estimate.
    """

    weights: Annotated[int, msgspec.Meta(ge=1)] | None = None
    kv_pin: Bytes
    graphs: Bytes


class Engine(Value, frozen=True, kw_only=True):
    """The sizes and types that the planner knows, rendered as vLLM's arguments.

    Attributes:
        context: tokens of one request at most, prompt and answer.
        sequences: requests at the same time.
        kv_dtype: `--kv-cache-dtype`.
        state_dtype: `--mamba-ssm-cache-dtype`, the type of the GDN state.
        batched_tokens: `--max-num-batched-tokens`: prompt tokens of one step at most.
        mtp: drafted tokens for each step; 0 for none.
        tensor_parallel: cards that share one model.
    """

    context: Count
    sequences: Count
    kv_dtype: Literal["bfloat16", "fp8", "nvfp4"]
    state_dtype: Literal["bfloat16", "float32"]
    batched_tokens: Count = 4096
    mtp: Annotated[int, msgspec.Meta(ge=0)] = 0
    tensor_parallel: Count = 1


class Service(Value, frozen=True, kw_only=True):
    """Where the API listens.

    Attributes:
        host: the address; anything but a loopback address needs an API key.
        port: the TCP port.
    """

    host: Text = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000


class Gates(Value, frozen=True, kw_only=True):
    """What `verify` asks of a server of this profile.

    Attributes:
        needle: prompt lengths in tokens; `verify` runs the first, `--full` all.
        long_decode: tokens that the long answer may take.
        acceptance: the least share of drafted tokens that must be accepted, over the gates' text.
    """

    needle: tuple[Count, ...] = (32768,)
    long_decode: Count = 4096
    acceptance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1


class Profile(Value, frozen=True, kw_only=True):
    """One profile.

    Attributes:
        schema: the format's number.
        summary: one sentence.
        line: the release line that serves it.
        shape: the model's geometry; the downloaded config.json must tell the same.
        flags: further arguments of `vllm serve`, without the dashes; true for a bare flag.
        environment: further environment variables of the server; never a secret.
    """

    schema: int
    summary: Text
    line: LineName
    model: Model
    hardware: Hardware
    memory: Memory
    engine: Engine
    shape: Shape
    service: Service = msgspec.field(default_factory=Service)
    gates: Gates = msgspec.field(default_factory=Gates)
    flags: dict[str, Flag] = msgspec.field(default_factory=dict)
    environment: dict[str, str] = msgspec.field(default_factory=dict)


class Named(msgspec.Struct, frozen=True):
    """A profile as it was read.

    Attributes:
        name: the file's name without `.toml`.
        path: the file.
        sha256: the digest of the file's bytes; reports are bound to it.
        profile: its content.
    """

    name: str
    path: Path
    sha256: str
    profile: Profile


def names() -> tuple[str, ...]:
    """Return the names of the profiles that come with the project, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(name: str) -> Named:
    """Return the profile called `name`, or the one in the file `name` if it ends in `.toml`.

    Raises:
        ProfileError: if there is none, or it does not have the form that it must have.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise ProfileError(
            f"there is no profile {name}",
            file=path,
            expected=f"one of {', '.join(names())}, or a file that ends in .toml",
            found="nothing",
            next_command="python -m serve profiles",
        )
    try:
        data = schema.read_bytes(path, WHAT)
        document = schema.parse_toml(data, path, WHAT)
        schema.check_schema(document, SCHEMA, path, WHAT)
        profile = schema.convert(document, Profile, path, WHAT)
    except LockError as error:
        raise ProfileError(
            error.summary,
            file=error.file,
            expected=error.expected,
            found=error.found,
            next_command=error.next_command,
        ) from error
    return Named(path.stem, path, hashlib.sha256(data).hexdigest(), profile)
