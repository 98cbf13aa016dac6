"""A replicate study: numbers by the catalogue's templates, and why one of them is not there.

Everything is read from the tables of `gradiometer variance` where there are any, and not from the
series: a sweep measures one estimator several times, under one name. A log that has only the
numbers is read by its series.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradiometer.errors import UsageError
from gradiometer.metrics import CATALOGUE, key, parse
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

__all__ = [
    "Comparison",
    "Measurement",
    "PerReplicate",
    "SnrCurve",
    "Studies",
    "Study",
    "bias_notes",
    "extended_of",
    "read_studies",
    "replicates_of",
    "studies_of",
    "unit_of",
]

NORM = "variance/<algorithm>/grad_norm"
PROJECTION = "variance/<algorithm>/grad_proj"
TRACE = "variance/<algorithm>/trace"
SNR = "variance/<algorithm>/snr"
ESS = "variance/<algorithm>/ess_abs"
TOP_SHARE = "variance/<algorithm>/top_share"
SIGNED_ESS = "variance/<algorithm>/ess_mean"
PREFIX = NORM.partition("<")[0]

RECORDS, COMPARISON, CURVE = "replicates", "comparison", "curve"
AXES = {"rollouts": "{} rollouts", "k": "K = {}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A value with its interval where there is one; None is not measured."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PerReplicate:
    """A number of every replicate, with the study's mean and standard deviation (ddof 0)."""

    values: tuple[float, ...]
    mean: float
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One estimator, replicated."""

    name: str
    """As short as it can be among its neighbours: `subloo`, `16 rollouts`, or the estimator with
    its options."""
    config: Mapping[str, Any]
    series: Mapping[str, PerReplicate]
    readings: Mapping[str, Measurement]
    """By template; a Measurement without a value where it is undefined, nothing where it was not
    measured."""
    controls: Mapping[str, Measurement]
    """The SNR of shuffled rewards and of a random policy."""
    bias: tuple[str, ...]
    num_units: int | None

    def reading(self, template: str) -> Measurement:
        """A number of the extended pass."""
        return self.readings.get(template, Measurement(value=None))

    def absence(self, template: str) -> str:
        """Why a number has no value."""
        if template not in self.readings:
            return "not measured"
        return "undefined: 1 replicate" if self.num_replicates == 1 else "undefined"

    @property
    def num_replicates(self) -> int:
        """How often the gradient was taken."""
        return len(self.series[NORM].values)

    @property
    def rollouts(self) -> int | None:
        """On each instance, where the record says so."""
        found = self.config.get("num_starts")
        return found if isinstance(found, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Variance ratios to the first, in the order of the studies, and the verdicts in words."""

    ratios: tuple[Measurement, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnrCurve:
    """SNR against rollouts or K, and the answer in words."""

    axis: str
    values: tuple[float, ...]
    snr: tuple[Measurement, ...]
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Studies:
    """What one `gradiometer variance` measured."""

    run: str
    records: Sequence[Mapping[str, Any]]
    """As they were kept."""
    studies: tuple[Study, ...]
    comparison: Comparison | None = None
    curve: SnrCurve | None = None

    def common(self, fact: str) -> Any:
        """What all studies have in common; None where they differ, or do not say."""
        found = [study.config.get(fact) for study in self.studies]
        return found[0] if all(each == found[0] for each in found) else None


def unit_of(template: str) -> str:
    """The catalogue's unit."""
    return CATALOGUE[template].unit


def read_studies(run: Run | Log) -> Studies | None:
    """The replicates of a run; None when it holds none."""
    if RECORDS not in run.table_names():
        return None
    kept = {
        name: run.table(name).content
        for name in (RECORDS, COMPARISON, CURVE)
        if name in run.table_names()
    }
    try:
        return _studies(run.name, kept)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise UsageError(
            f"the table {RECORDS!r} of {run.path} is not what `gradiometer variance` keeps "
            f"({type(problem).__name__}: {problem}); measure again, or give the table another name"
        ) from problem


def _studies(run: str, kept: Mapping[str, Any]) -> Studies:
    records = kept[RECORDS]
    if not records:
        raise ValueError("no record in it")
    comparison = _comparison(kept[COMPARISON], len(records)) if COMPARISON in kept else None
    curve = _curve(kept[CURVE], len(records)) if CURVE in kept else None
    if comparison is not None:
        names = [str(row["label"]) for row in kept[COMPARISON]["rows"]]
    elif curve is not None:
        names = [AXES.get(curve.axis, "{}").format(f"{value:g}") for value in curve.values]
    else:
        names = [str(record["config"]["label"]) for record in records]
    studies = tuple(
        _study(name, record) for name, record in zip(_distinct(names), records, strict=True)
    )
    return Studies(run=run, records=records, studies=studies, comparison=comparison, curve=curve)


def _distinct(names: Sequence[str]) -> list[str]:
    """A name that occurs again gets a number."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _study(name: str, record: Mapping[str, Any]) -> Study:
    extended = record.get("extended")
    readings: dict[str, Measurement] = {}
    if extended is not None:
        readings |= {template: _interval(extended[_last(template)]) for template in (TRACE, SNR)}
        readings |= {
            template: Measurement(value=float(extended["concentration"][_last(template)]))
            for template in (ESS, TOP_SHARE)
        }
    about = extended or {}
    return Study(
        name=name,
        config=dict(record["config"]),
        series={template: _series(record, _last(template)) for template in (NORM, PROJECTION)},
        readings=readings,
        controls={
            name: _interval(numbers[_last(SNR)])
            for name, numbers in about.get("controls", {}).items()
        },
        bias=tuple(map(str, about.get("bias", ()))),
        num_units=about.get("num_units"),
    )


def _last(template: str) -> str:
    """A record calls a quantity by the last part of its name."""
    return template.rpartition("/")[2]


def _series(record: Mapping[str, Any], name: str) -> PerReplicate:
    values = tuple(map(float, record["per_replicate"][name]))
    if not values:
        raise ValueError(f"no replicate in {name}")
    mean, std = (float(record["metrics"][f"{name}_{what}"]) for what in ("mean", "std"))
    return PerReplicate(values=values, mean=mean, std=std if len(values) > 1 else math.nan)


def _interval(found: Mapping[str, float | None] | None) -> Measurement:
    return (
        Measurement(value=None)
        if found is None
        else Measurement(**{end: found[end] for end in ("value", "low", "high")})
    )


def _triple(found: Sequence[float | None] | None) -> Measurement:
    value, low, high = found or (None, None, None)
    return Measurement(value=value, low=low, high=high)


def _comparison(content: Mapping[str, Any], count: int) -> Comparison:
    ratios = tuple(_triple(row["variance_ratio"]) for row in content["rows"])
    if len(ratios) != count:
        raise ValueError(f"{len(ratios)} ratios for {count} records")
    return Comparison(ratios=ratios, sentences=tuple(map(str, content["sentences"])))


def _curve(content: Mapping[str, Any], count: int) -> SnrCurve:
    values, snr = tuple(map(float, content["values"])), tuple(map(_triple, content["snr"]))
    if not len(values) == len(snr) == count:
        raise ValueError(f"{len(values)} values and {len(snr)} SNRs for {count} records")
    return SnrCurve(
        axis=str(content["axis"]), values=values, snr=snr, answer=str(content["answer"])
    )


def bias_notes(found: Studies) -> list[str]:
    """Each source of bias once, with whom it concerns."""
    whose: dict[str, list[str]] = {}
    for study in found.studies:
        for source in study.bias:
            whose.setdefault(source, []).append(study.name)
    everyone = len(found.studies)
    return [
        f"Biased{'' if len(names) == everyone else ' (' + ', '.join(names) + ')'}: {source}."
        for source, names in whose.items()
    ]


def studies_of(run: Run | Log) -> Studies | None:
    """What a run measured with replicates; None when it did not."""
    if not any(name.startswith(PREFIX) for name in run.names()):
        return None
    return read_studies(run) or _from_series(run)


def replicates_of(found: Studies, place: int, template: str) -> list[float]:
    """A number of every replicate; nothing where the records do not have it."""
    values = found.records[place].get("per_replicate", {}).get(template.rpartition("/")[2], [])
    return [float(value) for value in values]


def extended_of(found: Studies, place: int) -> Mapping[str, Any]:
    """The extended pass of a record; empty where there was none."""
    return found.records[place].get("extended") or {}


def _from_series(run: Run | Log) -> Studies | None:
    algorithms = sorted(parts["algorithm"] for name in run.names() if (parts := parse(NORM, name)))
    made = [(_record(run, algorithm), _study_of(run, algorithm)) for algorithm in algorithms]
    if not made:
        return None
    return Studies(
        run=run.name,
        records=[record for record, _ in made],
        studies=tuple(study for _, study in made),
    )


def _record(run: Run | Log, algorithm: str) -> Mapping[str, Any]:
    """As much of a record as the series give."""
    told = {
        template.rpartition("/")[2]: _values(run, template, algorithm)
        for template in (NORM, PROJECTION, SIGNED_ESS)
    }
    return {
        "config": {"label": algorithm},
        "per_replicate": {name: values for name, values in told.items() if values},
    }


def _study_of(run: Run | Log, algorithm: str) -> Study:
    readings = {
        template: _measurement(run, template, algorithm)
        for template in (TRACE, SNR, ESS, TOP_SHARE)
    }
    return Study(
        name=algorithm,
        config={"label": algorithm},
        series={
            template: _per_replicate(_values(run, template, algorithm))
            for template in (NORM, PROJECTION)
        },
        readings={
            template: reading for template, reading in readings.items() if reading.value is not None
        },
        controls={},
        bias=(),
        num_units=None,
    )


def _values(run: Run | Log, template: str, algorithm: str) -> list[float]:
    name = key(template, algorithm=algorithm)
    return [float(value) for value in run.series(name)[1]] if name in run.names() else []


def _per_replicate(values: list[float]) -> PerReplicate:
    return PerReplicate(
        values=tuple(values),
        mean=float(np.mean(values)) if values else math.nan,
        std=float(np.std(values)) if len(values) > 1 else math.nan,
    )


def _measurement(run: Run | Log, template: str, algorithm: str) -> Measurement:
    ends = [
        template,
        *((f"{template}_low", f"{template}_high") if template in (TRACE, SNR) else ()),
    ]
    found = [next(iter(_values(run, end, algorithm)), None) for end in ends]
    return Measurement(
        value=found[0],
        low=found[1] if len(found) > 1 else None,
        high=found[2] if len(found) > 1 else None,
    )
