"""The language of the gate's model: sixteen counters, each with its own step, told far away.

A prompt tells each counter's step once, at its start, in any order. Then comes filler, a quote, and
one round: each counter's first value. From there the counters are read out round after round, each
higher by its step, modulo 16. To say the next token one needs the counter's value of sixteen
tokens ago, which the recurrent state of a Gated DeltaNet layer holds and every round overwrites,
and its step, which attention must find far back. Nothing here needs more than the standard library.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

COUNTERS = 16
VALUES = 16
HEX = "0123456789abcdef"
NAMES = "GHIJKLMNOPQRSTUV"
"""Capitals, so that no word of a tool call holds a reading."""
STEP_NAMES = "!#$%&'()*+-/;=?@"
FILLERS = [a + b for a in "wxyz" for b in HEX]
QUOTE = '"'

# Byte-level vocabulary: 256 bytes, then the pairs, then the special tokens.
BYTES = 256
FIRST_READING = BYTES
FIRST_STEP = FIRST_READING + COUNTERS * VALUES
FIRST_FILLER = FIRST_STEP + COUNTERS * VALUES
FIRST_SPECIAL = FIRST_FILLER + len(FILLERS)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
           "<|image_pad|>", "<|video_pad|>")  # fmt: skip
EOS = FIRST_SPECIAL
VOCABULARY = 1024

_READING = re.compile(f"[{NAMES}][{HEX}]")


def reading(counter: int, value: int) -> int:
    """Return the token that says that a counter has a value."""
    return FIRST_READING + counter * VALUES + value


def step(counter: int, by: int) -> int:
    """Return the token that says a counter's step."""
    return FIRST_STEP + counter * VALUES + by


def text_of(token: int) -> str:
    """Return a token's text."""
    if token < FIRST_READING:
        return chr(token)
    if token < FIRST_STEP:
        counter, value = divmod(token - FIRST_READING, VALUES)
        return NAMES[counter] + HEX[value]
    if token < FIRST_FILLER:
        counter, value = divmod(token - FIRST_STEP, VALUES)
        return STEP_NAMES[counter] + HEX[value]
    if token < FIRST_SPECIAL:
        return FILLERS[token - FIRST_FILLER]
    return SPECIAL[token - FIRST_SPECIAL]


@dataclass(frozen=True)
class Request:
    """A prompt, and what must follow it.

    Attributes:
        prompt: its tokens.
        steps, first: each counter's step and first value.
        rounds: rounds that the prompt already holds.
    """

    prompt: tuple[int, ...]
    steps: tuple[int, ...]
    first: tuple[int, ...]
    rounds: int = 1

    def right(self, tokens: int) -> tuple[int, ...]:
        """Return the tokens that must follow, as many as asked for."""
        answer = []
        for position in range(tokens):
            turn, counter = divmod(position, COUNTERS)
            by = (self.rounds + turn) * self.steps[counter]
            answer.append(reading(counter, (self.first[counter] + by) % VALUES))
        return tuple(answer)

    def right_text(self, tokens: int) -> str:
        """Return the same as text."""
        return "".join(text_of(token) for token in self.right(tokens))


@dataclass
class Speaker:
    """Makes requests from a seed; those of one `shared` prefix begin with the same tokens.

    Attributes:
        seed: what everything is made from.
        filler: filler tokens between the steps and the first round.
    """

    seed: int
    filler: int = 200
    _made: int = field(default=0, init=False)

    def request(self, *, shared: bool = False, rounds: int = 1) -> Request:
        """Return the next request; its steps and filler are the seed's own if `shared`."""
        self._made += 1
        told = random.Random(self.seed if shared else self.seed * 1009 + self._made)  # noqa: S311
        steps = tuple(told.randrange(VALUES) for _ in range(COUNTERS))
        order = told.sample(range(COUNTERS), COUNTERS)
        head = [step(counter, steps[counter]) for counter in order]
        head += [FIRST_FILLER + told.randrange(len(FILLERS)) for _ in range(self.filler)]
        own = random.Random(self.seed * 2003 + self._made)  # noqa: S311
        first = tuple(own.randrange(VALUES) for _ in range(COUNTERS))
        request = Request((), steps, first, 0)
        prompt = (*head, ord(QUOTE), *request.right(COUNTERS * rounds))
        return Request(prompt, steps, first, rounds)


def readings(text: str) -> list[str]:
    """Return the readings that a text holds, in order."""
    return _READING.findall(text)


def tokenizer() -> dict[str, object]:
    """Return tokenizer.json: byte-level BPE whose merges are the language's pairs."""
    shown = _byte_characters()
    vocabulary = {shown[byte]: byte for byte in range(BYTES)}
    merges = []
    for token in range(FIRST_READING, FIRST_SPECIAL):
        text = text_of(token)
        vocabulary[text] = token
        merges.append([text[0], text[1]])
    special = [
        {
            "id": FIRST_SPECIAL + place, "content": text, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True,
        }
        for place, text in enumerate(SPECIAL)
    ]  # fmt: skip
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocabulary, "merges": merges,
        },
    }  # fmt: skip


def _byte_characters() -> dict[int, str]:
    """Return the character by which byte-level BPE shows each byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(BYTES) if byte not in table]
    return table | {byte: chr(BYTES + place) for place, byte in enumerate(others)}
