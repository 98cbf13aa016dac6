"""What a run knows about loss terms: its gradient analyses, read one at a time, and what `meter.terms` split."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradiometer.dashboard.desk import Open
from gradiometer.errors import UnknownName
from gradiometer.metrics import CATALOGUE
from gradiometer.plots.analysis import (
    ALL,
    CIRCUMSTANCES,
    GROUP_COLUMNS,
    GROUP_TABLE,
    NORM,
    SAMPLES,
    TOTAL,
    USUAL_TERMS,
    AnalysisStep,
    GroupSpread,
)

__all__ = [
    "Split",
    "analysis_at",
    "analysis_steps",
    "dead_terms",
    "in_order",
    "newest_of",
    "norms_by_bucket",
    "split_of",
    "states_of",
    "unreadable_groups",
]

PREFIX = NORM.partition("<")[0]
BESIDE_TERMS = {name.rpartition("/")[2] for name in CATALOGUE if name.rpartition("/")[0] == NORM.rpartition("/")[0]}
NOT_TERMS = frozenset(BESIDE_TERMS | {GROUP_TABLE})
"""What stands where a term does and is none: sample_count, reward_std_mean, ..."""
COUNTED = SAMPLES.rpartition("/")[2]
STATES, NONE = "terms", "none"
FIRST_REACH, REACH_FACTOR = 64, 16


def norms_by_bucket(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The buckets of a run's analyses, `all` first, and the terms that have a norm in each, the total last."""
    found: dict[str, set[str]] = {}
    for name in names:
        parts = name.split("/")
        if name.startswith(PREFIX) and len(parts) == 3 and (parts[2] not in NOT_TERMS or parts[2] == COUNTED):
            found.setdefault(parts[1], set()).update({parts[2]} - NOT_TERMS)
    return {bucket: in_order(found[bucket]) for bucket in sorted(found, key=_rank)}


def in_order(terms: Iterable[str], first: Sequence[str] = USUAL_TERMS) -> tuple[str, ...]:
    """Terms as people expect them: the given ones, the others by name, the total at the end."""
    rest = set(terms)
    known = [term for term in dict.fromkeys(first) if term in rest and term != TOTAL]
    others = sorted(rest - {*known, TOTAL})
    return (*known, *others, *(rest & {TOTAL}))


def analysis_steps(run: Open) -> tuple[int, ...]:
    """The steps at which a bucket was measured."""
    found: set[int] = set()
    for bucket, terms in norms_by_bucket(run.names).items():
        for name in {SAMPLES.replace("<bucket>", bucket), *(f"{PREFIX}{bucket}/{term}" for term in terms)} & run.names:
            found.update(run.log.series(name)[0].tolist())
    return tuple(sorted(found))


def analysis_at(run: Open, step: int) -> AnalysisStep:
    """One analysis: of a run with a hundred of them the others are not read."""
    metrics: dict[str, float] = {}
    for name in sorted(run.names):
        if name.startswith(PREFIX):
            _, values = run.log.part(name, step, step)
            if len(values):
                metrics[name] = float(values[0])
    groups, about = _groups(run, step), _content(run, CIRCUMSTANCES, step)
    return AnalysisStep(
        step=step,
        metrics=metrics,
        groups=tuple(groups),
        circumstances=about if isinstance(about, Mapping) else {},
        run=run.label,
    )


def unreadable_groups(run: Open, step: int) -> str:
    """The name of a group table of the step that has not the columns it should have; empty when all are well."""
    return next((name for name in _group_tables(run) if _spreads(_content(run, name, step)) is None), "")


def _group_tables(run: Open) -> list[str]:
    names = [name for name in run.log.table_names() if name.startswith(PREFIX) and name.endswith(f"/{GROUP_TABLE}")]
    return sorted(names, key=lambda name: _rank(name.split("/")[1]))


def _groups(run: Open, step: int) -> list[GroupSpread]:
    return [spread for name in _group_tables(run) for spread in _spreads(_content(run, name, step)) or ()]


def _spreads(content: object) -> list[GroupSpread] | None:
    """The lines of a group table; nothing when there is no table, None when it is not one."""
    if content is None:
        return []
    try:
        places = [content["columns"].index(column) for column in GROUP_COLUMNS]  # type: ignore[index]
        lines = [[row[place] for place in places] for row in content["data"]]  # type: ignore[index]
        return [
            GroupSpread(bucket=str(bucket), group_id=str(group), reward_std=float(spread))
            for bucket, group, spread in lines
            if spread is not None
        ]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None


def _content(run: Open, name: str, step: int | None = None) -> object:
    try:
        found: object = run.log.table(name, step).content
    except UnknownName:
        return None
    return found


def _rank(bucket: str) -> tuple[bool, int, str]:
    number = re.search(r"\d+", bucket)
    return bucket != ALL, int(number[0]) if number else 0, bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What the meter measured of each loss term, or of each reward, by block."""

    parts: Mapping[str, frozenset[str]]
    pairs: Mapping[str, frozenset[tuple[str, str]]]

    @property
    def blocks(self) -> tuple[str, ...]:
        """`all`, the named blocks, the layers."""
        return tuple(sorted(self.parts, key=lambda block: (block != ALL, block.startswith("layer."), block)))


def split_of(runs: Iterable[Open], kind: str) -> Split:
    """Read off the names of the series; `kind` is term or reward."""
    parts: dict[str, set[str]] = {}
    pairs: dict[str, set[tuple[str, str]]] = {}
    for name in (name for run in runs for name in run.names if f"/{kind}/" in name):
        found = name.split("/")
        if len(found) != 5 or (found[0], found[2]) != ("grad", kind):
            continue
        block, part, quantity = found[1], found[3], found[4]
        if quantity == "cos" and part.count("~") == 1:
            a, b = part.split("~")
            pairs.setdefault(block, set()).add((a, b))
        elif quantity in ("norm", "share", "loss"):
            parts.setdefault(block, set()).add(part)
    return Split(
        parts={block: frozenset(found) for block, found in parts.items()},
        pairs={block: frozenset(found) for block, found in pairs.items()},
    )


def states_of(run: Open) -> dict[str, dict[str, str]]:
    """What each term reaches, as last said: path, zero or none by term and named block."""
    content = _content(run, STATES)
    if not isinstance(content, Mapping) or not all(isinstance(row, Mapping) for row in content.values()):
        return {}
    return {str(term): {str(block): str(state) for block, state in row.items()} for term, row in content.items()}


def dead_terms(states: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Terms of the loss that no parameter feels."""
    return [term for term, row in states.items() if row and all(state == NONE for state in row.values())]


def newest_of(run: Open, names: Iterable[str], last: int | None = None) -> int | None:
    """The last step at which one of the series has a point, not beyond `last`; only the end of the series is read."""
    newest, first, asked = run.log.newest_step, run.log.first_step, tuple(names)
    if newest is None or first is None:
        return None
    end = newest if last is None else min(last, newest)
    reach = FIRST_REACH
    while first <= end:
        since = max(end - reach, first)
        ends = [int(steps[-1]) for name in asked if len(steps := run.log.part(name, since, end)[0])]
        if ends or since == first:
            return max(ends, default=None)
        reach *= REACH_FACTOR
    return None
