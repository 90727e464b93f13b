"""A profile as the command line of `vllm serve`, by the flags of vLLM 0.33.0.

Every flag and variable that a profile gives is compared with the pinned release's own argument
parser and list of variables in tests/test_serve_arguments.py.
"""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

from serve.errors import ProfileError

if TYPE_CHECKING:
    from serve.profile import Flag, Model, Named, Profile

KEY_VARIABLE = "VLLM_API_KEY"
"""Where vLLM reads the API's key; it never stands on a command line."""


def arguments(profile: Profile, model: str, *, host: str, port: int, mtp: bool) -> tuple[str, ...]:
    """Return what follows `vllm serve`.

    Args:
        profile: what to serve.
        model: the checkpoint's folder, or its id on the hub.
        host: where the server itself listens, which in a container is not where people do.
        port: its TCP port there.
        mtp: whether the profile's drafting is on.
    """
    engine = profile.engine
    given: dict[str, Flag] = {
        "served-model-name": profile.model.served_name,
        "host": host,
        "port": port,
        "max-model-len": engine.context,
        "max-num-seqs": engine.sequences,
        "max-num-batched-tokens": engine.batched_tokens,
        "kv-cache-memory-bytes": profile.memory.kv_pin,
        "mamba-ssm-cache-dtype": engine.state_dtype,
        "enable-prefix-caching": True,
    }
    if engine.kv_dtype != "bfloat16":
        given["kv-cache-dtype"] = engine.kv_dtype
    if engine.tensor_parallel > 1:
        given["tensor-parallel-size"] = engine.tensor_parallel
    if engine.mtp and mtp:
        draft = {"method": "mtp", "num_speculative_tokens": engine.mtp}
        given["speculative-config"] = json.dumps(draft)
    found = [model]
    for name, value in (given | _of_model(profile.model) | profile.flags).items():
        if value is True:
            found.append(f"--{name}")
        elif value is not False:
            found += [f"--{name}", str(value)]
    return tuple(found)


def _of_model(model: Model) -> dict[str, Flag]:
    given: dict[str, Flag] = {}
    if model.source == "hub" and model.revision:
        given["revision"] = model.revision
    if model.tool_parser:
        given |= {"enable-auto-tool-choice": True, "tool-call-parser": model.tool_parser}
    if model.reasoning_parser:
        given["reasoning-parser"] = model.reasoning_parser
    if not model.vision:
        given["limit-mm-per-prompt"] = json.dumps({"image": 0, "video": 0})
    return given


def check(named: Named, *, key: bool) -> None:
    """Refuse a profile that contradicts itself, or that opens the API to others without a key.

    Raises:
        ProfileError: if it does.
    """
    profile = named.profile
    if not _loopback(profile.service.host) and not key:
        raise ProfileError(
            "the API would be open to everybody who can reach this machine",
            file=named.path,
            expected=f"a loopback address, or a key in {KEY_VARIABLE}",
            found=f"host = {profile.service.host}, no key",
            next_command=f"export {KEY_VARIABLE}=$(openssl rand -hex 24)",
        )
    if profile.engine.tensor_parallel != max(profile.hardware.gpus, 1):
        raise ProfileError(
            "the profile's cards and its tensor parallelism differ",
            file=named.path,
            expected=f"tensor-parallel = {max(profile.hardware.gpus, 1)}, as gpus",
            found=f"tensor-parallel = {profile.engine.tensor_parallel}",
            next_command=f"edit {named.path}",
        )
    doubled = sorted(set(profile.flags) & _OWN)
    if doubled:
        raise ProfileError(
            "a flag stands in the profile that the profile's other keys give",
            file=named.path,
            expected="each thing once",
            found=", ".join(doubled),
            next_command=f"edit {named.path}",
        )
    secret = sorted(n for n in (*profile.flags, *profile.environment) if _secret(n))
    if secret:
        raise ProfileError(
            "a profile may hold no secret",
            file=named.path,
            expected="secrets in the environment alone",
            found=", ".join(secret),
            next_command=f"remove it, and export {KEY_VARIABLE} or HF_TOKEN",
        )


_OWN = frozenset(
    {
        "served-model-name", "host", "port", "max-model-len", "max-num-seqs",
        "max-num-batched-tokens", "kv-cache-memory-bytes", "mamba-ssm-cache-dtype",
        "kv-cache-dtype", "revision", "tensor-parallel-size", "tool-call-parser",
        "reasoning-parser", "speculative-config",
    }
)  # fmt: skip


def _secret(name: str) -> bool:
    plain = name.lower().replace("_", "-")
    return plain in {"api-key", "hf-token", "vllm-api-key"} or plain.endswith(
        ("-secret", "-password")
    )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
