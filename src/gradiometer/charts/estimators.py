"""The charts of a replicate study: who varies less, how much is signal, how many rollouts it takes,
every replicate, and all numbers in a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gradiometer.charts.model import Axis, Bars, Chart, Dots, Level, Number, TableOf, info_of
from gradiometer.charts.studies import (
    ESS,
    NORM,
    PROJECTION,
    SIGNED_ESS,
    SNR,
    TOP_SHARE,
    TRACE,
    Measurement,
    Studies,
    Study,
    extended_of,
    replicates_of,
    unit_of,
)
from gradiometer.metrics import CATALOGUE
from gradiometer.store.strictjson import plain
from gradiometer.words import counted

__all__ = ["AXES", "curve_charts", "measured_on", "replicate_charts", "study_charts", "trace_chart"]

REPLICATES, WEIGHTS = "Every replicate", "Who carries the gradient"
VARIANCE = "Variance and signal"
ONE = Level(value=1.0, label="as much signal as noise")
SAME = Level(value=1.0, label="no difference")
AXES = {"rollouts": "rollouts an instance", "k": "K"}


def study_charts(found: Studies) -> Iterator[Chart]:
    """The estimators side by side; what was not measured is left out."""
    yield from _ratio(found)
    if found.curve is None:
        yield from trace_chart(found)
    yield from _snr(found)


def _names(found: Studies) -> list[str]:
    """The categories of every chart by estimator."""
    return [study.name for study in found.studies]


def _absences(found: Studies, template: str) -> str:
    """Why an estimator has no mark."""
    absent = [
        f"{s.name}: {s.absence(template)}"
        for s in found.studies
        if s.reading(template).value is None
    ]
    bare = [
        s.name
        for s in found.studies
        if s.reading(template).value is not None and s.reading(template).low is None
    ]
    words = (
        [f"No interval, too few units: {', '.join(bare)}"]
        if bare and template in (TRACE, SNR)
        else []
    )
    return "; ".join([*absent, *words])


def _low_ends(readings: Sequence[Measurement]) -> list[Number] | None:
    """Of the intervals; None where no reading has one."""
    return _all_ends([reading.low for reading in readings])


def _high_ends(readings: Sequence[Measurement]) -> list[Number] | None:
    """Of the intervals; None where no reading has one."""
    return _all_ends([reading.high for reading in readings])


def _all_ends(ends: Sequence[float | None]) -> list[Number] | None:
    spoken: list[Number] = plain(list(ends))
    return spoken if any(end is not None for end in ends) else None


def _ratio(found: Studies) -> Iterator[Chart]:
    if found.comparison is None:
        return
    ratios = found.comparison.ratios
    marks = Dots(
        label="ratio, 95 % interval",
        x=_names(found),
        y=plain([ratio.value for ratio in ratios]),
        low=_low_ends(ratios),
        high=_high_ends(ratios),
        notes=["1 by definition", *map(_chance, ratios[1:])],
    )
    yield Chart(
        id="ratio",
        kind="marks",
        title=f"Variance relative to {found.studies[0].name}",
        section=VARIANCE,
        subtitle=" ".join(found.comparison.sentences),
        y=Axis(title=f"tr Cov / tr Cov of {found.studies[0].name}", scale="log"),
        levels=[SAME],
        marks=[marks],
        info=info_of(TRACE),
        wide=True,
    )


def _chance(ratio: Measurement) -> str:
    if ratio.low is None or ratio.high is None:
        return "no interval"
    return (
        "may be chance: the interval includes 1"
        if ratio.low <= 1 <= ratio.high
        else "more than chance"
    )


def trace_chart(found: Studies) -> Iterator[Chart]:
    """How much the gradient of each estimator varies."""
    readings = [study.reading(TRACE) for study in found.studies]
    if all(reading.value is None for reading in readings):
        return
    marks = Dots(
        label="estimate, 95 % interval",
        x=_names(found),
        y=plain([each.value for each in readings]),
        low=_low_ends(readings),
        high=_high_ends(readings),
    )
    yield Chart(
        id="trace",
        kind="marks",
        title="Variance of the gradient, tr Cov",
        section=VARIANCE,
        subtitle=_absences(found, TRACE),
        y=Axis(title=unit_of(TRACE), scale=CATALOGUE[TRACE].scale),
        marks=[marks],
        info=info_of(TRACE),
    )


def _snr(found: Studies) -> Iterator[Chart]:
    """Beside the controls: shuffled rewards should read about 0."""
    names = dict.fromkeys(name for study in found.studies for name in study.controls)
    own = [study.reading(SNR) for study in found.studies]
    rows = [("as measured", "", own)]
    for name in names:
        readings = [study.controls.get(name, Measurement(value=None)) for study in found.studies]
        rows.append((f"with {name.replace('_', ' ')}", f"control:{name}", readings))
    bars = [
        Bars(
            label=label,
            role=role,
            categories=_names(found),
            values=plain([each.value for each in readings]),
            low=_low_ends(readings),
            high=_high_ends(readings),
        )
        for label, role, readings in rows
        if any(each.value is not None for each in readings)
    ]
    if bars:
        yield Chart(
            id="snr",
            kind="bars",
            title="Signal-to-noise, beside the controls" if names else "Signal-to-noise",
            section=VARIANCE,
            subtitle=_absences(found, SNR),
            y=Axis(title="‖E g‖² / tr Cov", scale=CATALOGUE[SNR].scale),
            levels=[ONE],
            bars=bars,
            info=info_of(SNR),
        )


def curve_charts(curves: Sequence[tuple[str, str, Studies]]) -> Iterator[Chart]:
    """Against rollouts or K, marks joined: the chosen study first, then those of the other runs
    along the same axis.

    Each comes with the id of its run and what to call it.
    """
    first = curves[0][2].curve
    assert first is not None
    axis = Axis(
        title=AXES.get(first.axis, first.axis), scale="log" if min(first.values) > 0 else "linear"
    )
    section = f"Against {AXES.get(first.axis, first.axis)}"
    quantities: tuple[tuple[str, str, str, Callable[[Studies, int], Measurement]], ...] = (
        (SNR, "curve-snr", "Signal-to-noise", _curve_snr),
        (
            TRACE,
            "curve-trace",
            "Variance, tr Cov",
            lambda found, place: found.studies[place].reading(TRACE),
        ),
        (ESS, "curve-ess", "|ESS|", lambda found, place: found.studies[place].reading(ESS)),
    )
    for template, id, title, read in quantities:
        marks = [
            made
            for run, label, found in curves
            if (made := _joined(run, label, found, read)) is not None
        ]
        if marks:
            yield Chart(
                id=id,
                kind="marks",
                title=f"{title} against {axis.title}",
                section=section,
                subtitle=first.answer if template == SNR else "",
                x=axis,
                y=Axis(
                    title="SNR" if template == SNR else unit_of(template),
                    scale=CATALOGUE[template].scale,
                ),
                levels=[ONE] if template == SNR else [],
                marks=marks,
                info=info_of(template),
                wide=template == SNR,
            )


def _curve_snr(found: Studies, place: int) -> Measurement:
    assert found.curve is not None
    return found.curve.snr[place]


def _joined(
    run: str, label: str, found: Studies, read: Callable[[Studies, int], Measurement]
) -> Dots | None:
    assert found.curve is not None
    order = sorted(range(len(found.studies)), key=found.curve.values.__getitem__)
    readings = [read(found, place) for place in order]
    if all(reading.value is None for reading in readings):
        return None
    return Dots(
        label=label,
        run=run,
        x=[found.curve.values[place] for place in order],
        y=plain([reading.value for reading in readings]),
        low=_low_ends(readings),
        high=_high_ends(readings),
        notes=[found.studies[place].name for place in order],
        joined=True,
    )


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
        Dots(
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
        subtitle="One policy, the same instances, fresh samples: the spread is chance. Up: along "
        "one fixed N(0, I) direction.",
        x=Axis(title=f"gradient norm ({unit_of(NORM)})", scale=CATALOGUE[NORM].scale),
        y=Axis(title=f"projection ({unit_of(PROJECTION)})"),
        marks=marks,
        info=info_of(NORM, PROJECTION),
        wide=True,
    )


def _strip(found: Studies, template: str, id: str, title: str) -> Chart:
    rows = [(study, study.series[template]) for study in found.studies]
    each = [
        Dots(
            label=study.name,
            role=f"estimator:{study.name}",
            x=[study.name] * len(series.values),
            y=plain(series.values),
            notes=[f"replicate {number}" for number in range(len(series.values))],
        )
        for study, series in rows
    ]
    means = Dots(
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
    """The variance along each fixed direction: what only one of them shows is chance."""
    marks = []
    for place, study in enumerate(found.studies):
        variances = extended_of(found, place).get("projections", {}).get("variance") or ()
        if variances:
            numbers = list(range(1, len(variances) + 1))
            marks.append(
                Dots(
                    label=study.name, role=f"estimator:{study.name}", x=numbers, y=plain(variances)
                )
            )
    if marks:
        yield Chart(
            id="projections",
            kind="marks",
            title="Variance along fixed random directions",
            section=REPLICATES,
            subtitle="The same N(0, I) directions for every estimator: a real difference shows "
            "along most of them.",
            x=Axis(title="direction"),
            y=Axis(title=unit_of(TRACE), scale="log"),
            marks=marks,
            info=info_of(PROJECTION),
        )


def _ess(found: Studies) -> Iterator[Chart]:
    """|ESS| beside the signed one, which reads 0 for centred weights however they are spread."""
    signed = [_mean(replicates_of(found, place, SIGNED_ESS)) for place in range(len(found.studies))]
    rows = [
        ("|ESS|", "kind:ess_abs", [study.reading(ESS).value for study in found.studies]),
        ("ESS, signed as in the max@K study", "kind:ess_mean", signed),
    ]
    bars = [
        Bars(label=label, role=role, categories=_names(found), values=plain(values))
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
            subtitle=_absences(found, ESS),
            y=Axis(title=unit_of(ESS)),
            levels=(
                [Level(value=float(rollouts), label="rollouts an instance")]
                if isinstance(rollouts, int)
                else []
            ),
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
            subtitle=_absences(found, TOP_SHARE),
            y=Axis(title="of Σ|w|", low=0.0, high=1.0),
            bars=[Bars(label="top-1 share", categories=_names(found), values=plain(values))],
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
            *(
                _written(study.reading(template), study.absence(template))
                for template in (TRACE, SNR)
            ),
            *(
                _written(study.controls.get(name, Measurement(value=None)), "not measured")
                for name in controls
            ),
            *(
                _written(study.reading(template), study.absence(template))
                for template in (ESS, TOP_SHARE)
            ),
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


def _written(reading: Measurement, absence: str) -> str:
    if reading.value is None:
        return absence
    ends = (
        ""
        if reading.low is None or reading.high is None
        else f" ({_short(reading.low)} – {_short(reading.high)})"
    )
    return f"{_short(reading.value)}{ends}"


def _short(number: float) -> str:
    whole = 100 <= abs(number) < 10_000
    return (f"{number:.0f}" if whole else f"{number:.2g}").replace("-", "−")


def measured_on(found: Studies, *, intervals: bool = True) -> str:
    """The problem and how many instances, rollouts and replicates it was measured with."""
    replicates = {study.num_replicates for study in found.studies}
    units = {study.num_units for study in found.studies if study.reading(TRACE).low is not None}
    problem, nodes, reduction = (found.common(fact) for fact in ("problem", "num_loc", "reduction"))
    sure = intervals and len(units) == 1
    parts = [
        f"{problem}{f', {nodes} nodes' if nodes else ''}" if problem else "",
        counted(found.common("num_instances"), "instance"),
        counted(found.common("num_starts"), "rollout"),
        counted(replicates.pop() if len(replicates) == 1 else None, "replicate"),
        f"{reduction} reduction" if reduction else "",
        f"95 % intervals over {counted(units.pop(), 'unit')} of instances" if sure else "",
    ]
    return " · ".join(part for part in parts if part)
