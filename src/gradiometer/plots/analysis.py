"""One gradient analysis as the figures see it: flat metrics, the group table and the circumstances, wherever they came from.

Every key is a template of the catalogue with its placeholders filled, so a figure never knows a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradiometer.errors import UsageError
from gradiometer.metrics import CATALOGUE, key, parse
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

__all__ = ["ALL", "TOTAL", "AnalysisStep", "GroupSpread", "from_flat", "read_analysis"]

ALL, TOTAL = "all", "total"

SAMPLES = "grad_norm/<bucket>/sample_count"
NORM = "grad_norm/<bucket>/<term>"
LOSS = "grad_norm/<bucket>/loss/<name>"
GROUP_TABLE = "group_rv_table"
GROUP_COLUMNS = ("bucket", "group_id", "reward_std")
CIRCUMSTANCES = "anatomy"

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
    """What one analysis measured. A key that is not in `metrics` was not measured; a NaN was, and came out as NaN."""

    step: int
    metrics: Mapping[str, float]
    groups: tuple[GroupSpread, ...] = ()
    circumstances: Mapping[str, Any] = field(default_factory=dict)
    """The probe's table `anatomy`: unit, aggregation, bucket_mode, terms, vectors, cosine_error, dead, ..."""
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
        norms = [found for name in self.metrics if (found := parse(NORM, name)) and found["term"] not in _not_terms()]
        buckets = counted or {found["bucket"] for found in norms}
        measured = {found["term"] for found in norms}
        terms = (measured | set(self.dead)) - {TOTAL}
        losses = {found["name"] for name in self.metrics if (found := parse(LOSS, name))}
        derived = {
            "buckets": tuple(sorted(buckets, key=_bucket_rank)),
            "terms": _in_order(terms, USUAL_TERMS),
            "measured_terms": tuple(term for term in _in_order(terms, USUAL_TERMS) if term in measured),
            "losses": _in_order(losses, USUAL_LOSSES),
            "present": frozenset(
                template for template in _templates() if any(parse(template, m) for m in self.metrics)
            ),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def value(self, template: str, **parts: str) -> float | None:
        """What the catalogue's template reads with its placeholders filled; None when it was not measured."""
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
    """Every analysis of a run, by step. A step has one when at least one bucket was measured there."""
    metrics: dict[int, dict[str, float]] = {}
    for name in run.names():
        if _belongs(name):
            steps, values = run.series(name)
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                metrics.setdefault(step, {})[name] = value
    groups = _group_tables(run)
    about = _circumstances(run)
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


def from_flat(metrics: Mapping[str, Any], *, step: int, run: str = "") -> AnalysisStep:
    """An analysis out of an exported metrics file; what is not a number of an analysis is left aside."""
    numbers = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and _belongs(name)
    }
    return AnalysisStep(step=step, metrics=numbers, run=run)


def _belongs(name: str) -> bool:
    start = name.partition("/")[0]
    return any(parse(template, name) is not None for template in _templates() if template.startswith(start + "/"))


def _templates() -> list[str]:
    return [name for name, metric in CATALOGUE.items() if metric.origin == "anatomy"]


def _not_terms() -> set[str]:
    """What stands where a term does and is none: sample_count, reward_std_mean, ..."""
    parent = NORM.rpartition("/")[0]
    return {name.rpartition("/")[2] for name in CATALOGUE if name.rpartition("/")[0] == parent} | {GROUP_TABLE}


def _group_tables(run: Run | Log) -> dict[int, list[GroupSpread]]:
    found: dict[int, list[GroupSpread]] = {}
    names = [name for name in run.table_names() if name.rpartition("/")[2] == GROUP_TABLE]
    for name in sorted(names, key=lambda name: _bucket_rank(name.split("/")[-2])):
        for table in run.tables(name):
            try:
                found.setdefault(table.step, []).extend(_spreads(table.content))
            except (KeyError, TypeError, ValueError) as problem:
                columns = ", ".join(GROUP_COLUMNS)
                raise UsageError(f"table {name} at step {table.step} must have the columns {columns}") from problem
    return found


def _spreads(content: Mapping[str, Any]) -> list[GroupSpread]:
    places = [content["columns"].index(column) for column in GROUP_COLUMNS]
    lines = ([row[place] for place in places] for row in content["data"])
    return [
        GroupSpread(bucket=str(bucket), group_id=str(group), reward_std=float(spread))
        for bucket, group, spread in lines
        if spread is not None
    ]


def _circumstances(run: Run | Log) -> dict[int, Mapping[str, Any]]:
    if CIRCUMSTANCES not in run.table_names():
        return {}
    return {table.step: table.content for table in run.tables(CIRCUMSTANCES)}


def _bucket_rank(bucket: str) -> tuple[bool, int, str]:
    number = re.search(r"\d+", bucket)
    return bucket == ALL, int(number[0]) if number else 0, bucket


def _in_order(found: set[str], usual: tuple[str, ...]) -> tuple[str, ...]:
    first = usual if usual[0] in found else tuple(name for name in usual if name in found)
    return (*first, *sorted(found - set(first)))
