"""The text: sentences on three topics, made up so that the best possible prediction is known.

A sequence has one topic, sentences drawn independently from it, and an end where it is cut. A
reader of the first words knows the topic, so something far back always matters; sums and
differences are true, and verbs agree with their subject. No sentence is the beginning of another,
so the probability of a text is a product over its sentences, and the cross-entropy of the source
itself is the floor under every model's loss.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALPHABET", "Language", "decoded", "encoded", "made_up"]

ALPHABET = " .abcdefghijklmnopqrstuvwxyz"
END = ". "
NUMBERS = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
)
ADJECTIVES = ("", "old ", "big ", "red ")
NOUNS = ("dog", "cat", "bird", "fish")
VERBS = ("see", "like", "fear", "chase")

Characters = NDArray[np.int64]


class Language:
    """Topics, all equally likely: each a set of sentences with probabilities.

    `mass[text]` is the probability, one number a topic, that a sentence begins with that text: p(a
    whole sentence) too.
    """

    def __init__(self, topics: Sequence[Mapping[str, float]]) -> None:
        self.sentences = [[encoded(sentence) for sentence in topic] for topic in topics]
        self.cumulative = [
            np.cumsum(list(topic.values())) / sum(topic.values()) for topic in topics
        ]
        self.shortest = min(len(sentence) for topic in topics for sentence in topic)
        self.mass: dict[str, NDArray[np.float64]] = {}
        for number, topic in enumerate(topics):
            for sentence, weight in topic.items():
                for length in range(len(sentence) + 1):
                    share = self.mass.setdefault(sentence[:length], np.zeros(len(topics)))
                    share[number] += weight / sum(topic.values())

    def sample(self, num: int, length: int, rng: np.random.Generator) -> Characters:
        """Sequences that begin with a sentence, [num, length]."""
        enough = -(-length // self.shortest)
        topics = rng.integers(len(self.sentences), size=num)
        draws = rng.random((num, enough))
        rows = []
        for topic, row in zip(topics, draws, strict=True):
            chosen = np.searchsorted(self.cumulative[topic], row, side="right")
            last = len(self.sentences[topic]) - 1  # rounding may leave the last sum just below 1
            rows.append(
                np.concatenate([self.sentences[topic][min(each, last)] for each in chosen])[:length]
            )
        return np.stack(rows)

    def log_likelihood(self, text: str) -> float:
        """log p of a text that begins with a sentence and may end inside one; −∞ if the source
        never says it."""
        nothing = np.zeros(len(self.sentences))
        *whole, rest = text.split(END)
        parts = [*(sentence + END for sentence in whole), rest]
        with np.errstate(divide="ignore"):
            by_topic = np.sum([np.log(self.mass.get(part, nothing)) for part in parts], 0)
        return float(np.logaddexp.reduce(by_topic)) - math.log(len(self.sentences))

    def floor(self, sequences: NDArray[Any], prompt: int) -> float:
        """Cross-entropy of the source on these sequences, in nats for each character after the
        prompt."""
        texts = [decoded(sequence) for sequence in sequences]
        nats = [self.log_likelihood(text[:prompt]) - self.log_likelihood(text) for text in texts]
        return float(np.mean(nats)) / (int(sequences.shape[1]) - prompt)


def encoded(text: str) -> Characters:
    """Places in the alphabet."""
    return np.array([ALPHABET.index(character) for character in text], dtype=np.int64)


def decoded(characters: NDArray[Any]) -> str:
    """Back to text."""
    return "".join(ALPHABET[place] for place in characters.tolist())


@cache
def made_up() -> Language:
    """The language of the lab: sums, differences and tales."""
    pairs = list(itertools.product(range(10), repeat=2))
    sums = {f"{NUMBERS[a]} plus {NUMBERS[b]} is {NUMBERS[a + b]}{END}": 1.0 for a, b in pairs}
    differences = {
        f"{NUMBERS[a + b]} minus {NUMBERS[b]} is {NUMBERS[a]}{END}": 1.0 for a, b in pairs
    }
    return Language([sums, differences, dict(_tales())])


def _tales() -> list[tuple[str, float]]:
    """`the old dogs see the cat`: the first word of a list is the likeliest, as 1, 1/2, 1/3, ..."""
    places = [range(len(words)) for words in (ADJECTIVES, NOUNS, VERBS, NOUNS)]
    told = []
    for adjective, subject, verb, noun in itertools.product(*places):
        weight = 1 / ((adjective + 1) * (subject + 1) * (verb + 1) * (noun + 1))
        for plural, several in itertools.product((False, True), repeat=2):
            who = f"the {ADJECTIVES[adjective]}{NOUNS[subject]}{'s' if plural else ''}"
            does = f"{VERBS[verb]}{'' if plural else 's'}"
            whom = f"the {NOUNS[noun]}{'s' if several else ''}"
            told.append((f"{who} {does} {whom}{END}", weight))
    return told
