"""Question 3: does the divergence last, or collapse to a consensus?

Three quantities may fall: log_ratio_routed (sizes), 1 − cosine (directions), weight_distance (the weights themselves).
A fall is Mann–Kendall on block means, and a loss of at least half over the window. What diverges collapses when all
gradient measures that carry it fall, or when the weights do; one that still points elsewhere has not joined a consensus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.experts.answers import Answer, Number, Verdict
from gradiometer.doctor.experts.divergence import COS_MARGIN, SAME, Apartness
from gradiometer.doctor.experts.readings import confirmed, listed, steps_short, with_verdict
from gradiometer.doctor.experts.series import ExpertSeries, Points
from gradiometer.doctor.experts.waking import MARGIN
from gradiometer.maths.means import LEVEL
from gradiometer.maths.trends import MIN_DRIFT_DECADES, MIN_VALUES, Drift, drift
from gradiometer.metrics import key
from gradiometer.words import fmt

__all__ = ["judge_lasting"]

QUESTION = "Does it last, or collapse to consensus?"

FLOORS = {"log_ratio_routed": 0.1 * MARGIN, "cosine": 0.1 * (1.0 - COS_MARGIN), "weight_distance": 1e-4}
"""Below these a quantity is rounding and noise, and its logarithm would wander over decades."""

MEASURE_OF = {"size": "log_ratio_routed", "direction": "cosine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What one quantity did over the window."""

    name: str
    points: Points
    trend: Drift | None
    """Of its decimal logarithm; None below 8 measurements."""
    grounded: bool
    """At its floor most of the time: nothing that could fall."""

    @property
    def p_fall(self) -> float:
        """Two-sided p of a fall by half or more; 1 for anything else and below 8 blocks."""
        if self.trend is None or self.trend.p_value is None or self.trend.change > -MIN_DRIFT_DECADES:
            return 1.0
        return self.trend.p_value

    @property
    def holds(self) -> bool:
        """Enough blocks to tell, and no half of it lost."""
        judged = self.trend is not None and self.trend.p_value is not None
        return judged and not self.grounded and self.change > -MIN_DRIFT_DECADES

    @property
    def change(self) -> float:
        """Decades over the window."""
        return self.trend.change if self.trend else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The courses of one expert's divergence, and what Question 2 said about it."""

    gradient: tuple[Course, ...]
    """Those that carry the divergence."""
    weights: Course | None
    apart: Verdict

    @property
    def p_gradient(self) -> float:
        """Small when every measure that carries the divergence falls."""
        return max((course.p_fall for course in self.gradient), default=1.0)

    @property
    def p_weights(self) -> float:
        """Small when the weights approach those of expert 0."""
        return self.weights.p_fall if self.weights and not self.weights.grounded else 1.0

    @property
    def p_collapse(self) -> float:
        """Either will do, hence the factor."""
        return min(1.0, 2.0 * min(self.p_gradient, self.p_weights))

    @property
    def verdict(self) -> Verdict:
        """On this expert by itself."""
        if self.p_collapse < LEVEL:
            return "collapses"
        if self.apart == "explained by routing":
            return "converged"
        lasting = self.apart == "genuine" and any(course.holds for course in self.gradient)
        return "lasts" if lasting else "undecided"


def judge_lasting(series: ExpertSeries, apart: dict[str, Apartness]) -> Answer:
    """The answer over all experts, and for each."""
    courses = {e: _courses(series, e, apart[e]) for e in series.others}
    fates = {e: _fate(courses[e], apart[e]) for e in series.others}
    experts: dict[str, Verdict] = {e: fate.verdict for e, fate in fates.items()}
    fallen = confirmed({e: fate.p_collapse for e, fate in fates.items()})
    source = {e: found for e in series.others if (found := series.pooled("divergence", e)).values.size}
    return Answer(
        question=QUESTION,
        verdict=_headline(experts, fallen, apart),
        source_reading=_source_reading(source),
        sound_reading=_sound_reading(courses, fates, experts, fallen),
        numbers=tuple(_number(e, course) for e, found in courses.items() for course in found if course.trend),
        missing=tuple(_missing(series, courses, fates)),
        experts=experts,
    )


def _headline(experts: dict[str, Verdict], fallen: list[str], apart: dict[str, Apartness]) -> Verdict:
    """Collapses when one surely does; lasts when all do whose divergence is surely genuine."""
    if fallen:
        return "collapses"
    genuine = confirmed({e: found.p_genuine for e, found in apart.items()})
    if genuine:
        return "lasts" if all(experts[e] == "lasts" for e in genuine) else "undecided"
    explained = confirmed({e: found.p_explained for e, found in apart.items()})
    return "converged" if len(explained) == len(apart) else "undecided"


def _courses(series: ExpertSeries, expert: str, apart: Apartness) -> tuple[Course, ...]:
    cosine = apart.direction.points if apart.direction else None
    found = {
        "log_ratio_routed": series.mean("log_ratio_routed", expert),
        "cosine": Points(steps=cosine.steps, values=1.0 - cosine.values) if cosine else None,
        "weight_distance": series.mean("weight_distance", expert),
    }
    return tuple(_course(name, points) for name, points in found.items() if points and points.values.size)


def _course(name: str, points: Points) -> Course:
    floor = FLOORS[name]
    raised = np.maximum(points.values, floor)
    trend = drift(points.steps, np.log10(raised))
    return Course(name=name, points=points, trend=trend, grounded=bool(np.median(raised) <= floor))


def _fate(courses: tuple[Course, ...], apart: Apartness) -> Fate:
    outside = {
        MEASURE_OF[name]
        for name, p_value in (("size", apart.p_size), ("direction", apart.p_direction))
        if p_value * len(apart.judged) < LEVEL
    }
    judged = {MEASURE_OF[name] for name in apart.judged}
    gradient = [course for course in courses if course.name in judged and not course.grounded]
    carrying = [course for course in gradient if course.name in outside]
    if (
        apart.verdict == "explained by routing"
    ):  # tiers of two experts are not the same weights: their RMS may still move
        gradient = []
    weights = next((course for course in courses if course.name == "weight_distance"), None)
    return Fate(gradient=tuple(carrying or gradient), weights=weights, apart=apart.verdict)


def _number(expert: str, course: Course) -> Number:
    assert course.trend is not None
    name = "1 - cosine" if course.name == "cosine" else course.name
    return Number(
        expert=expert,
        name=f"trend of {name}",
        unit="decades over the window",
        value=course.trend.change,
        p_value=course.trend.p_value,
        points=int(course.points.values.size),
        blocks=course.trend.num_blocks,
    )


def _source_reading(found: dict[str, Points]) -> str:
    """First against last quarter, as a person reads the curve; the lowest end of all experts."""
    if not found:
        return "no divergence was logged"
    ends = {e: _ends(points) for e, points in found.items()}
    expert = min(ends, key=lambda e: ends[e][1])
    first, last = ends[expert]
    word = f"converged (below {SAME})" if last < SAME else "falling" if last < 0.8 * first else "sustained"
    which = f" (expert {expert}, the lowest of {len(found)})" if len(found) > 1 else ""
    return f"divergence {fmt(first)} in the first quarter, {fmt(last)} in the last{which}: {word}"


def _ends(points: Points) -> tuple[float, float]:
    quarter = max(1, points.values.size // 4)
    return float(points.values[:quarter].mean()), float(points.values[-quarter:].mean())


def _sound_reading(
    courses: dict[str, tuple[Course, ...]], fates: dict[str, Fate], experts: dict[str, Verdict], fallen: list[str]
) -> str:
    if not any(courses.values()):
        return "no verdict: none of log_ratio_routed, cosine and weight_distance was measured"
    if fallen:
        worst = min(fallen, key=lambda e: fates[e].p_collapse)
        rest = f"; lasts in {listed(lasts)}" if (lasts := with_verdict(experts, "lasts")) else ""
        more = f" (and in {len(fallen) - 1} more)" if len(fallen) > 1 else ""
        return f"expert {worst}{more}: {_words(courses[worst])}{rest}"
    expert = _lowest(courses)
    nothing = "no divergence beyond routing that could last; " if set(experts.values()) == {"converged"} else ""
    return f"{nothing}expert {expert}: {_words(courses[expert])}"


def _lowest(courses: dict[str, tuple[Course, ...]]) -> str:
    """The expert that fell most."""
    return min(courses, key=lambda e: min((course.change for course in courses[e]), default=0.0))


def _words(courses: tuple[Course, ...]) -> str:
    return ", ".join(_word(course) for course in courses)


def _word(course: Course) -> str:
    name = "1 - cosine" if course.name == "cosine" else course.name
    if course.grounded:
        return f"{name} at its floor"
    if course.trend is None or course.trend.p_value is None:
        return f"{name} {fmt(float(np.mean(course.points.values)))}, too short for a trend"
    sure = "" if course.trend.p_value >= LEVEL else f" (p = {course.trend.p_value:.1g})"
    return f"{name} x{fmt(10.0**course.change)} over the window{sure or ', no trend'}"


def _missing(series: ExpertSeries, courses: dict[str, tuple[Course, ...]], fates: dict[str, Fate]) -> list[str]:
    missing = []
    for quantity, name in (("log_ratio_routed", "log_ratio_routed"), ("cosine", "cos_to_0")):
        absent = [e for e, found in courses.items() if quantity not in {course.name for course in found}]
        if absent:
            missing.append(key(f"grad/expert/<expert>/{name}", expert=absent[0]))
    open_ = [course for fate in fates.values() if fate.verdict == "undecided" for course in fate.gradient]
    few = [
        steps_short(course.points, blocks=MIN_VALUES, block=course.trend.block if course.trend else None)
        for course in open_
        if course.trend is None or course.trend.p_value is None
    ]
    if few:
        missing.append(f"about {max(few)} more steps, until the series are worth {MIN_VALUES} independent blocks")
    elif any(course.change <= -MIN_DRIFT_DECADES and course.p_fall >= LEVEL for course in open_):
        missing.append("more steps: half of it is gone, and the series wanders too much to call it a trend")
    elif not missing and any(fate.verdict == "undecided" for fate in fates.values()):
        missing.append("an answer to question 2: what is not known to diverge cannot be said to last")
    return missing
