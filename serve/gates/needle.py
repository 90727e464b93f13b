"""A passkey hidden in a long text: found cold, and found again from the prefix cache."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from serve.gates import metrics
from serve.gates.result import Result, judged, not_run, shown

if TYPE_CHECKING:
    from serve.gates.run import Run

CONSONANTS, VOWELS = "BKMLSD", "AEIOU"
QUESTION = "What is the passkey? Answer with the passkey alone."
_ANSWER_TOKENS = 64
_DEPTHS = (0.1, 0.5, 0.9)
_SENTENCES = (
    "The ferry leaves the north pier at nine and comes back when the tide turns.",
    "A heron stood on the third post and watched the boats go out.",
    "Somebody had painted the fence green, but only as far as the gate.",
    "The baker counted his trays twice and wrote the number on the wall.",
    "Clouds came over the hill, stayed for an hour, and went on to the east.",
    "Two children carried a ladder across the square without a word.",
    "The clerk found the old map behind a drawer that nobody had opened.",
)


def passkey(number: int) -> str:
    """Return the passkey that a seed gives: a word that no text holds."""
    told = random.Random(f"passkey {number}")  # noqa: S311 # not a secret
    return "".join(consonant + told.choice(VOWELS) for consonant in CONSONANTS)


def prompt(run: Run, tokens: int, depth: float, key: str, seed: int) -> str:
    """Return a prompt of about so many tokens that tells the key at a depth between 0 and 1.

    Raises:
        AnswerError: if the server does not count tokens.
    """
    told = random.Random(f"filler {seed}")  # noqa: S311 # not a secret
    sample = "\n".join(_SENTENCES)
    each = len(run.client.tokenize(sample)) / len(_SENTENCES)
    sentences = [told.choice(_SENTENCES) for _ in range(max(int((tokens - 64) / each), 1))]
    sentences.insert(int(len(sentences) * depth), f"The passkey is {key}.")
    return "\n".join([*sentences, "", QUESTION])


def _sizes(run: Run) -> list[int]:
    room = run.profile.engine.context - _ANSWER_TOKENS - 128
    sizes = sorted({min(size, room) for size in run.profile.gates.needle})
    return sizes if run.full else sizes[:1]


def cold(run: Run) -> Result:
    """The passkey is found in a text that the server has never seen."""
    missed, evidence, asked = 0, [], 0
    for size in _sizes(run):
        for number, depth in enumerate(_DEPTHS if run.full else _DEPTHS[1:2]):
            key = passkey(size + number)
            answer = run.client.chat(
                prompt(run, size, depth, key, size * 7 + number), _ANSWER_TOKENS
            )
            asked += 1
            found = key in answer.text
            missed += not found
            evidence.append(
                f"{answer.prompt_tokens} tokens, depth {depth:.0%}: "
                f"{'found' if found else f'{key} expected, {shown(answer.text, 80)!r} came'}"
            )
    return judged(not missed, f"{asked - missed} of {asked} found", "all found", *evidence)


def replay(run: Run) -> Result:
    """The same text again, now from the prefix cache, still gives the passkey."""
    size = _sizes(run)[-1]
    key = passkey(size + 1000)
    text = prompt(run, size, 0.5, key, size * 7 + 1000)
    run.client.chat(text, _ANSWER_TOKENS)
    before = metrics.cache_hits(run.client.metrics())
    answer = run.client.chat(text, _ANSWER_TOKENS)
    cached = metrics.cache_hits(run.client.metrics()) - before
    if not cached:
        return not_run("the server took nothing of the second prompt from its prefix cache")
    return judged(
        key in answer.text,
        f"{shown(answer.text, 80)!r} with {cached} of {answer.prompt_tokens} tokens cached",
        key,
    )
