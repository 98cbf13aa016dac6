"""The settings of compared runs beside their outcome: a wide table, parallel coordinates, and what
goes with a better outcome in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradiometer.charts.model import Chart, Number, Parallel, ParallelAxis, TableOf
from gradiometer.doctor.contrasts import told_contrasts
from gradiometer.store.comparison import OWN, Differences, better

__all__ = ["SweepOutcome", "goal_of", "outcome_from", "sweep_charts", "sweep_words"]

GOALS = (
    "val/success_rate",
    "val/reward",
    "success_rate",
    "reward",
    "val/loss",
    "loss",
)
"""What runs are judged by, the first that most of them have."""
MOST_AXES = 8
MOST_COLUMNS = 40
DIGITS = 5
SECTION = "Settings and outcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome:
    """Where each run ended up, by run."""

    quantity: str
    lower: bool
    last: Mapping[str, float]
    """Means of the last tenth."""
    best: Mapping[str, float]


def goal_of(by_run: Sequence[Mapping[str, object]]) -> str | None:
    """The quantity that says how well most of the runs did."""
    for goal in GOALS:
        if 2 * sum(goal in own for own in by_run) > len(by_run):
            return goal
    return None


def sweep_words(found: Differences, outcome: SweepOutcome | None) -> list[str]:
    """What differs between the good and the bad runs, where enough runs say it."""
    if outcome is None:
        return []
    settings = {
        row.name: row.values for row in found.differs if row.group == "config" and row.contested
    }
    told = told_contrasts(settings, outcome.last, outcome.quantity, lower=outcome.lower)
    return [told] if told else []


def sweep_charts(
    labels: Mapping[str, str], found: Differences, outcome: SweepOutcome | None
) -> list[Chart]:
    """The table, and where at least two settings differ the coordinates."""
    rows = [row for row in found.differs if row.group == "config" and row.contested]
    settings = {row.name: row.values for row in rows}
    if outcome is None or len(labels) < 2 or not settings:
        return []
    swept = [name for name in settings if not OWN.fullmatch(name.rpartition(".")[2])]
    charts = [_table(labels, settings, outcome)]
    if len(outcome.last) > 2 and swept:
        charts.insert(0, _coordinates(labels, {name: settings[name] for name in swept}, outcome))
    return charts


def _table(
    labels: Mapping[str, str], settings: Mapping[str, Mapping[str, str]], outcome: SweepOutcome
) -> Chart:
    shown = list(settings)[:MOST_COLUMNS]
    left = len(settings) - len(shown)
    cells: list[list[Number]] = [
        [
            label,
            _short(outcome.last.get(run, math.nan)) if run in outcome.last else None,
            _short(outcome.best[run]) if run in outcome.best else None,
            *(_cell(settings[name].get(run)) for name in shown),
        ]
        for run, label in labels.items()
    ]
    sign = -1.0 if outcome.lower else 1.0
    ranks = {label: _rank(outcome.last.get(run), sign) for run, label in labels.items()}
    cells.sort(key=lambda row: ranks[str(row[0])])  # the worst first, as everywhere
    columns = ["run", f"{outcome.quantity}, last 10 %", f"{outcome.quantity}, best", *shown]
    return Chart(
        id="compare-settings",
        kind="table",
        title="Settings and outcomes",
        subtitle=f"+{left} more settings differ." if left else "",
        section=SECTION,
        wide=True,
        table=TableOf(columns=columns, cells=cells),
    )


def _rank(value: float | None, sign: float) -> float:
    """What is not finite did worst; what was not measured comes last."""
    if value is None:
        return math.inf
    return sign * value if math.isfinite(value) else -math.inf


def _coordinates(
    labels: Mapping[str, str], settings: Mapping[str, Mapping[str, str]], outcome: SweepOutcome
) -> Chart:
    axes = [_axis(name, by_run, list(labels)) for name, by_run in settings.items()][:MOST_AXES]
    left = len(settings) - len(axes)
    values = [_short(outcome.last[run]) if run in outcome.last else None for run in labels]
    better_is = "lower" if outcome.lower else "higher"
    more = f" +{left} more settings differ." if left else ""
    return Chart(
        id="compare-parallel",
        kind="parallel",
        title="Settings, coloured by outcome",
        subtitle=f"A line is a run; {better_is} {outcome.quantity} is better and brighter.{more}",
        section=SECTION,
        wide=True,
        parallel=Parallel(
            runs=list(labels),
            labels=list(labels.values()),
            axes=axes,
            outcome=outcome.quantity,
            lower=outcome.lower,
            values=values,
        ),
    )


def _axis(name: str, by_run: Mapping[str, str], runs: Sequence[str]) -> ParallelAxis:
    texts = [by_run.get(run) for run in runs]
    numbers = [_number(text) for text in texts if text is not None]
    if all(number is not None for number in numbers):
        found = sorted(number for number in numbers if number is not None)
        log = found[0] > 0 and found[-1] / found[0] >= 30
        return ParallelAxis(
            name=name,
            scale="log" if log else "linear",
            values=[None if text is None else _number(text) for text in texts],
        )
    names = sorted({text for text in texts if text is not None})
    places: list[Number] = [None if text is None else names.index(text) for text in texts]
    return ParallelAxis(name=name, names=names, values=places)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _cell(text: str | None) -> Number:
    if text is None:
        return None
    number = _number(text)
    return text if number is None else number


def _short(value: float) -> Number:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{DIGITS}g}")


def outcome_from(
    quantity: str, readings: Mapping[str, tuple[float, tuple[float, int] | None]]
) -> SweepOutcome:
    """Of each run the mean of its last tenth, and its best with the step."""
    return SweepOutcome(
        quantity=quantity,
        lower=better(quantity) == "min",
        last={run: tail for run, (tail, _) in readings.items()},
        best={run: best[0] for run, (_, best) in readings.items() if best is not None},
    )
