"""What already stands in an output folder and is still right.

A record beside the artifacts says, for each, from which inputs it was made and what its files
looked like right after (size, inode, modification and change time). Same inputs and untouched
files: nothing to do, and nothing to read again. Anything else is made again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from imagebuild import files
from imagebuild.fetch.cache import Fingerprint, fingerprint
from imagebuild.release import Output

NAME = ".build-state.json"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One artifact.

    Attributes:
        key: the digest of everything it was made from.
        files: each of its files, relative to the folder.
        output: its entry in `release.json`.
    """

    key: str
    files: dict[str, Fingerprint]
    output: Output


class State(msgspec.Struct):
    """The record of one output folder.

    Attributes:
        entries: by artifact name.
    """

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)

    def current(self, folder: Path, name: str, key: str) -> Output | None:
        """Return an artifact's entry if it was made from `key` and nobody touched its files."""
        entry = self.entries.get(name)
        if entry is None or entry.key != key:
            return None
        if any(fingerprint(folder / path) != seen for path, seen in entry.files.items()):
            return None
        return entry.output

    def remember(
        self, folder: Path, name: str, key: str, paths: list[Path], output: Output
    ) -> None:
        """Note an artifact that was just finished."""
        seen = {path: fingerprint(path) for path in paths}
        found = {
            path.relative_to(folder).as_posix(): print_ for path, print_ in seen.items() if print_
        }
        self.entries[name] = Entry(key, found, output)


def load(folder: Path) -> State:
    """Return the folder's record; an empty one if there is none that can be read."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=State)
    except (OSError, msgspec.DecodeError):
        return State()


def save(folder: Path, state: State) -> None:
    """Write the folder's record.

    Raises:
        StorageError: if the folder cannot be written.
    """
    files.write_atomic(folder / NAME, msgspec.json.encode(state))


def tool_digest() -> str:
    """Return one digest over this package's own code: other code may make other bytes."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key(*parts: object) -> str:
    """Return one digest over values that JSON can hold."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()
