"""The catalogue: every quantity by name, with what it means, when it is healthy and what to do when it is not.

One table, many outputs: `gradiometer metrics`, docs/reference/metrics.md, the tooltips and the aliases of the importers
are all made from `CATALOGUE`, which metrics.toml holds as data. A name is a slash path; a part in angle brackets stands
for a name of the run (`grad/<block>/norm/raw` is `grad/actor/norm/raw` in a run that has a block `actor`). A block is
`all`, a named block, or `layer.<module path>`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from gradiometer.errors import UnknownName

__all__ = ["CATALOGUE", "TIERS", "Alias", "Metric", "Tier", "find", "key", "parse", "resolve"]

Scale = Literal["linear", "log"]
Tier = Literal["light", "standard", "deep"]
TIERS: tuple[Tier, ...] = get_args(Tier)
"""How much the meter measures; each has all that is in those before it."""
Origin = Literal[Tier, "logged", "terms", "anatomy", "replicates", "experts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """What another library calls the same quantity: ours = sign × theirs, estimated their way."""

    name: str
    library: str
    sign: int = 1
    estimator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity. `origin` is the lowest tier that measures it; `logged` when the user gives it to `meter.log`, `terms`
    when it comes from `meter.terms`, `anatomy` or `replicates` when from that probe, `experts` where experts are found."""

    name: str
    unit: str
    meaning: str
    origin: Origin
    scale: Scale = "linear"
    healthy: str = ""
    source: str = ""
    """Where the healthy range comes from."""
    remedy: str = ""
    aliases: tuple[Alias, ...] = ()


def _read() -> dict[str, Metric]:
    with (resources.files("gradiometer") / "metrics.toml").open("rb") as file:
        entries = dict(_with_layers(tomllib.load(file)))
    return {
        name: Metric(
            name=name,
            origin=entry.pop("from"),
            aliases=tuple(Alias(**alias) for alias in entry.pop("aliases", ())),
            **entry,
        )
        for name, entry in entries.items()
    }


def _with_layers(entries: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """`grad/expert/...` is over all layers; what is marked `per_layer` is there for each layer too."""
    for name, entry in entries.items():
        per_layer = entry.pop("per_layer", False)
        yield name, entry
        if per_layer:
            meaning = re.sub(r" (Over layers|Pooled over layers)[^.]*\.", "", entry["meaning"]) + " In one layer."
            yield name.replace("grad/", "grad/<layer>/", 1), {**entry, "meaning": meaning}


CATALOGUE: dict[str, Metric] = _read()


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    """The names with placeholders as regular expressions; a placeholder never spans a slash."""
    return tuple(
        (re.compile(re.sub(r"<[a-z_]+>", "[^/]+", name)), metric) for name, metric in CATALOGUE.items() if "<" in name
    )


def key(template: str, **parts: str) -> str:
    """The series that a name of the catalogue stands for once its placeholders are filled."""
    if template not in CATALOGUE:
        raise KeyError(f"{template!r} is not in the catalogue")
    name = re.sub(r"<([a-z_]+)>", lambda found: parts[found[1]], template)
    return name


def parse(template: str, name: str) -> dict[str, str] | None:
    """The other way round: what stands in the placeholders of a series' name; None when it is not of that template."""
    if template not in CATALOGUE:
        raise KeyError(f"{template!r} is not in the catalogue")
    found = re.fullmatch(re.sub(r"<([a-z_]+)>", r"(?P<\1>[^/]+)", template), name)
    return None if found is None else found.groupdict()


@cache
def _aliases() -> dict[str, tuple[Metric, Alias]]:
    return {alias.name: (metric, alias) for metric in CATALOGUE.values() for alias in metric.aliases}


def resolve(name: str) -> tuple[Metric, Alias | None] | None:
    """The catalogue entry of a series' name, with the alias it goes by; None when the catalogue does not know it."""
    if metric := CATALOGUE.get(name):
        return metric, None
    if known := _aliases().get(name):
        return known
    return next(((metric, None) for pattern, metric in _patterns() if pattern.fullmatch(name)), None)


def find(name: str) -> tuple[Metric, Alias | None]:
    """Like `resolve`, but an unknown name is an error that says what is close."""
    if known := resolve(name):
        return known
    raise UnknownName("metric", name, [*CATALOGUE, *_aliases()], hint="`gradiometer metrics` lists them all.")
