"""A reference for numeric fidelity: what a BF16 server expects at each token of a fixed text."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imagebuild.files import write_atomic
from imagebuild.schema import Text
from serve.errors import GateError

if TYPE_CHECKING:
    from serve.gates.client import Client

SCHEMA = 1
TOP = 20
TEXT = Path(__file__).parent / "texts" / "fidelity.txt"


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The document.

    Attributes:
        schema: the format's number.
        model: the model's id.
        revision: its commit, or the digest of a generated model.
        text: the SHA-256 of the fixed text.
        server: the version of the vLLM that made it, and the types it computed with.
        tokens: the text's tokens.
        expected: at each token but the first, log-probability by token, of the likeliest.
    """

    schema: int
    model: Text
    revision: Text
    text: Text
    server: Text
    tokens: tuple[int, ...]
    expected: tuple[dict[int, float], ...]


def text_digest() -> str:
    """Return the SHA-256 of the fixed text."""
    return hashlib.sha256(TEXT.read_bytes()).hexdigest()


def make(client: Client, model: str, revision: str, types: str) -> Reference:
    """Return the reference that a server makes.

    Raises:
        AnswerError: if it gives no log-probabilities.
    """
    tokens = client.tokenize(TEXT.read_text(encoding="utf-8"))
    rows = client.prompt_logprobs(tokens, TOP)
    server = f"vLLM {client.version()}, {types}"
    return Reference(SCHEMA, model, revision, text_digest(), server, tuple(tokens), tuple(rows))


def write(reference: Reference, path: Path) -> None:
    """Write a reference.

    Raises:
        StorageError: if the file cannot be written.
    """
    write_atomic(path, msgspec.json.format(msgspec.json.encode(reference), indent=1) + b"\n")


def load(path: Path) -> Reference:
    """Return the reference in a file.

    Raises:
        GateError: if it is not one.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Reference)
    except (OSError, msgspec.DecodeError) as error:
        raise GateError(
            "the reference cannot be read",
            file=path,
            expected="a file that --make-reference wrote",
            found=str(error),
            next_command="python -m serve verify --make-reference FILE, on a BF16 server",
        ) from error
    if found.schema != SCHEMA or found.text != text_digest():
        raise GateError(
            "the reference is of another text or format",
            file=path,
            expected=f"schema {SCHEMA}, text {text_digest()}",
            found=f"schema {found.schema}, text {found.text}",
            next_command="python -m serve verify --make-reference FILE, on a BF16 server",
        )
    return found


def distance(expected: dict[int, float], found: dict[int, float]) -> float:
    """Return the Kullback-Leibler distance of two next-token distributions, in nats.

    What lies outside the expected tokens counts as one further token on both sides; a token that
    the found ones do not name counts as the least likely of them.
    """
    floor = min(found.values())
    total = 0.0
    for token, logprob in expected.items():
        total += math.exp(logprob) * (logprob - found.get(token, floor))
    rest = 1 - sum(math.exp(value) for value in expected.values())
    other = 1 - sum(math.exp(found.get(token, floor)) for token in expected)
    least = 1e-6
    if rest > least:
        total += rest * math.log(rest / max(other, least))
    return max(total, 0.0)
