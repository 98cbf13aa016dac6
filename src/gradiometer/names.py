"""What a name of a series says: its words, patterns of other tools' names, and a guess at names
that nobody listed.

`ep_rew_mean`, `EpRewMean` and `ep rew/mean` are the same three words. A guess is a small grammar
over such words, whose vocabulary is names.toml: where a number was taken (`eval/`), which statistic
it is (`mean_`), and of what. All words of a name must be known, or the name has no meaning: none is
better than a wrong one. Only a reward may have words besides (`format_reward`): it is one reward
function among several. `min`, `std` and the like never are the quantity itself.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any, final

__all__ = [
    "Guess",
    "Pattern",
    "after",
    "core_of",
    "guess",
    "is_bookkeeping",
    "of_language",
    "part_of_norm",
    "plain_words",
    "squeezed",
    "vocabulary",
    "words_of",
]

WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_a-zA-Z]+")
"""Camel case and digits part words, as do all other characters."""
LONGEST = 200
"""Characters of a name that is looked at; what is longer is no name."""


def squeezed(name: str) -> str:
    """A name without case and separators."""
    return "".join(filter(str.isalnum, name)).lower()


@lru_cache(maxsize=50_000)
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, in small letters."""
    return tuple(found[0].lower() for found in WORD.finditer(name))


def after(name: str, prefixes: Collection[tuple[str, ...]]) -> str | None:
    """What follows the first words, and a number before them, if those are one of `prefixes`."""
    found = list(WORD.finditer(name))
    start = 1 if found and found[0][0].isdigit() else 0
    words = words_of(name)[start:]
    for prefix in prefixes:
        size = len(prefix)
        if words[:size] == prefix and len(words) > size:
            return name[found[start + size].start() :]
    return None


@final
class Pattern:
    """A name with placeholders, such as `rewards/<function>/mean`, word by word.

    A placeholder stands for one word or more, whatever separates them; a reward function is not
    called by a statistic alone: `rewards_std` names no function `std`.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        parts = re.split(r"<([a-z_]+)>", template)
        literal = [" ".join(words_of(part)) for part in parts[::2]]
        body = literal[0]
        for placeholder, after in zip(parts[1::2], literal[1:], strict=True):
            body += f" (?P<{placeholder}>[^ ].*)" + (f" {after}" if after else "")
        self._regex = re.compile(body.strip())
        self._literal = frozenset(" ".join(literal).split())

    def match(self, name: str) -> dict[str, str] | None:
        """What stands in the placeholders, as the name spells it; None where it does not match."""
        if len(name) > LONGEST or not self._literal.issubset(words_of(name)):
            return None
        spans = [found.span() for found in WORD.finditer(name)]
        words = words_of(name)
        found = self._regex.fullmatch(" ".join(words))
        if found is None:
            return None
        starts = [sum(map(len, words[:place])) + place for place in range(len(words))]
        held = {}
        for key, text in found.groupdict().items():
            first = starts.index(found.start(key))
            last = first + len(text.split(" ")) - 1
            if key == "function" and set(words[first : last + 1]) <= vocabulary().no_part:
                return None
            held[key] = name[spans[first][0] : spans[last][1]]
        return held


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What a name that nobody listed may mean."""

    meaning: str
    """A name of the catalogue."""
    confidence: float
    parts: Mapping[str, str] = field(default_factory=dict)
    """What stands in the placeholders of the catalogue's name."""
    single: bool = False
    """Of one data set or task among several."""
    last_resort: bool = False
    """Only where the log holds nothing else that says how well it goes."""


@final
class Vocabulary:
    """names.toml: words by what they stand for."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.synonyms = {
            word: meant for meant, words in content["synonyms"].items() for word in words.split()
        }
        self.held_out, self.training, self.fill, self.traps = (
            frozenset(content["words"][key].split())
            for key in ("held_out", "training", "fill", "traps")
        )
        self.language, self.control, self.bookkeeping, self.no_success, self.side = (
            frozenset(content["words"][key].split())
            for key in ("language", "control", "bookkeeping", "no_success", "side")
        )
        self.networks, self.no_network = (
            frozenset(content["words"][key].split()) for key in ("networks", "no_network")
        )
        self.statistics = {
            word: meant for meant, words in content["statistics"].items() for word in words.split()
        }
        self.no_part = frozenset(self.statistics) | frozenset(content["words"]["no_part"].split())
        self.meanings: dict[frozenset[str], tuple[str, float]] = {}
        for entry in content["meaning"]:
            for phrase in entry["words"]:
                self.meanings[frozenset(phrase.split())] = entry["is"], entry.get("sure", 0.8)
        self.nouns = frozenset(word for phrase in self.meanings for word in phrase)
        self.joined = frozenset(
            word
            for word in {*self.synonyms, *self.statistics, *self.held_out, "norm", "ep", "train"}
            if word in ("ep", "kl", "lr", "vf", "pg", "td") or (len(word) > 2 and word != "ret")
        )
        """Words that people write on to another without a break: eprewmean, winrate, kldiv."""
        self.statistics_of: dict[str, dict[str, str]] = content["statistics_of"]
        self.held_out_of: dict[str, str] = content["held_out_of"]


@cache
def vocabulary() -> Vocabulary:
    """Read once."""
    with (resources.files("gradiometer") / "names.toml").open("rb") as file:
        return Vocabulary(tomllib.load(file))


def of_language(names: Iterable[str]) -> bool | None:
    """Whether these are the series of a language model's training (tokens, prompts, completions) or
    of classic RL (episodes, environments); None where no name says it."""
    words = {word for name in names for word in words_of(name)}
    if words & vocabulary().language:
        return True
    return False if words & vocabulary().control else None


def is_bookkeeping(name: str) -> bool:
    """Times, rates, counters, memory and settings: nothing a policy does."""
    return not vocabulary().bookkeeping.isdisjoint(words_of(name))


@lru_cache(maxsize=50_000)
def guess(name: str, *, language: bool = False, beside_length: bool = False) -> Guess | None:
    """What a name may mean; None where that cannot be told.

    `language` says that the log is of a language model's training, `beside_length` that there is a
    column `l`, so that `r` is the return of an episode.
    """
    if len(name) > LONGEST:
        return None
    known, words = vocabulary(), plain_words(name)
    if "score" in words:  # of each game the one at its end
        words = [word for word in words if word != "final"]
    if not words or any(word in known.traps for word in words):
        return None
    if "r" in words and any(map(str.isdigit, words)):  # r2 is a coefficient of determination
        return None
    if words in (["r"], ["l"]):
        meaning = "reward" if words == ["r"] else "episode_length"
        return Guess(meaning=meaning, confidence=0.9) if beside_length else None
    if "pass" in words and any(word.isdigit() and word != "1" for word in words):
        return None  # pass@8 grows with the samples, whatever the policy does
    statistics = {known.statistics[word] for word in words if word in known.statistics}
    held_out = any(
        word in known.held_out and not _describes(words[place:]) for place, word in enumerate(words)
    )
    rest = [word for word in words if not _says_where(word)]
    found = _of_the_rest(rest, language=language, held_out=held_out)
    if found is not None and found.meaning == "success_rate" and "agent" in words:
        found = replace(found, last_resort=True)  # of a discriminator: agents have no accuracy
    return None if found is None else _placed(found, statistics, held_out=held_out)


def _describes(words: list[str]) -> bool:
    """Whether `valid` says what is valid (`reward_valid_json`), not where a number was taken."""
    known, following = vocabulary(), words[1:2]
    return words[0] == "valid" and any(
        not _says_where(word) and word not in known.nouns for word in following
    )


def plain_words(name: str) -> list[str]:
    """The words of a name, each by the one of its synonyms that names.toml uses."""
    synonyms = vocabulary().synonyms
    return [synonyms.get(part, part) for word in words_of(name) for part in _parted(word)]


@lru_cache(maxsize=10_000)
def _parted(word: str) -> tuple[str, ...]:
    """A word of known words without a break between them as those: `eprewmean`."""
    known = vocabulary()
    if len(word) > 24 or _says_where(word) or word in known.synonyms or word in known.nouns:
        return (word,)
    whole: dict[int, tuple[str, ...]] = {0: ()}
    for end in range(1, len(word) + 1):
        for start in sorted(whole):
            if word[start:end] in known.joined:
                whole[end] = (*whole[start], word[start:end])
                break
    return whole.get(len(word), (word,))


def core_of(name: str) -> list[str]:
    """The words of a name that are left without statistic, place and filling."""
    return [word for word in plain_words(name) if not _says_where(word)]


def _says_where(word: str) -> bool:
    known = vocabulary()
    return (
        word.isdigit()
        or word in known.statistics
        or word in known.held_out
        or word in known.training
        or word in known.fill
    )


def _of_the_rest(rest: list[str], *, language: bool, held_out: bool) -> Guess | None:
    """The quantity by the words that are left once place and statistic are known."""
    known = vocabulary()
    if (found := known.meanings.get(frozenset(rest))) is not None:
        meaning, sure = found
        if meaning == "kl":
            meaning = "kl_ref" if language else "approx_kl"
        return Guess(meaning=meaning, confidence=sure)
    nouns = [word for word in rest if word in known.nouns]
    others = [word for word in rest if word not in known.nouns]
    if (part := part_of_norm(rest)) is not None:
        return Guess(meaning="part_grad_norm/<block>", confidence=0.6, parts={"block": part})
    core = known.meanings.get(frozenset(nouns))
    if core is None and rest[:1] == ["reward"]:  # a folder: reward/pass_rate
        core = known.meanings.get(frozenset(nouns[1:]))
        if core is not None and core[0] == "success_rate" and not others:
            return Guess(meaning="success_rate", confidence=0.6, last_resort=True)
    elif core is None and rest[-1:] == ["reward"] and not others:  # accuracy_reward
        core = known.meanings.get(frozenset(nouns[:-1]))
        if core is not None and core[0] == "success_rate":
            return _function(nouns[:-1])
        return None
    if core is None or not others:
        return None
    if core[0] == "reward" and nouns == ["reward"]:
        if held_out:
            return Guess(meaning="reward", confidence=0.5, single=True)
        if rest.index("reward") in (0, len(rest) - 1):
            return _function(others)
    if core[0] == "success_rate" and nouns != ["pass"] and known.no_success.isdisjoint(others):
        return Guess(
            meaning="success_rate",
            confidence=0.6 if held_out else 0.4,
            single=True,
            last_resort=not held_out,
        )
    return None


def part_of_norm(words: Collection[str]) -> str | None:
    """Which part of the network a gradient norm is of, by the words beside it; None for the whole,
    and where they may say how it was taken (`grad_norm_after_clip`)."""
    beside = [word for word in words if word not in ("gradient", "norm") and not _says_where(word)]
    known = vocabulary()
    odd = any(
        len(word) < 2 or word in known.no_network or (word in known.nouns - known.networks)
        for word in beside
    )
    whole = not {"gradient", "norm"} <= set(words)
    return None if whole or odd or not 0 < len(beside) < 3 else "_".join(beside)


def _function(words: list[str]) -> Guess:
    parts = {"function": "_".join(words), "statistic": "mean"}
    return Guess(meaning="rewards/<function>/<statistic>", confidence=0.6, parts=parts)


def _placed(found: Guess, statistics: set[str], *, held_out: bool) -> Guess | None:
    """The same with its statistic, and as a held-out number where it is one."""
    known = vocabulary()
    meaning, parts = found.meaning, dict(found.parts)
    spread = next((each for each in ("std", "min", "max") if each in statistics), None)
    if "<statistic>" in meaning:
        if spread not in (None, "std") and "function" in parts:
            return None
        parts["statistic"] = spread or "mean"
    elif spread is not None:
        if meaning not in known.statistics_of or spread not in known.statistics_of[meaning]:
            return None
        meaning = known.statistics_of[meaning][spread]
    elif meaning.startswith("?"):
        return None
    if held_out:
        if meaning not in known.held_out_of:
            return None
        meaning = known.held_out_of[meaning]
    return Guess(
        meaning=meaning,
        confidence=found.confidence,
        parts=parts,
        single=found.single,
        last_resort=found.last_resort,
    )
