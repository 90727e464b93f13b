"""Safetensors headers: every tensor's name, dtype and shape, without a byte of its data.

The format: eight bytes, little-endian, the header's length; the header, a JSON object; the data.
https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imagebuild.errors import ArchiveError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"
# The safetensors library refuses longer headers, too.
MAX_HEADER = 100_000_000
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint.

    Attributes:
        dtype: as safetensors spells it, such as BF16, U8 or F8_E4M3.
        shape: its dimensions.
        file: the file that holds it.
    """

    dtype: str
    shape: tuple[int, ...]
    file: str


def _damaged(path: object, summary: str, expected: str, found: str) -> ArchiveError:
    return ArchiveError(
        summary,
        file=path,
        expected=expected,
        found=found,
        next_command="download this file again, and compare its size with the one at its source",
    )


def parse(header: bytes, file: str, data_size: int | None) -> dict[str, Tensor]:
    """Return the tensors that a header names.

    Args:
        header: the JSON text.
        file: the file's name, for messages and in the result.
        data_size: how many bytes of data follow in the file; None if that is not known.

    Raises:
        ArchiveError: if it is not a header, or names data that the file does not hold.
    """
    try:
        entries = json.loads(header)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        expected = "a JSON object after the length"
        raise _damaged(file, "the header is not JSON", expected, str(error)) from error
    if not isinstance(entries, dict):
        found = type(entries).__name__
        raise _damaged(file, "the header is no JSON object", "one entry a tensor", found)
    tensors = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
            end = int(entry["data_offsets"][1])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            expected = "dtype, shape and data_offsets"
            raise _damaged(
                file, f"tensor {name} is not described", expected, repr(entry)
            ) from error
        if data_size is not None and end > data_size:
            expected = f"{end} bytes of data, since {name} ends there"
            raise _damaged(file, "the file is truncated", expected, f"{data_size} bytes")
        tensors[name] = Tensor(dtype, shape, file)
    return tensors


def read_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one safetensors file.

    Raises:
        SourceError: if it is not there.
        ArchiveError: if it is truncated or damaged.
    """
    if not path.is_file():
        raise SourceError(
            "a file of the checkpoint is missing",
            file=path,
            expected="a safetensors file that the index names",
            found="nothing",
            next_command=f"download {path.name} into {path.parent}",
        )
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            expected = f"at least {_LENGTH.size} bytes"
            raise _damaged(path, "the file is truncated", expected, f"{size} bytes")
        (length,) = _LENGTH.unpack(start)
        if length > min(MAX_HEADER, size - _LENGTH.size):
            expected = f"a header of {length} bytes, and at most {MAX_HEADER}"
            raise _damaged(path, "the header is truncated", expected, f"a file of {size} bytes")
        header = file.read(length)
    return parse(header, path.name, size - _LENGTH.size - length)


def files_of_index(text: bytes, path: object) -> list[str]:
    """Return the files that an index names, in its order.

    Raises:
        ArchiveError: if it is not an index.
    """
    try:
        weights: Any = json.loads(text)["weight_map"]
        files = list(dict.fromkeys(str(file) for file in weights.values()))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        expected = "a JSON object with weight_map"
        raise _damaged(path, "the index cannot be read", expected, repr(error)) from error
    outside = [file for file in files if "/" in file or "\\" in file or file in ("", "..")]
    if outside:
        expected = "names of files beside the index"
        raise _damaged(path, "the index names a file elsewhere", expected, outside[0])
    return files


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint on this machine.

    Raises:
        SourceError: if the index, or a file that it names, is missing.
        ArchiveError: if one of them is damaged.
    """
    index = folder / INDEX
    if index.is_file():
        files = [folder / name for name in files_of_index(index.read_bytes(), index)]
    else:
        files = sorted(folder.glob("*.safetensors"))
        if len(files) != 1:
            raise SourceError(
                "the checkpoint has no index",
                file=index,
                expected=f"{INDEX}, or a single safetensors file",
                found=f"{len(files)} safetensors files without an index",
                next_command=f"download {INDEX} into {folder}",
            )
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_file(file)
    return tensors
