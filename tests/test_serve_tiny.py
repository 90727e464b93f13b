"""The tiny checkpoint: the same bytes, and a tokenizer that reads and writes what it should."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer

from imagebuild.checkpoint import source
from serve.gates import needle
from serve.tiny import checkpoint, scripts, vocabulary, weights

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_it_is_the_same_bytes_every_time(folder: Path, tmp_path: Path) -> None:
    again = checkpoint.write(tmp_path)
    for path in folder.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_its_tensors_are_read_by_who_reads_checkpoints(folder: Path) -> None:
    found = source.read_folder(folder)
    table = found.tensors["model.language_model.embed_tokens.weight"]
    assert table.shape == (found.config["text_config"]["vocab_size"], 512)
    assert table.dtype == "BF16"


def test_every_token_has_its_own_id_and_text(folder: Path) -> None:
    made = vocabulary.build()
    assert sorted(made.ids.values()) == list(range(len(made.ids)))
    written = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(written) == len(made.ids)


def test_a_script_is_written_piece_by_piece_and_reads_as_it_should(tokenizer: Tokenizer) -> None:
    made = vocabulary.build()
    close = made.ids[vocabulary.CLOSE]
    marks = {made.ids[mark] for mark in vocabulary.MARKS}
    for number, script in enumerate(scripts.scripts()):
        if script.answer == scripts.KEY:
            continue
        tokens = [made.first[number][0]]
        while tokens[-1] != close:
            before = tokens[-1]
            tokens.append(made.carried[tokens[-2]] if before in marks else made.following[before])
        assert tokenizer.decode(tokens[:-1], skip_special_tokens=False) == script.answer


def test_no_text_is_read_as_a_piece_of_a_script(tokenizer: Tokenizer) -> None:
    made = vocabulary.build()
    pieces = set(made.following) - {made.ids[text] for text in made.ids if len(text) == 1}
    read = set(tokenizer.encode(scripts.scripts()[9].answer).ids)
    words = {made.ids[script.word] for script in scripts.scripts() if script.word}
    keys = {
        made.key(slot, vowel)
        for slot in range(len(scripts.SLOTS))
        for vowel in range(len(scripts.VOWELS))
    }
    assert read & pieces <= words | keys


def test_a_passkey_is_read_as_its_slots(tokenizer: Tokenizer) -> None:
    made = vocabulary.build()
    key = needle.passkey(1)
    wanted = [made.ids[key[at : at + 2]] for at in range(0, len(key), 2)]
    assert tokenizer.encode(key).ids == wanted
    assert (needle.CONSONANTS, needle.VOWELS) == (scripts.SLOTS, scripts.VOWELS)


def test_the_weights_are_pinned() -> None:
    """A change of the scripts or of the construction shows here, and expires reports."""
    made = vocabulary.build()
    data = checkpoint.safetensors(weights.tensors(made))
    assert hashlib.sha256(data).hexdigest() == (
        "b886ceb2f1b4d3726e4837f820c05fe75758bf9c430a33c06c1dfc1ca349ef2a"
    )


def test_a_script_that_repeats_another_is_refused() -> None:
    made = vocabulary.Vocabulary(ids={"a": 0, "ab": 1})
    with pytest.raises(IndexError):
        made.pieces("ab")
