"""The catalogue: every quantity by name, with what it means, when it is healthy and what to do when
it is not; and the one place that says which quantity a name of a series stands for.

One table, many outputs: `gradiometer metrics`, docs/reference/metrics.md, docs/reference/names.md
and the tooltips are all made from `CATALOGUE`, which metrics.toml holds as data; what other tools
call its quantities stands in aliases/. A name is a slash path; a part in angle brackets stands for
a name of the run (`grad/<block>/norm/raw` is `grad/actor/norm/raw` in a run that has a block
`actor`). A block is `all`, a named block, or `layer.<module path>`.

A name is read as ours; as another tool's, whatever its case and separators; as that with `train` or
`eval` before it; or by its words (names.py), which is a guess and is said to be one. `resolve`
reads a name alone, `read_names` those of a whole log: `kl` is another thing beside completions than
beside episodes.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Literal, get_args

from gradiometer.errors import UnknownName, UsageError
from gradiometer.names import (
    Pattern,
    after,
    core_of,
    guess,
    of_language,
    part_of_norm,
    plain_words,
    squeezed,
    vocabulary,
    words_of,
)

__all__ = [
    "CATALOGUE",
    "OUTCOMES",
    "TIERS",
    "Alias",
    "Meaning",
    "Metric",
    "Tier",
    "check_told",
    "find",
    "key",
    "library_of",
    "library_votes",
    "names_to_keep",
    "parse",
    "parse_told",
    "read_names",
    "resolve",
]

Scale = Literal["linear", "log"]
Tier = Literal["light", "standard", "deep"]
TIERS: tuple[Tier, ...] = get_args(Tier)
"""How much the meter measures; each has all that is in those before it."""
Origin = Literal[Tier, "logged", "terms", "anatomy", "replicates", "experts"]

OUTCOMES = (
    "val/success_rate",
    "val/reward",
    "success_rate",
    "reward",
    "val/preference/accuracy",
    "preference/accuracy",
)
"""What a training may be for, in the order in which it is believed: held-out before training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """What another library calls the same quantity: ours = offset + sign × theirs, estimated their
    way."""

    name: str
    library: str
    sign: int = 1
    estimator: str = ""
    offset: float = 0.0
    when: str = ""
    """What the log must be for it: of `language`, of `control`, of `preference`, `no policy`."""
    confidence: float = 1.0
    """Below 1: nobody listed the name, its words were read."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """What stands in the placeholders of our name; `<...>` for what stands in theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity. `origin` is the lowest tier that measures it; `logged` when the user gives it
    to `meter.log`, `terms` when it comes from `meter.terms`, `anatomy` or `replicates` when from
    that probe, `experts` where experts are found.
    """

    name: str
    unit: str
    meaning: str
    origin: Origin
    scale: Scale = "linear"
    rate: bool = False
    """A share between 0 and 1, which some logs give in per cent."""
    healthy: str = ""
    source: str = ""
    """Where the healthy range comes from."""
    remedy: str = ""
    aliases: tuple[Alias, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What the name of a series stands for in its log."""

    name: str
    metric: Metric
    alias: Alias | None = None
    """None where it is our own name."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """What stands in the placeholders of the catalogue's name: block, term, ..."""
    order: tuple[int, float, float, float, str]
    """Rank, place in its table or doubt, one data set of several, words, name: of several series of
    one quantity the smallest is read."""
    told: bool = False
    """The user said so."""

    @property
    def guessed(self) -> bool:
        """Whether only its words say so."""
        return self.alias is not None and self.alias.confidence < 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the other names of a log say about one of them; None where nobody knows."""

    language: bool | None = None
    preference: bool | None = None
    policy: bool | None = None
    beside_length: bool = False
    library: str = ""

    def fulfil(self, when: str) -> bool | None:
        """Whether the log is what a name needs; None where nobody knows."""
        return {
            "": True,
            "language": self.language,
            "control": None if self.language is None else not self.language,
            "preference": self.preference,
            "no policy": self.language is False and self.policy is False,
        }[when]


ALONE = Surroundings()


def _data(name: str) -> dict[str, Any]:
    with (resources.files("gradiometer") / name).open("rb") as file:
        return tomllib.load(file)


def _read() -> dict[str, Metric]:
    entries = dict(_expanded(_data("metrics.toml")))
    metrics = {
        name: Metric(name=name, origin=entry.pop("from"), **entry)
        for name, entry in entries.items()
    }
    aliases: dict[str, dict[tuple[str, int, str], Alias]] = {}
    for target, alias in _listed():
        name, parts = _target(target, metrics)
        known, same = aliases.setdefault(name, {}), (alias.name, alias.sign, alias.when)
        if same in known:  # two libraries call it so
            both = f"{known[same].library}, {alias.library}"
            known[same] = replace(known[same], library=both)
        else:
            known[same] = replace(alias, parts=parts)
    return {
        name: replace(metric, aliases=tuple(aliases.get(name, {}).values()))
        for name, metric in metrics.items()
    }


def _expanded(entries: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """`grad/expert/...` is over all layers; what is marked `per_layer` is there for each too, and
    what is marked `held_out` also as `val/...`."""
    for name, entry in entries.items():
        per_layer, held_out = entry.pop("per_layer", False), entry.pop("held_out", False)
        yield name, entry
        if per_layer:
            here = re.sub(r" (Over layers|Pooled over layers)[^.]*\.", "", entry["meaning"])
            one = {**entry, "meaning": f"{here} In one layer."}
            yield name.replace("grad/", "grad/<layer>/", 1), one
        if held_out:
            kept = {key: entry[key] for key in ("unit", "from", "scale", "rate") if key in entry}
            words = f"{entry['meaning'].split('. ')[0].rstrip('.')}; on what is not trained on."
            yield f"val/{name}", {**kept, "meaning": words}


def _listed() -> Iterator[tuple[str, Alias]]:
    """Every name of other tools with what it is, file by file as they stand there."""
    folder = resources.files("gradiometer") / "aliases"
    for file in sorted(each.name for each in folder.iterdir() if each.name.endswith(".toml")):
        for library, names in _data(f"aliases/{file}").items():
            for name, said in names.items():
                entry = dict(said) if isinstance(said, dict) else {"is": said}
                target = entry.pop("is")
                sign = -1 if target.startswith("-") else entry.pop("sign", 1)
                yield (
                    target.removeprefix("-"),
                    Alias(name=name, library=library, sign=sign, **entry),
                )


PLACEHOLDER = re.compile(r"<([a-z_]+)>")


def _target(text: str, metrics: Mapping[str, Metric]) -> tuple[str, dict[str, str]]:
    """`rewards/<function>/mean` is the metric `rewards/<function>/<statistic>` with its parts."""
    if text in metrics:
        return text, {}
    for template in metrics:
        if "<" in template and (parts := _parts(template, text)) is not None:
            return template, parts
    raise KeyError(f"{text!r} is not in the catalogue")


def _parts(template: str, name: str) -> dict[str, str] | None:
    found = _pattern(template).fullmatch(name)
    return None if found is None else found.groupdict()


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(PLACEHOLDER.sub(r"(?P<\1>[^/]+)", template))


CATALOGUE: dict[str, Metric] = _read()


@cache
def _patterns(slashes: int) -> tuple[tuple[re.Pattern[str], Metric], ...]:
    """The names with placeholders and so many slashes as regular expressions; a placeholder never
    spans a slash, so a series with another number of them is none of these."""
    return tuple(
        (_pattern(name), metric)
        for name, metric in CATALOGUE.items()
        if "<" in name and name.count("/") == slashes
    )


def key(template: str, **parts: str) -> str:
    """The series that a name of the catalogue stands for once its placeholders are filled."""
    if template not in CATALOGUE:
        raise KeyError(f"{template!r} is not in the catalogue")
    return PLACEHOLDER.sub(lambda found: parts[found[1]], template)


def parse(template: str, name: str) -> dict[str, str] | None:
    """What stands in the placeholders of a series' name; None when it is not of that template."""
    if template not in CATALOGUE:
        raise KeyError(f"{template!r} is not in the catalogue")
    return _parts(template, name)


Known = tuple[Metric, Alias]


Index = dict[str, list[Known]]


@cache
def _aliases() -> tuple[Index, list[tuple[Pattern, Known]]]:
    """By the name without case and separators, and those with placeholders."""
    loose: Index = {}
    patterns: list[tuple[Pattern, Known]] = []
    for metric in CATALOGUE.values():
        for alias in metric.aliases:
            if "<" in alias.name:
                patterns.append((Pattern(alias.name), (metric, alias)))
            else:
                loose.setdefault(squeezed(alias.name), []).append((metric, alias))
    for metric in CATALOGUE.values():
        if metric.origin == "logged" and "<" not in metric.name:
            own = Alias(name=metric.name, library="")
            loose.setdefault(squeezed(metric.name), []).append((metric, own))
    # the pattern that says most comes first: `rewards/<function>/std` before `rewards/<function>`
    patterns.sort(key=lambda each: -len(words_of(re.sub("<.*?>", "", each[0].template))))
    return loose, patterns


def resolve(name: str) -> tuple[Metric, Alias | None] | None:
    """The catalogue entry of a series' name, and the alias it goes by; None for unknown names."""
    found = _reading(name, ALONE)
    return None if found is None else (found.metric, found.alias)


def find(name: str) -> tuple[Metric, Alias | None]:
    """Like `resolve`, but an unknown name is an error that says what is close."""
    if known := resolve(name):
        return known
    ours = {squeezed(each) for each in CATALOGUE}
    listed = (alias.name for metric in CATALOGUE.values() for alias in metric.aliases)
    theirs = [each for each in listed if squeezed(each) not in ours]
    raise UnknownName(
        "metric", name, [*CATALOGUE, *theirs], hint="`gradiometer metrics` lists them all."
    )


TOLD, OWN, LISTED, AROUND, GUESSED, LAST = range(6)
"""Ranks of readings; the last counts only where there is no other outcome."""
TRAINING = {("train",), ("training",), ("ray", "tune"), ("info",), ("rollout",)} | {
    (word,) for word in ("metrics", "data", "values", "scalars", "stats", "logs", "log")
}
HELD_OUT = {("eval",), ("evaluation",), ("val",), ("validation",), ("test",)}
WHOLE = frozenset({"all", "overall", "average", "avg", "mean", "total"})
"""What people call the mean over data sets."""


@lru_cache(maxsize=100_000)
def _reading(name: str, around: Surroundings) -> Meaning | None:
    if metric := CATALOGUE.get(name):
        return Meaning(name=name, metric=metric, order=(OWN, 0.0, 0.0, 0.0, name))
    if (found := _listed_as(name, around)) is not None:
        return found
    for pattern, metric in _patterns(name.count("/")):
        if held := pattern.fullmatch(name):
            order = (OWN, 0.0, 0.0, 0.0, name)
            return Meaning(name=name, metric=metric, parts=held.groupdict(), order=order)
    return _in_patterns(name, around) or _without_place(name, around) or _by_words(name, around)


def _listed_as(name: str, around: Surroundings) -> Meaning | None:
    there = _aliases()[0].get(squeezed(name), ())
    fitting = [known for known in there if around.fulfil(known[1].when) is not False]
    if not fitting:
        return None

    def preference(known: Known) -> tuple[bool, bool, bool]:
        sure = bool(known[1].when and around.fulfil(known[1].when))
        whose = known[1].library.partition(" (")[0]
        return not sure, known[1].name != name, whose != around.library

    metric, alias = min(fitting, key=preference)
    place = metric.aliases.index(alias) if alias in metric.aliases else -1
    order = (LISTED, float(place), 0.0, 0.0, name)
    return Meaning(name=name, metric=metric, alias=alias, parts=alias.parts, order=order)


def _in_patterns(name: str, around: Surroundings) -> Meaning | None:
    for pattern, (metric, alias) in _aliases()[1]:
        held = None if around.fulfil(alias.when) is False else pattern.match(name)
        if held is not None:
            parts = {
                key: held.get(text[1:-1], text) if text.startswith("<") else text
                for key, text in alias.parts.items()
            }
            data = set(words_of(held.get("data", "all")))
            single = 0.0 if data & WHOLE else 1.0
            order = (LISTED, float(metric.aliases.index(alias)), single, 0.0, name)
            return Meaning(name=name, metric=metric, alias=alias, parts=parts, order=order)
    return None


def _without_place(name: str, around: Surroundings) -> Meaning | None:
    """A listed name with where it was taken written before it."""
    for prefixes in (TRAINING, HELD_OUT):
        rest = after(name, prefixes)
        found = None if rest is None else _reading(rest, around)
        if found is None or found.guessed:
            continue
        metric = found.metric
        if prefixes is HELD_OUT:
            if f"val/{metric.name}" not in CATALOGUE:
                continue
            metric = CATALOGUE[f"val/{metric.name}"]
        alias = found.alias or Alias(name=found.name, library="")
        order = (AROUND, *found.order[1:4], name)
        return replace(found, name=name, metric=metric, alias=alias, order=order)
    return None


def _by_words(name: str, around: Surroundings) -> Meaning | None:
    found = guess(name, language=bool(around.language), beside_length=around.beside_length)
    if found is None or (found.last_resort and around is ALONE):
        return None
    words = words_of(name)
    # of two guesses the surer, and what is called the true one
    size = len(words) - 100.0 * ("true" in words)
    rank = LAST if found.last_resort else GUESSED
    order = (rank, -found.confidence, float(found.single), size, name)
    alias = Alias(name=name, library="", confidence=found.confidence)
    metric = CATALOGUE[found.meaning]
    return Meaning(name=name, metric=metric, alias=alias, parts=found.parts, order=order)


def read_names(
    names: Iterable[str],
    *,
    told: Mapping[str, str] | None = None,
    kept: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Meaning]:
    """What the names of one log stand for, those first that are read where several mean the same; a
    name that is not there is unknown.

    `told` gives the meaning of a column, whatever its name says; `kept` is the fact `names` of a
    run that was imported: what was `told` and `guessed` then.
    """
    names = list(names)
    around = _surroundings(names)
    found = {name: reading for name in names if (reading := _reading(name, around)) is not None}
    there, kept = set(names), kept or {}
    for name, meaning in kept.get("guessed", {}).items():
        if name in there and meaning in CATALOGUE and (name not in found or found[name].guessed):
            found[name] = _kept(name, meaning)
    for name, meaning in {**kept.get("told", {}), **(told or {})}.items():
        if name in there and meaning in CATALOGUE:
            found[name] = _told(name, meaning, found.get(name))
    known = _with_an_outcome(_with_score(_with_two_kls(_with_proxy(found))))
    chosen = sorted(
        _with_parts(_with_an_average(known, names)).values(), key=lambda reading: reading.order
    )
    return {reading.name: reading for reading in chosen}


def names_to_keep(names: Iterable[str], told: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The fact `names` of a run made of this log: what was told, and what was guessed."""
    guessed = {
        name: reading.metric.name
        for name, reading in read_names(names, told=told).items()
        if reading.guessed and not reading.told and "<" not in reading.metric.name
    }
    return {key: held for key, held in (("told", dict(told)), ("guessed", guessed)) if held}


def _told(name: str, meaning: str, found: Meaning | None) -> Meaning:
    if found is not None and found.metric.name == meaning:
        return replace(found, told=True, order=(TOLD, *found.order[1:]))
    alias, order = Alias(name=name, library=""), (TOLD, 0.0, 0.0, 0.0, name)
    return Meaning(name=name, metric=CATALOGUE[meaning], alias=alias, told=True, order=order)


def _kept(name: str, meaning: str) -> Meaning:
    """As it was guessed when the log was imported."""
    alias, order = Alias(name=name, library="", confidence=0.5), (GUESSED, 0.0, 0.0, 0.0, name)
    return Meaning(name=name, metric=CATALOGUE[meaning], alias=alias, order=order)


GOLD = frozenset({"gold", "true", "real", "actual"})


def _with_proxy(found: dict[str, Meaning]) -> dict[str, Meaning]:
    """Beside a `proxy_reward`, or another reward, which is what is trained for, the `gold` or
    `true` one is held out."""
    kinds = {name: set(words_of(name)) for name, reading in found.items() if _is_reward(reading)}
    golden = [name for name, words in kinds.items() if words & GOLD and found[name].guessed]
    proxies = [name for name, words in kinds.items() if "proxy" in words] or [
        name for name in kinds if name not in golden and found[name].metric.name == "reward"
    ]
    if not (proxies and golden):
        return found
    meant = {**dict.fromkeys(proxies, "reward"), **dict.fromkeys(golden, "val/reward")}
    return found | {
        name: replace(
            found[name],
            metric=CATALOGUE[meaning],
            alias=Alias(name=name, library="", confidence=0.5),
            parts={},
        )
        for name, meaning in meant.items()
        if not found[name].told
    }


PLAIN_KL = frozenset({"kl", "divergence", "policy"})


def _with_two_kls(found: dict[str, Meaning]) -> dict[str, Meaning]:
    """Beside an `approx_kl`, which is that of an update, a plain `kl_div` is that to the
    reference."""
    kls = [each for each in found.values() if each.metric.name == "approx_kl"]
    plain = [
        each
        for each in kls
        if each.guessed and not each.told and set(core_of(each.name)) <= PLAIN_KL
    ]
    if not plain or len(plain) == len(kls):
        return found
    metric = CATALOGUE["kl_ref"]
    return found | {each.name: replace(each, metric=metric) for each in plain}


def _with_score(found: dict[str, Meaning]) -> dict[str, Meaning]:
    """Beside a `reward` in a table of one's own, `score` is what the game says: it is the outcome,
    and the reward, often shaped, is what is trained for."""
    if library_of(found):
        return found
    rewards = [each for each in found.values() if each.metric.name == "reward"]
    said = (["score"], ["final", "score"])
    scores = [each for each in rewards if core_of(each.name) in said and not each.told]
    if not scores or not any(core_of(each.name) == ["reward"] for each in rewards):
        return found
    metric = CATALOGUE["val/reward"]
    return found | {each.name: replace(each, metric=metric) for each in scores}


def _is_reward(reading: Meaning) -> bool:
    """Whether it is a mean reward, of all functions or of one."""
    mean = reading.parts.get("statistic", "mean") == "mean"
    return mean and reading.metric.name in ("reward", "rewards/<function>/<statistic>")


def _with_an_outcome(found: dict[str, Meaning]) -> dict[str, Meaning]:
    """Without last resorts where there is an outcome; where there is none and one reward function,
    or one of the task among several, that is the reward."""
    sure = {name: reading for name, reading in found.items() if reading.order[0] < LAST}
    if any(reading.metric.name in OUTCOMES for reading in sure.values()):
        rest = (reading for name, reading in found.items() if name not in sure)
        return sure | {each.name: each for reading in rest if (each := _as_function(reading))}
    functions = [
        reading
        for reading in sure.values()
        if reading.metric.name == "rewards/<function>/<statistic>"
        and reading.parts["statistic"] == "mean"
        and vocabulary().side.isdisjoint(words_of(reading.parts["function"]))
    ]
    right = [each for each in functions if _of_the_task(each.name)]
    if len(functions) == 1 or len(right) == 1 or (functions and _copies(functions)):
        only = (right or functions)[0]
        alias = Alias(name=only.name, library="", confidence=0.5)
        reward = replace(only, metric=CATALOGUE["reward"], alias=alias, parts={})
        return {**sure, only.name: reward}
    return found


AVERAGES = (("avg",), ("average",), ("ave",), ("mean",))


def _with_an_average(found: dict[str, Meaning], names: Sequence[str]) -> dict[str, Meaning]:
    """Where nothing else is an outcome: an `Avg` beside a `Best`, which only a score has."""
    means = [name for name in names if words_of(name) in AVERAGES and name not in found]
    best = any("best" in words_of(name) for name in names)
    if len(means) != 1 or not best or any(x.metric.name in OUTCOMES for x in found.values()):
        return found
    alias = Alias(name=means[0], library="", confidence=0.4)
    order = (LAST, -0.4, 0.0, 0.0, means[0])
    reward = Meaning(name=means[0], metric=CATALOGUE["reward"], alias=alias, order=order)
    return found | {means[0]: reward}


def _copies(functions: Sequence[Meaning]) -> bool:
    """Whether they are one reward of several agents or environments: `reward_1`, `reward_2`."""
    return len(functions) > 1 and len({re.sub(r"\d+", "", each.name) for each in functions}) == 1


def _with_parts(found: dict[str, Meaning]) -> dict[str, Meaning]:
    """`Policy Grad Norm` beside another norm is that of a part; alone it is all there is."""
    wholes = [each for each in found.values() if each.metric.name == "total_grad_norm"]
    if len(wholes) < 2 and not any(
        each.metric.name == "part_grad_norm/<block>" for each in found.values()
    ):
        return found
    metric = CATALOGUE["part_grad_norm/<block>"]
    parts = {
        each.name: replace(each, metric=metric, parts={"block": part})
        for each in wholes
        if not each.told and (part := part_of_norm(plain_words(each.name))) is not None
    }
    return found | parts


def _as_function(reading: Meaning) -> Meaning | None:
    """`reward/correctness_f` beside the reward itself is one of its functions."""
    place, _, function = reading.name.rpartition("/")
    if words_of(place)[-1:] not in (("reward",), ("rewards",)):
        return None
    metric = CATALOGUE["rewards/<function>/<statistic>"]
    return replace(reading, metric=metric, parts={"function": function, "statistic": "mean"})


def _of_the_task(name: str) -> bool:
    """Whether a reward function says that the task was solved, is the sum of all, or what the
    environment gave."""
    words = set(words_of(name))
    return not words.isdisjoint(
        ("accuracy", "correct", "correctness", "success", "total", "combined", "env", "environment")
    )


def _surroundings(names: list[str]) -> Surroundings:
    plain = {squeezed(name) for name in names}
    words = {word for name in names for word in words_of(name)}
    before = Surroundings(
        language=of_language(names),
        preference=bool({"chosen", "rejected", "reject"} & words) and "logps" in words | plain,
        beside_length={"r", "l"} <= plain,
        library=library_of(names),
    )
    of_a_policy = ("policy_loss", "entropy", "approx_kl", "clip_fraction")
    readings = (_reading(name, before) for name in names)
    policy = any(found is not None and found.metric.name in of_a_policy for found in readings)
    return replace(before, policy=policy)


def library_of(names: Iterable[str]) -> str:
    """Whose names these are; empty where nobody's."""
    votes = library_votes(names)
    return max(sorted(votes), key=votes.__getitem__, default="")


def library_votes(names: Iterable[str]) -> Counter[str]:
    """How many of the names only this library uses."""
    votes: Counter[str] = Counter()
    for name in names:
        known = _aliases()[0].get(squeezed(name), [])
        whose = {alias.library.partition(" (")[0] for _, alias in known} - {
            "",
            "scripts",
            "Gradiometer",
        }
        if len(whose) == 1 and "," not in (library := whose.pop()):
            votes[library] += 1
    return votes


def check_told(told: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise where a column or a meaning that the user told of is not there."""
    names = list(names)
    for column, meaning in told.items():
        if meaning not in CATALOGUE or "<" in meaning:
            raise UnknownName("meaning", meaning, [name for name in CATALOGUE if "<" not in name])
        if column not in names:
            raise UnknownName("column", column, names, hint=f"(the log has {len(names)} columns)")


def parse_told(given: Iterable[str]) -> dict[str, str]:
    """`MEANING=COLUMN` as the user writes it, as column: meaning."""
    told: dict[str, str] = {}
    plain = [
        name for name, metric in CATALOGUE.items() if metric.origin == "logged" and "<" not in name
    ]
    for text in given:
        meaning, equals, column = (part.strip() for part in text.partition("="))
        if not equals or not meaning or not column:
            raise UsageError(
                f"--name {text!r} names no column: write MEANING=COLUMN, such as"
                " --name reward=mean_r"
            )
        if meaning not in plain:
            hint = "(`gradiometer metrics` lists them; reward and success_rate are outcomes)"
            raise UnknownName("meaning", meaning, plain, hint=hint)
        if column in told and told[column] != meaning:
            raise UsageError(f"--name gives {column!r} two meanings: {told[column]} and {meaning}")
        if meaning in told.values() and column not in told:
            other = next(name for name, meant in told.items() if meant == meaning)
            raise UsageError(
                f"--name gives {meaning} two columns, {other!r} and {column!r}: keep one"
            )
        told[column] = meaning
    return told
