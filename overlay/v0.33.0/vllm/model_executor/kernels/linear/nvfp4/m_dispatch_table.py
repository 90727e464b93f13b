# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which NVFP4 GEMM serves which number of rows M: the table and its checks.

A table is a JSON file::

    {
      "schema": 1,
      "origin": "measured",  # or "public": figures of others, for any such card
      "source": "where the numbers come from",
      "device": {"name": "NVIDIA ...", "capabilities": ["12.0"]},
      "versions": {"vllm": "...", "driver": "...", ...},
      "rules": [
        {"base": "FlashInferCutlassNvFp4LinearKernel", "n": 34816, "k": 5120,
         "steps": [["w4a16", 56]]}
      ],
      "measurements": [{"n": ..., "k": ..., "m": ..., "kernel": ..., "us": ...}]
    }

A rule is for one FP4 GEMM (``base``) and one weight shape, or with ``null`` for
both sizes, for every shape that has no rule of its own. A step is a kernel and
the largest M that it serves; beyond the last step comes the base. ``w4a16`` is
the fastest weight-only kernel that the machine has, by name
``flashinfer_native``, else ``triton``.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
ORIGINS = ("measured", "public")
# The most rows that each kernel takes; None where there is no limit.
MAX_ROWS: dict[str, int | None] = {
    "w4a16": 64,
    "triton": 64,
    "flashinfer_native": None,
}
CENSUS = "python -m vllm.model_executor.kernels.linear.nvfp4.nvfp4_census"
DEFAULT_TABLE = Path(__file__).with_name("m_dispatch_sm12x.json")


class TableError(ValueError):
    """A dispatch table cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Step:
    """One kernel and the largest M that it serves."""

    kernel: str
    max_m: int


@dataclass(frozen=True)
class Rule:
    """The steps for one base kernel and one weight shape, or for every shape."""

    base: str
    n: int | None
    k: int | None
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Machine:
    """What a table must have been measured on to be used."""

    name: str
    capability: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Table:
    """A checked table."""

    path: Path
    origin: str
    source: str
    device_name: str | None
    capabilities: tuple[str, ...]
    versions: dict[str, str]
    rules: tuple[Rule, ...]
    measurements: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def rule(self, base: str, n: int, k: int) -> Rule | None:
        """Return the rule for this shape, else the one for every shape."""
        for wanted in ((n, k), (None, None)):
            for rule in self.rules:
                if rule.base == base and (rule.n, rule.k) == wanted:
                    return rule
        return None

    def check_machine(self, machine: Machine) -> None:
        """Refuse a table of another card or of other versions.

        Raises:
            TableError: with every difference, and the command that measures anew.

        """
        differences = []
        if machine.capability not in self.capabilities:
            differences.append(
                f"compute capability {machine.capability}, table is for "
                f"{', '.join(self.capabilities)}"
            )
        if self.device_name is not None and machine.name != self.device_name:
            differences.append(
                f"card {machine.name!r}, table is for {self.device_name!r}"
            )
        for name, version in sorted(self.versions.items()):
            found = machine.versions.get(name, "none")
            if found != version:
                differences.append(f"{name} {found}, table is for {version}")
        if differences:
            raise TableError(
                f"NVFP4 dispatch table {self.path} is not for this machine: "
                f"{'; '.join(differences)}. Measure it here with `{CENSUS}`, or "
                "set nvfp4_m_dispatch to 'auto' or 'off'."
            )


def _keys(where: str, value: Any, required: set[str], optional: set[str]) -> None:
    if not isinstance(value, dict):
        raise TableError(f"{where}: expected an object, found {type(value).__name__}")
    missing, unknown = required - set(value), set(value) - required - optional
    if missing or unknown:
        raise TableError(
            f"{where}: missing keys {sorted(missing)}, unknown keys {sorted(unknown)}"
        )


def _size(where: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value <= 0):
        raise TableError(f"{where}: expected a positive integer or null, got {value!r}")
    return value


def _steps(where: str, value: Any) -> tuple[Step, ...]:
    if not isinstance(value, list):
        raise TableError(f"{where}: expected a list, found {type(value).__name__}")
    steps: list[Step] = []
    for item in value:
        if (
            not isinstance(item, list)
            or len(item) != 2
            or not isinstance(item[0], str)
            or type(item[1]) is not int
        ):
            raise TableError(f"{where}: expected [kernel, largest M], found {item!r}")
        kernel, max_m = item
        if kernel not in MAX_ROWS:
            raise TableError(
                f"{where}: unknown kernel {kernel!r}, expected one of "
                f"{sorted(MAX_ROWS)}"
            )
        limit = MAX_ROWS[kernel]
        if max_m < 1 or (limit is not None and max_m > limit):
            raise TableError(
                f"{where}: {kernel} takes M from 1 to {limit or 'any'}, the cutoff "
                f"is {max_m}"
            )
        if steps and max_m <= steps[-1].max_m:
            raise TableError(f"{where}: cutoffs must rise, found {max_m}")
        steps.append(Step(kernel, max_m))
    return tuple(steps)


def parse_table(text: str, path: Path) -> Table:
    """Return the table that `text` holds; `path` is for messages.

    Raises:
        TableError: on anything that is not of the documented form.

    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise TableError(f"NVFP4 dispatch table {path}: {error}") from error
    where = f"NVFP4 dispatch table {path}"
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise TableError(f"{where}: expected schema {SCHEMA}, found {schema!r}")
    _keys(
        where,
        data,
        {"schema", "origin", "source", "device", "versions", "rules"},
        {"measurements"},
    )
    if data["origin"] not in ORIGINS:
        raise TableError(
            f"{where}: expected origin {' or '.join(ORIGINS)}, found {data['origin']!r}"
        )
    device = data["device"]
    _keys(f"{where}: device", device, {"name", "capabilities"}, set())
    if data["origin"] == "measured" and (not device["name"] or not data["versions"]):
        raise TableError(f"{where}: a measured table names its card and versions")
    rules = []
    for index, rule in enumerate(data["rules"]):
        place = f"{where}: rule {index}"
        _keys(place, rule, {"base", "n", "k", "steps"}, set())
        n, k = _size(place, rule["n"]), _size(place, rule["k"])
        if (n is None) != (k is None):
            raise TableError(f"{place}: n and k are both sizes or both null")
        rules.append(Rule(rule["base"], n, k, _steps(place, rule["steps"])))
    return Table(
        path=path,
        origin=data["origin"],
        source=data["source"],
        device_name=device["name"],
        capabilities=tuple(device["capabilities"]),
        versions=dict(data["versions"]),
        rules=tuple(rules),
        measurements=tuple(data.get("measurements", ())),
    )


def load_table(path: Path) -> Table:
    """Read and check a table.

    Raises:
        TableError: if the file is missing or not of the documented form.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"NVFP4 dispatch table {path}: {error}") from error
    return parse_table(text, path)


def to_json(table: Table) -> str:
    """Return the file's text; parse_table of it gives the same table."""
    data = {
        "schema": SCHEMA,
        "origin": table.origin,
        "source": table.source,
        "device": {
            "name": table.device_name,
            "capabilities": list(table.capabilities),
        },
        "versions": table.versions,
        "rules": [
            {
                "base": rule.base,
                "n": rule.n,
                "k": rule.k,
                "steps": [[step.kernel, step.max_m] for step in rule.steps],
            }
            for rule in table.rules
        ],
        "measurements": list(table.measurements),
    }
    return json.dumps(data, indent=1) + "\n"
