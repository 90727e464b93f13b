"""The tiny model's tokens: bytes, words that it knows, passkeys, and the pieces of its scripts.

Text is encoded by byte-level BPE, whose merges make the known words and the passkeys. A script's
pieces are in the vocabulary, too, but no merge makes one, so that only the model's own answers hold
them. Each piece is another string, and therefore says which piece is next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from serve.tiny.scripts import KEY, SLOTS, VOWELS, scripts

BYTES = 256
PIECE = 4
"""Characters of a script's piece, at least."""

END, USER, CLOSE, THINK, ANSWER = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>",
)  # fmt: skip
CALL, CALLED = "<tool_call>", "</tool_call>"
SPECIAL = (
    END, USER, CLOSE, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
MARKS = (CALL, CALLED)
"""What stands in scripts several times."""
ADDED = (THINK, ANSWER, *MARKS)
"""Tokens of their own that are shown in the text, as Qwen's tokenizers have them."""


def byte_characters() -> dict[int, str]:
    """Return the character by which byte-level BPE shows each byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(BYTES) if byte not in table]
    return table | {byte: chr(BYTES + place) for place, byte in enumerate(others)}


@dataclass
class Vocabulary:
    """All tokens, and what follows what.

    Attributes:
        ids: the id of each token by its text.
        merges: the BPE merges, as pairs of texts.
        following: the token that follows a token in the scripts.
        carried: the token that follows the one after a token, which does not know it itself.
        first: the first token of each script's answer, and of its thought.
        asks: the slot of the passkey that must follow a token.
    """

    ids: dict[str, int] = field(default_factory=dict)
    merges: list[tuple[str, str]] = field(default_factory=list)
    following: dict[int, int] = field(default_factory=dict)
    carried: dict[int, int] = field(default_factory=dict)
    first: list[tuple[int, int]] = field(default_factory=list)
    asks: dict[int, int] = field(default_factory=dict)

    def token(self, text: str) -> int:
        """Return the id of a text, which is added if it is new."""
        return self.ids.setdefault(text, len(self.ids))

    def word(self, text: str) -> int:
        """Add a word that BPE makes of its bytes, and return its id."""
        for end in range(2, len(text) + 1):
            pair = (text[: end - 1], text[end - 1])
            if pair not in self.merges:
                self.merges.append(pair)
            self.token(text[:end])
        return self.ids[text]

    def key(self, slot: int, vowel: int) -> int:
        """Return the token of a passkey's slot with a vowel."""
        return self.ids[SLOTS[slot] + VOWELS[vowel]]

    def pieces(self, text: str) -> list[int]:
        """Return a script's text as tokens: the marks, and pieces, each another string."""
        found: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, MARKS))})", text):
            found += [self.ids[part]] if part in MARKS else self._cut(part)
        return found

    def _cut(self, text: str) -> list[int]:
        texts: list[str] = []
        while text:
            size = len(text) if len(text) < 2 * PIECE else PIECE
            while size < len(text) and text[:size] in self.ids:
                size += 1
            while text[:size] in self.ids:  # the end of another part: one longer piece
                last = texts.pop()
                del self.ids[last]
                text, size = last + text, len(last) + size
            texts.append(text[:size])
            self.token(text[:size])
            text = text[size:]
        return [self.ids[text] for text in texts]

    def chain(self, tokens: list[int]) -> None:
        """Let each token follow the one before; a token before a mark carries what is after it."""
        marks = {self.ids[mark] for mark in MARKS}
        for place, token in enumerate(tokens[:-1]):
            if token in marks:
                self.carried[tokens[place - 1]] = tokens[place + 1]
            else:
                self.following[token] = tokens[place + 1]


def build() -> Vocabulary:
    """Return the vocabulary of the scripts; the same every time."""
    made = Vocabulary()
    for byte in range(BYTES):
        made.token(chr(byte))
    for script in scripts():
        if script.word:
            made.word(script.word)
    for slot in SLOTS:
        for vowel in VOWELS:
            made.word(slot + vowel)
    for text in (*SPECIAL, *ADDED):
        made.token(text)
    close = made.ids[CLOSE]
    for script in scripts():
        thought = made.pieces(script.thought)
        made.chain([*thought, made.ids[ANSWER]])
        if script.answer == KEY:
            made.first.append((_asked(made, close), thought[0]))
        else:
            answer = made.pieces(script.answer)
            made.chain([*answer, close])
            made.first.append((answer[0], thought[0]))
    _babble(made, close)
    return made


def _asked(made: Vocabulary, close: int) -> int:
    """Make the answer that is a passkey, and return its first token."""
    opening = made.token("The key is ")
    made.asks[opening] = 0
    for vowel in range(len(VOWELS)):
        for slot in range(len(SLOTS) - 1):
            made.asks[made.key(slot, vowel)] = slot + 1
        made.following[made.key(len(SLOTS) - 1, vowel)] = close
    return opening


def _babble(made: Vocabulary, close: int) -> None:
    """What follows a turn's end where a benchmark goes on: the numbers, again and again."""
    numbers = made.pieces("".join(f" {number}," for number in range(100, 164)))
    made.chain([close, *numbers, numbers[0]])
    made.following[made.ids[END]] = numbers[0]


def shown(text: str) -> str:
    """Return a text of bytes, one for each character, as byte-level BPE writes it."""
    table = byte_characters()
    return "".join(table[ord(character)] for character in text)
