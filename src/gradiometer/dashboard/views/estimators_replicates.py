"""The pictures of single replicates and of the weights that make them, and all numbers of a study in a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from gradiometer.dashboard.desk import info_of
from gradiometer.dashboard.shape import Axis, Bars, Chart, Level, Marks, Number, TableOf
from gradiometer.dashboard.views.estimators_charts import absences, names_of
from gradiometer.dashboard.views.estimators_reading import SIGNED_ESS, extended_of, replicates_of
from gradiometer.metrics import CATALOGUE
from gradiometer.plots.panels import Reading
from gradiometer.plots.studies import ESS, NORM, PROJECTION, SNR, TOP_SHARE, TRACE, Studies, Study, unit_of
from gradiometer.store.strictjson import plain

__all__ = ["replicate_charts"]

REPLICATES, WEIGHTS = "Every replicate", "Who carries the gradient"


def replicate_charts(found: Studies) -> Iterator[Chart]:
    """Every replicate, the weights, and the table."""
    yield from _cloud(found)
    for template, id, title in (
        (NORM, "replicate-norm", "Gradient norm of every replicate, noise included"),
        (PROJECTION, "replicate-projection", "Every replicate along one fixed direction"),
    ):
        yield _strip(found, template, id, title)
    yield from _projections(found)
    yield from _ess(found)
    yield from _top_share(found)
    yield _numbers(found)


def _cloud(found: Studies) -> Iterator[Chart]:
    """A point a replicate; the spread of the cloud is the variance."""
    marks = [
        Marks(
            label=study.name,
            role=f"estimator:{study.name}",
            x=plain(study.series[NORM].values),
            y=plain(study.series[PROJECTION].values),
            notes=[f"replicate {number}" for number in range(study.num_replicates)],
        )
        for study in found.studies
        if len(study.series[PROJECTION].values) == study.num_replicates
    ]
    if not marks:
        return
    yield Chart(
        id="cloud",
        kind="marks",
        title="Clouds of replicates",
        section=REPLICATES,
        subtitle="One policy, the same instances, fresh samples: the spread is chance. Up: along one fixed N(0, I) direction.",
        x=Axis(title=f"gradient norm ({unit_of(NORM)})", scale=CATALOGUE[NORM].scale),
        y=Axis(title=f"projection ({unit_of(PROJECTION)})"),
        marks=marks,
        info=info_of(NORM, PROJECTION),
        wide=True,
    )


def _strip(found: Studies, template: str, id: str, title: str) -> Chart:
    rows = [(study, study.series[template]) for study in found.studies]
    each = [
        Marks(
            label=study.name,
            role=f"estimator:{study.name}",
            x=[study.name] * len(series.values),
            y=plain(series.values),
            notes=[f"replicate {number}" for number in range(len(series.values))],
        )
        for study, series in rows
    ]
    means = Marks(
        label="mean ± standard deviation",
        role="mean",
        x=[study.name for study, _ in rows],
        y=plain([series.mean for _, series in rows]),
        low=plain([_defined(series.mean - series.std) for _, series in rows]),
        high=plain([_defined(series.mean + series.std) for _, series in rows]),
    )
    return Chart(
        id=id,
        kind="marks",
        title=title,
        section=REPLICATES,
        y=Axis(title=unit_of(template), scale=CATALOGUE[template].scale),
        marks=[*each, means],
        info=info_of(template),
    )


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _projections(found: Studies) -> Iterator[Chart]:
    """The variance along each of the fixed directions: a difference that only one of them shows is chance."""
    marks = []
    for place, study in enumerate(found.studies):
        variances = extended_of(found, place).get("projections", {}).get("variance") or ()
        if variances:
            numbers = list(range(1, len(variances) + 1))
            marks.append(Marks(label=study.name, role=f"estimator:{study.name}", x=numbers, y=plain(variances)))
    if marks:
        yield Chart(
            id="projections",
            kind="marks",
            title="Variance along fixed random directions",
            section=REPLICATES,
            subtitle="The same N(0, I) directions for every estimator: a real difference shows along most of them.",
            x=Axis(title="direction"),
            y=Axis(title=unit_of(TRACE), scale="log"),
            marks=marks,
            info=info_of(PROJECTION),
        )


def _ess(found: Studies) -> Iterator[Chart]:
    """|ESS| beside the source's signed one, which reads 0 for centred weights however they are spread."""
    signed = [_mean(replicates_of(found, place, SIGNED_ESS)) for place in range(len(found.studies))]
    rows = [
        ("|ESS|", "kind:ess_abs", [study.reading(ESS).value for study in found.studies]),
        ("ESS, signed as in the source", "kind:ess_mean", signed),
    ]
    bars = [
        Bars(label=label, role=role, categories=names_of(found), values=plain(values))
        for label, role, values in rows
        if any(value is not None for value in values)
    ]
    rollouts = found.common("num_starts")
    if bars:
        yield Chart(
            id="ess",
            kind="bars",
            title="Effective sample size",
            section=WEIGHTS,
            subtitle=absences(found, ESS),
            y=Axis(title=unit_of(ESS)),
            levels=[Level(value=float(rollouts), label="rollouts an instance")] if isinstance(rollouts, int) else [],
            bars=bars,
            info=info_of(ESS, SIGNED_ESS),
        )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _top_share(found: Studies) -> Iterator[Chart]:
    values = [study.reading(TOP_SHARE).value for study in found.studies]
    if any(value is not None for value in values):
        yield Chart(
            id="top-share",
            kind="bars",
            title="Share of the largest weight",
            section=WEIGHTS,
            subtitle=absences(found, TOP_SHARE),
            y=Axis(title="of Σ|w|", low=0.0, high=1.0),
            bars=[Bars(label="top-1 share", categories=names_of(found), values=plain(values))],
            info=info_of(TOP_SHARE),
        )


def _numbers(found: Studies) -> Chart:
    """All of it in a table, with the intervals written out."""
    controls = list(dict.fromkeys(name for study in found.studies for name in study.controls))
    columns = [
        "estimator",
        "replicates",
        "grad norm",
        "tr Cov",
        "SNR",
        *(f"SNR, {name.replace('_', ' ')}" for name in controls),
    ]
    columns += ["|ESS|", "top-1 share", *(["variance ratio"] if found.comparison else [])]
    ratios = found.comparison.ratios if found.comparison else ()
    cells: list[list[Number]] = [
        [
            study.name,
            study.num_replicates,
            _spread(study),
            *(_written(study.reading(template), study.absence(template)) for template in (TRACE, SNR)),
            *(_written(study.controls.get(name, Reading(value=None)), "not measured") for name in controls),
            *(_written(study.reading(template), study.absence(template)) for template in (ESS, TOP_SHARE)),
            *(_written(ratio, "undefined") for ratio in ratios[place : place + 1]),
        ]
        for place, study in enumerate(found.studies)
    ]
    return Chart(
        id="numbers",
        kind="table",
        title="In numbers",
        section="In numbers",
        table=TableOf(columns=columns, cells=cells),
        info=info_of(NORM, TRACE, SNR, ESS, TOP_SHARE),
        wide=True,
    )


def _spread(study: Study) -> str:
    series = study.series[NORM]
    return f"{series.mean:.3g}" + ("" if math.isnan(series.std) else f" ± {series.std:.2g}")


def _written(reading: Reading, absence: str) -> str:
    if reading.value is None:
        return absence
    ends = "" if reading.low is None or reading.high is None else f" ({_short(reading.low)} – {_short(reading.high)})"
    return f"{_short(reading.value)}{ends}"


def _short(number: float) -> str:
    whole = 100 <= abs(number) < 10_000
    return (f"{number:.0f}" if whole else f"{number:.2g}").replace("-", "−")
