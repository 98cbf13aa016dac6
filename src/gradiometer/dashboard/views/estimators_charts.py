"""The pictures of a replicate study that compare: who varies less, how much is signal, how many rollouts it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradiometer.dashboard.desk import info_of
from gradiometer.dashboard.shape import Axis, Bars, Chart, Level, Marks, Number
from gradiometer.metrics import CATALOGUE
from gradiometer.plots.panels import Reading
from gradiometer.plots.studies import ESS, SNR, TRACE, Studies, unit_of
from gradiometer.store.strictjson import plain

__all__ = ["AXES", "absences", "curve_charts", "high_ends", "low_ends", "names_of", "study_charts"]

VARIANCE = "Variance and signal"
ONE = Level(value=1.0, label="as much signal as noise")
SAME = Level(value=1.0, label="no difference")
AXES = {"rollouts": "rollouts an instance", "k": "K"}


def study_charts(found: Studies) -> Iterator[Chart]:
    """The estimators side by side; what was not measured is left out."""
    yield from _ratio(found)
    if found.curve is None:
        yield from _rows(found, TRACE, "trace", "Variance of the gradient, tr Cov")
    yield from _snr(found)


def names_of(found: Studies) -> list[str]:
    """The categories of every chart by estimator."""
    return [study.name for study in found.studies]


def absences(found: Studies, template: str) -> str:
    """Why an estimator has no mark."""
    absent = [f"{s.name}: {s.absence(template)}" for s in found.studies if s.reading(template).value is None]
    bare = [s.name for s in found.studies if s.reading(template).value is not None and s.reading(template).low is None]
    words = [f"No interval, too few units: {', '.join(bare)}"] if bare and template in (TRACE, SNR) else []
    return "; ".join([*absent, *words])


def low_ends(readings: Sequence[Reading]) -> list[Number] | None:
    """Of the intervals; None where no reading has one."""
    return _all_ends([reading.low for reading in readings])


def high_ends(readings: Sequence[Reading]) -> list[Number] | None:
    """Of the intervals; None where no reading has one."""
    return _all_ends([reading.high for reading in readings])


def _all_ends(ends: Sequence[float | None]) -> list[Number] | None:
    spoken: list[Number] = plain(list(ends))
    return spoken if any(end is not None for end in ends) else None


def _ratio(found: Studies) -> Iterator[Chart]:
    if found.comparison is None:
        return
    ratios = found.comparison.ratios
    marks = Marks(
        label="ratio, 95 % interval",
        x=names_of(found),
        y=plain([ratio.value for ratio in ratios]),
        low=low_ends(ratios),
        high=high_ends(ratios),
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


def _chance(ratio: Reading) -> str:
    if ratio.low is None or ratio.high is None:
        return "no interval"
    return "may be chance: the interval includes 1" if ratio.low <= 1 <= ratio.high else "more than chance"


def _rows(found: Studies, template: str, id: str, title: str) -> Iterator[Chart]:
    readings = [study.reading(template) for study in found.studies]
    if all(reading.value is None for reading in readings):
        return
    marks = Marks(
        label="estimate, 95 % interval",
        x=names_of(found),
        y=plain([each.value for each in readings]),
        low=low_ends(readings),
        high=high_ends(readings),
    )
    yield Chart(
        id=id,
        kind="marks",
        title=title,
        section=VARIANCE,
        subtitle=absences(found, template),
        y=Axis(title=unit_of(template), scale=CATALOGUE[template].scale),
        marks=[marks],
        info=info_of(template),
    )


def _snr(found: Studies) -> Iterator[Chart]:
    """Beside the controls: shuffled rewards should read about 0."""
    names = dict.fromkeys(name for study in found.studies for name in study.controls)
    own = [study.reading(SNR) for study in found.studies]
    rows = [("as measured", "", own)]
    for name in names:
        readings = [study.controls.get(name, Reading(value=None)) for study in found.studies]
        rows.append((f"with {name.replace('_', ' ')}", f"control:{name}", readings))
    bars = [
        Bars(
            label=label,
            role=role,
            categories=names_of(found),
            values=plain([each.value for each in readings]),
            low=low_ends(readings),
            high=high_ends(readings),
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
            subtitle=absences(found, SNR),
            y=Axis(title="‖E g‖² / tr Cov", scale=CATALOGUE[SNR].scale),
            levels=[ONE],
            bars=bars,
            info=info_of(SNR),
        )


def curve_charts(curves: Sequence[tuple[str, str, Studies]]) -> Iterator[Chart]:
    """Against rollouts or K, marks joined: the chosen study first, then those of the other runs along the same axis.

    Each comes with the id of its run and what to call it.
    """
    first = curves[0][2].curve
    assert first is not None
    axis = Axis(title=AXES.get(first.axis, first.axis), scale="log" if min(first.values) > 0 else "linear")
    section = f"Against {AXES.get(first.axis, first.axis)}"
    quantities: tuple[tuple[str, str, str, Callable[[Studies, int], Reading]], ...] = (
        (SNR, "curve-snr", "Signal-to-noise", _curve_snr),
        (TRACE, "curve-trace", "Variance, tr Cov", lambda found, place: found.studies[place].reading(TRACE)),
        (ESS, "curve-ess", "|ESS|", lambda found, place: found.studies[place].reading(ESS)),
    )
    for template, id, title, read in quantities:
        marks = [made for run, label, found in curves if (made := _joined(run, label, found, read)) is not None]
        if marks:
            yield Chart(
                id=id,
                kind="marks",
                title=f"{title} against {axis.title}",
                section=section,
                subtitle=first.answer if template == SNR else "",
                x=axis,
                y=Axis(title="SNR" if template == SNR else unit_of(template), scale=CATALOGUE[template].scale),
                levels=[ONE] if template == SNR else [],
                marks=marks,
                info=info_of(template),
                wide=template == SNR,
            )


def _curve_snr(found: Studies, place: int) -> Reading:
    assert found.curve is not None
    return found.curve.snr[place]


def _joined(run: str, label: str, found: Studies, read: Callable[[Studies, int], Reading]) -> Marks | None:
    assert found.curve is not None
    order = sorted(range(len(found.studies)), key=found.curve.values.__getitem__)
    readings = [read(found, place) for place in order]
    if all(reading.value is None for reading in readings):
        return None
    return Marks(
        label=label,
        run=run,
        x=[found.curve.values[place] for place in order],
        y=plain([reading.value for reading in readings]),
        low=low_ends(readings),
        high=high_ends(readings),
        notes=[found.studies[place].name for place in order],
        joined=True,
    )
