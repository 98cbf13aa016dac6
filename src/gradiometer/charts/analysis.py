"""One gradient analysis as the figures see it: flat metrics, the group table and the circumstances,
wherever they came from.

Every key is a template of the catalogue with its placeholders filled, so a figure never knows a
name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradiometer.errors import UnknownName, UsageError
from gradiometer.metrics import CATALOGUE, key, parse
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

__all__ = [
    "ALL",
    "TOTAL",
    "AnalysisStep",
    "GroupSpread",
    "analysis_at",
    "analysis_steps",
    "content_of",
    "from_flat",
    "norms_by_bucket",
    "read_analysis",
    "terms_in_order",
    "unreadable_groups",
]

ALL, TOTAL = "all", "total"

SAMPLES = "grad_norm/<bucket>/sample_count"
NORM = "grad_norm/<bucket>/<term>"
LOSS = "grad_norm/<bucket>/loss/<name>"
GROUP_TABLE = "group_rv_table"
GROUP_COLUMNS = ("bucket", "group_id", "reward_std")
CIRCUMSTANCES = "anatomy"

PREFIX = NORM.partition("<")[0]
BESIDE_TERMS = {
    name.rpartition("/")[2]
    for name in CATALOGUE
    if name.rpartition("/")[0] == NORM.rpartition("/")[0]
}
NOT_TERMS = frozenset(BESIDE_TERMS | {GROUP_TABLE})
"""What stands where a term does and is none: sample_count, reward_std_mean, ..."""
USUAL_TERMS = ("task", "entropy", "kl")
USUAL_LOSSES = ("policy", "entropy", "kl", "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpread:
    """A line of the group table: how much the rewards of one group differ."""

    bucket: str
    group_id: str
    reward_std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisStep:
    """What one analysis measured: a key that is not there was not measured, a NaN was."""

    step: int
    metrics: Mapping[str, float]
    groups: tuple[GroupSpread, ...] = ()
    circumstances: Mapping[str, Any] = field(default_factory=dict)
    """The probe's table `anatomy`: unit, aggregation, bucket_mode, terms, vectors, cosine_error,
    dead, ..."""
    run: str = ""

    buckets: tuple[str, ...] = field(init=False)
    """From low to high reward spread, and `all` at the end."""
    terms: tuple[str, ...] = field(init=False)
    """The loss terms; the usual three have their place even where one of them is missing."""
    measured_terms: tuple[str, ...] = field(init=False)
    losses: tuple[str, ...] = field(init=False)
    present: frozenset[str] = field(init=False)
    """The templates of which anything was measured."""

    def __post_init__(self) -> None:
        counted = {found["bucket"] for name in self.metrics if (found := parse(SAMPLES, name))}
        norms = [
            found
            for name in self.metrics
            if (found := parse(NORM, name)) and found["term"] not in NOT_TERMS
        ]
        buckets = counted or {found["bucket"] for found in norms}
        measured = {found["term"] for found in norms}
        terms = (measured | set(self.dead)) - {TOTAL}
        losses = {found["name"] for name in self.metrics if (found := parse(LOSS, name))}
        derived = {
            "buckets": tuple(sorted(buckets, key=_bucket_rank)),
            "terms": _in_order(terms, USUAL_TERMS),
            "measured_terms": tuple(
                term for term in _in_order(terms, USUAL_TERMS) if term in measured
            ),
            "losses": _in_order(losses, USUAL_LOSSES),
            "present": frozenset(
                template
                for template in _templates()
                if any(parse(template, m) for m in self.metrics)
            ),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def value(self, template: str, **parts: str) -> float | None:
        """A template of the catalogue, filled in; None when it was not measured."""
        return self.metrics.get(key(template, **parts))

    @property
    def dead(self) -> tuple[str, ...]:
        """Terms of the loss that no parameter feels."""
        return tuple(map(str, self.circumstances.get("dead") or ()))

    def absence(self, term: str) -> str:
        """Why a term has no norm anywhere."""
        return "no gradient path" if term in self.dead else "no such term"

    def has(self, template: str) -> bool:
        """Whether anything of a template was measured."""
        return template in self.present


def read_analysis(run: Run | Log) -> dict[int, AnalysisStep]:
    """Every analysis of a run, by step; a step has one when a bucket was measured there."""
    metrics: dict[int, dict[str, float]] = {}
    for name in run.names():
        if _belongs(name):
            steps, values = run.series(name)
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                metrics.setdefault(step, {})[name] = value
    groups = _all_groups(run)
    tables = run.tables(CIRCUMSTANCES) if CIRCUMSTANCES in run.table_names() else ()
    about = {table.step: table.content for table in tables}
    found = (
        AnalysisStep(
            step=step,
            metrics=values,
            groups=tuple(groups.get(step, ())),
            circumstances=about.get(step, {}),
            run=run.name,
        )
        for step, values in sorted(metrics.items())
    )
    return {analysis.step: analysis for analysis in found if analysis.buckets}


def analysis_steps(run: Run | Log) -> tuple[int, ...]:
    """The steps at which a bucket was measured."""
    names = frozenset(run.names())
    found: set[int] = set()
    for bucket, terms in norms_by_bucket(names).items():
        counts = SAMPLES.replace("<bucket>", bucket)
        for name in {counts, *(f"{PREFIX}{bucket}/{term}" for term in terms)} & names:
            found.update(run.series(name)[0].tolist())
    return tuple(sorted(found))


def analysis_at(run: Run | Log, step: int) -> AnalysisStep:
    """One analysis: of a run with a hundred of them the others are not read."""
    metrics: dict[str, float] = {}
    for name in sorted(run.names()):
        if name.startswith(PREFIX):
            _, values = run.part(name, step, step)
            if len(values):
                metrics[name] = float(values[0])
    tables = (_spreads(content_of(run, name, step)) for name in _group_tables(run))
    about = content_of(run, CIRCUMSTANCES, step)
    return AnalysisStep(
        step=step,
        metrics=metrics,
        groups=tuple(spread for table in tables for spread in table or ()),
        circumstances=about if isinstance(about, Mapping) else {},
        run=run.name,
    )


def unreadable_groups(run: Run | Log, step: int) -> str:
    """A group table of the step without the columns it should have; empty: all are well."""
    tables = _group_tables(run)
    return next((name for name in tables if _spreads(content_of(run, name, step)) is None), "")


def content_of(run: Run | Log, name: str, step: int | None = None) -> Any:
    """A table at a step, or as it was last; None when there is none."""
    try:
        return run.table(name, step).content
    except UnknownName:
        return None


def from_flat(metrics: Mapping[str, Any], *, step: int, run: str = "") -> AnalysisStep:
    """An analysis out of an exported metrics file; other numbers are left aside."""
    numbers = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and _belongs(name)
    }
    return AnalysisStep(step=step, metrics=numbers, run=run)


def _belongs(name: str) -> bool:
    start = name.partition("/")[0]
    return any(
        parse(template, name) is not None
        for template in _templates()
        if template.startswith(start + "/")
    )


def _templates() -> list[str]:
    return [name for name, metric in CATALOGUE.items() if metric.origin == "anatomy"]


def norms_by_bucket(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The buckets, `all` first, and the terms that have a norm in each, the total last."""
    found: dict[str, set[str]] = {}
    counted = SAMPLES.rpartition("/")[2]
    for name in names:
        parts = name.split("/")
        if name.startswith(PREFIX) and len(parts) == 3:
            _, bucket, term = parts
            if term not in NOT_TERMS or term == counted:
                found.setdefault(bucket, set()).update({term} - NOT_TERMS)
    first = sorted(found, key=lambda bucket: (bucket != ALL, *_bucket_rank(bucket)[1:]))
    return {bucket: terms_in_order(found[bucket]) for bucket in first}


def terms_in_order(terms: Iterable[str], first: Sequence[str] = USUAL_TERMS) -> tuple[str, ...]:
    """Terms as people expect them: the given ones, the others by name, the total at the end."""
    rest = set(terms)
    known = [term for term in dict.fromkeys(first) if term in rest and term != TOTAL]
    others = sorted(rest - {*known, TOTAL})
    return (*known, *others, *(rest & {TOTAL}))


def _group_tables(run: Run | Log) -> list[str]:
    names = [
        name
        for name in run.table_names()
        if name.startswith(PREFIX) and name.endswith(f"/{GROUP_TABLE}")
    ]
    return sorted(names, key=lambda name: _bucket_rank(name.split("/")[-2]))


def _all_groups(run: Run | Log) -> dict[int, list[GroupSpread]]:
    found: dict[int, list[GroupSpread]] = {}
    for name in _group_tables(run):
        for table in run.tables(name):
            spreads = _spreads(table.content)
            if spreads is None:
                columns = ", ".join(GROUP_COLUMNS)
                raise UsageError(
                    f"table {name} at step {table.step} must have the columns {columns}"
                )
            found.setdefault(table.step, []).extend(spreads)
    return found


def _spreads(content: Any) -> list[GroupSpread] | None:
    """The lines of a group table; nothing when there is no table, None when it is not one."""
    if content is None:
        return []
    try:
        places = [content["columns"].index(column) for column in GROUP_COLUMNS]
        lines = [[row[place] for place in places] for row in content["data"]]
        return [
            GroupSpread(bucket=str(bucket), group_id=str(group), reward_std=float(spread))
            for bucket, group, spread in lines
            if spread is not None
        ]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None


def _bucket_rank(bucket: str) -> tuple[bool, int, str]:
    number = re.search(r"\d+", bucket)
    return bucket == ALL, int(number[0]) if number else 0, bucket


def _in_order(found: set[str], usual: tuple[str, ...]) -> tuple[str, ...]:
    first = usual if usual[0] in found else tuple(name for name in usual if name in found)
    return (*first, *sorted(found - set(first)))
