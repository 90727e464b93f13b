"""The compose file of a profile, by the Compose Specification.

No secret stands in it: variables that hold one are named without a value, so that compose takes
them from the environment of whoever starts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from serve.arguments import KEY_VARIABLE, arguments

if TYPE_CHECKING:
    from pathlib import Path

    from serve.artefact import Image
    from serve.profile import Named

PROJECT = "vllm-sm120"
PORT = 8000
"""Where the server listens within the container."""
HUB = "/root/.cache/huggingface"
MODEL = "/model"
_LABEL = "io.github.vllm-sm120."
_PROBE = (
    f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/health', timeout=5).read()"
)


@dataclass(frozen=True)
class Mounts:
    """What of this machine the container sees.

    Attributes:
        hub: the Hugging Face cache, for a model of the hub.
        model: the folder of a generated model.
    """

    hub: Path | None = None
    model: Path | None = None


def cache_volume(image: Image) -> str:
    """Return the volume for compiled kernels, which hold for one image only."""
    return f"{PROJECT}-cache-{image.digest.removeprefix('sha256:')[:12]}"


def document(
    named: Named, image: Image, mounts: Mounts, *, gpus: tuple[str, ...], mtp: bool
) -> dict[str, Any]:
    """Return the compose file as a document.

    Args:
        named: the profile.
        image: what serves it.
        mounts: where the model is.
        gpus: the cards by UUID; no other is seen by the container.
        mtp: whether the profile's drafting is on.
    """
    profile = named.profile
    model = MODEL if mounts.model is not None else profile.model.id
    given = arguments(profile, model, host="0.0.0.0", port=PORT, mtp=mtp)  # noqa: S104 # in there
    volumes = [f"{cache_volume(image)}:/root/.cache/vllm-sm120"]
    if mounts.hub is not None:
        volumes.append(f"{mounts.hub}:{HUB}:ro")
    if mounts.model is not None:
        volumes.append(f"{mounts.model}:{MODEL}:ro")
    service: dict[str, Any] = {
        "image": image.ref,
        "entrypoint": ["vllm", "serve"],
        "command": list(given),
        "environment": [
            *(f"{name}={value}" for name, value in _environment(named).items()),
            KEY_VARIABLE,
        ],
        "ports": [f"{_published(profile.service.host)}:{profile.service.port}:{PORT}"],
        "volumes": volumes,
        "ipc": "private",
        "shm_size": "8gb",
        "init": True,
        "restart": "no",
        "stop_grace_period": "30s",
        "security_opt": ["no-new-privileges:true"],
        "ulimits": {"memlock": -1, "stack": 67108864},
        "logging": {"driver": "json-file", "options": {"max-size": "50m", "max-file": "3"}},
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _PROBE],
            "interval": "10s",
            "timeout": "6s",
            "retries": 3,
            "start_period": "30m",
        },
        "labels": {
            f"{_LABEL}profile": named.name,
            f"{_LABEL}profile.sha256": named.sha256,
        },
    }
    if gpus:
        device = {"driver": "nvidia", "device_ids": list(gpus), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return {
        "name": PROJECT,
        "services": {"vllm": service},
        "volumes": {cache_volume(image): {"name": cache_volume(image)}},
    }


def _published(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _environment(named: Named) -> dict[str, str]:
    cache = "/root/.cache/vllm-sm120"
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "FLASHINFER_WORKSPACE_BASE": cache,
        "TRITON_CACHE_DIR": f"{cache}/triton",
        **named.profile.environment,
    }


def render(document: dict[str, Any]) -> str:
    """Return a compose file's text."""
    text: str = yaml.safe_dump(document, sort_keys=False, width=100)
    return f"# Written by `python -m serve start`; change the profile, not this file.\n{text}"
