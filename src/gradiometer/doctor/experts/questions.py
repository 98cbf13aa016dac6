"""The three questions about experts: are they waking up, is the divergence genuine, does it last?

Waking up. x_e = log[(bottom RMS/middle RMS) of expert e ÷ the same of expert 0]. Both tiers of an
expert carry the same routing weight, so it cancels. Waking up: x_e clearly above 0.05 nats; not:
clearly below it.

Genuine, once routing is divided out. In a router that merges weights once a batch,
∂L/∂W_e = w_e ∂L/∂W. Routing then explains everything that sets two experts apart: norms per routing
weight agree, and cosines are 1. Two measures look for more:

    size       log[(norm/routing weight) of expert e ÷ that of expert 0], explained within ± 0.05
    direction  cosine with expert 0 (with all others, where none is special), explained above 0.99

Genuine: one of them is clearly outside. Explained by routing: both are clearly inside, or the
weights of the two experts are the same, for then they are one function and only what each is asked
can differ. Of experts that are asked token by token only the direction is judged (norms of noise
grow with the root of the tokens, not with their number), and it proves nothing without the weights:
different tokens lower a cosine by themselves.

Lasting, or collapsing to a consensus. Three quantities may fall: log_ratio_routed (sizes), 1 −
cosine (directions), weight_distance (the weights themselves). A fall is Mann–Kendall on block
means, and a loss of at least half over the window. What diverges collapses when the weights meet,
or when all gradient measures that carry it fall and the weights do not stay apart (weights.py);
where they do, it fades. One that still points elsewhere has not joined a consensus.

An expert without tokens or gradients is dead, whatever it did before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradiometer.doctor.experts.answers import TONES, Answer, Number, Verdict
from gradiometer.doctor.experts.series import REFERENCE, ExpertSeries, TimeSeries
from gradiometer.doctor.experts.weights import Standing
from gradiometer.doctor.signs import power
from gradiometer.maths.means import (
    LEVEL,
    MIN_BLOCKS,
    MeanInterval,
    block_length,
    holm,
    mean_interval,
)
from gradiometer.maths.trends import MIN_DRIFT_DECADES, MIN_VALUES, Drift, drift
from gradiometer.metrics import key
from gradiometer.words import fmt

__all__ = ["judge_divergence", "judge_lasting", "judge_waking", "listed", "measure", "plus_minus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A quantity of an expert: the number to show, and the interval to judge by, if any."""

    number: Number
    interval: MeanInterval | None
    points: TimeSeries

    def p_above(self, bound: float) -> float:
        """Two-sided p of the 95 % interval lying above the bound; 1 without an interval."""
        return min(1.0, 2.0 * self.interval.p_above(bound)) if self.interval else 1.0

    def p_below(self, bound: float) -> float:
        """The same for an interval below the bound."""
        return min(1.0, 2.0 * self.interval.p_below(bound)) if self.interval else 1.0


def estimate(points: TimeSeries, *, expert: str, name: str, unit: str) -> Estimate | None:
    """The mean of a quantity with its interval; None when it was never measured."""
    if points.values.size == 0:
        return None
    found = mean_interval(points.values)
    number = Number(
        expert=expert,
        name=name,
        unit=unit,
        value=float(points.values.mean()),
        low=found.low if found else None,
        high=found.high if found else None,
        points=int(points.values.size),
        blocks=found.num_blocks if found else None,
    )
    return Estimate(number=number, interval=found, points=points)


def confirmed(p_values: Mapping[str, float]) -> list[str]:
    """The experts whose p stands when all that were looked at count (Holm)."""
    experts = list(p_values)
    return [
        expert
        for expert, fallen in zip(experts, holm([p_values[e] for e in experts]), strict=True)
        if fallen
    ]


def steps_short(points: TimeSeries, *, blocks: int = MIN_BLOCKS, block: int | None = None) -> int:
    """Steps still to be trained until the measurements are worth so many blocks."""
    wanted = blocks * (block or block_length(points.values)) - points.values.size
    return max(0, math.ceil(wanted * points.gap))


def listed(experts: Sequence[str], *, most: int = 6) -> str:
    """`expert 2`, `experts 1, 2 and 5`, `experts 1, 2, 3 and 58 more`."""
    if len(experts) == 1:
        return f"expert {experts[0]}"
    head, last = (
        (experts[:-1], experts[-1])
        if len(experts) <= most
        else (experts[:3], f"{len(experts) - 3} more")
    )
    return f"experts {', '.join(head)} and {last}"


def with_verdict(experts: Mapping[str, Verdict], wanted: Verdict) -> list[str]:
    """The experts that got a verdict."""
    return [expert for expert, verdict in experts.items() if verdict == wanted]


def span(number: Number) -> str:
    """`0.21 [0.19, 0.23]`, or `0.21 (no interval yet)`, in the digits the interval can bear."""
    if number.low is None or number.high is None:
        return f"{fmt(number.value)} (no interval yet)"
    return _span(number.value, number.low, number.high, pure=number.unit != "loss/weight")


def times(number: Number) -> str:
    """The same for a log ratio, as a factor: `3.0 [2.9, 3.1] times`."""
    factor, *ends = (
        float(np.exp(min(x, 700.0)))
        for x in (number.value, number.low, number.high)
        if x is not None
    )
    within = (
        _span(factor, *ends, pure=True) if len(ends) == 2 else f"{fmt(factor)} (no interval yet)"
    )
    return f"{within} times"


def plus_minus(number: Number) -> str:
    """`0.21 ± 0.02` of a number without a unit; `0.21 ± ?` without an interval."""
    if number.low is None or number.high is None:
        return f"{number.value:.3f} ± ?"
    digits = min(3, _digits(number.high - number.low))
    return f"{number.value:.{digits}f} ± {0.5 * (number.high - number.low):.{digits}f}".replace(
        "-0.000 ", "0.000 "
    )


def _span(value: float, low: float, high: float, *, pure: bool) -> str:
    """A pure number is near 1 or 0, and 1e-17 of it is nothing; one with a unit has any size."""
    if not pure and (0 < abs(value) < 1e-2 or abs(value) >= 1e4):
        return f"{fmt(value)} [{fmt(low)}, {fmt(high)}]"
    digits = _digits(high - low)
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _digits(width: float) -> int:
    """Decimals: two digits of the interval's width, at least three where it has none."""
    return 3 if not 1e-4 <= width < math.inf else max(0, min(4, 1 - math.floor(math.log10(width))))


MEANINGFUL, SAME = 0.05, 0.01
"""How the Prismatic dynamics tab reads a divergence: meaningful above, converged below."""

COS_MARGIN = 0.99
"""Eight degrees. Rounding leaves a cosine above it; merging per sample gave 0.3 to 0.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apartness:
    """How far an expert is from the reference once routing is divided out; None if not measured."""

    size: Estimate | None
    direction: Estimate | None
    judged: tuple[str, ...]
    """Which of the two count."""
    standing: Standing
    routed: bool = False
    """Each expert sees its own tokens."""

    @property
    def sure_of_weights(self) -> bool:
        """Whether the weights allow a divergence: known to differ where tokens are routed, and
        nowhere known to be one."""
        known = self.standing.weights in ("apart", "nearing")
        return not self.standing.dead and (known if self.routed else not self.standing.one)

    @property
    def p_size(self) -> float:
        """Small when the size is clearly outside of ± 0.05 nats."""
        if self.size is None or "size" not in self.judged:
            return 1.0
        return min(self.size.p_above(MARGIN), self.size.p_below(-MARGIN))

    @property
    def p_direction(self) -> float:
        """Small when the cosine is clearly below 0.99."""
        return self.direction.p_below(COS_MARGIN) if self.direction else 1.0

    @property
    def p_genuine(self) -> float:
        """Small when either is clearly outside; either may be by chance, hence the factor."""
        if not self.sure_of_weights:
            return 1.0
        return min(1.0, len(self.judged) * min(self.p_size, self.p_direction))

    @property
    def p_explained(self) -> float:
        """Small when all that counts is clearly inside, and was measured."""
        if self.standing.one or self.standing.dead:
            return 0.0 if self.standing.one else 1.0
        inside = self.direction.p_above(COS_MARGIN) if self.direction else 1.0
        if "size" in self.judged:
            within = (
                max(self.size.p_above(-MARGIN), self.size.p_below(MARGIN)) if self.size else 1.0
            )
            inside = max(inside, within)
        return inside

    @property
    def verdict(self) -> Verdict:
        """On this expert by itself."""
        if self.standing.dead and not self.standing.one:
            return "dead"
        if self.p_genuine < LEVEL:
            return "genuine"
        return "explained by routing" if self.p_explained < LEVEL else "undecided"


def measure(series: ExpertSeries, standings: Mapping[str, Standing]) -> dict[str, Apartness]:
    """Size and direction of each expert but the reference, in the layers where they are two."""
    routed = series.routing == "top-k"
    lost = standings[REFERENCE].dead

    def apartness(e: str) -> Apartness:
        met = standings[e].met_in
        quantity = "cos_mean" if routed and series.has("cos_mean", e) else "cos_to_0"
        size = _relative(series, e, "norm", per="routing_weight", name="norm_per_weight", but=met)
        return Apartness(
            size=None if lost else size or _relative(series, e, "norm_per_weight", but=met),
            direction=None
            if lost and quantity == "cos_to_0"
            else _direction(series, e, quantity, met),
            judged=("direction",) if routed else ("size", "direction"),
            standing=standings[e],
            routed=routed,
        )

    return {e: apartness(e) for e in series.others}


def _relative(
    series: ExpertSeries,
    expert: str,
    quantity: str,
    *,
    per: str = "",
    name: str = "",
    but: Collection[str] = (),
) -> Estimate | None:
    """A quantity (per another one) beside that of expert 0."""
    points = series.relative(quantity, expert, per=per, but=but)
    name = f"log {name or quantity} over expert 0's"
    return estimate(points, expert=expert, name=name, unit="nats")


def _of_others(series: ExpertSeries, read: Callable[[str], Estimate | None]) -> dict[str, Estimate]:
    """What was measured, of each expert but the reference."""
    return {e: found for e in series.others if (found := read(e))}


def judge_divergence(series: ExpertSeries, apart: dict[str, Apartness]) -> Answer:
    """The answer over all experts, and for each."""
    genuine = confirmed({e: found.p_genuine for e, found in apart.items()})
    explained = confirmed({e: found.p_explained for e, found in apart.items()})
    living = [e for e, found in apart.items() if found.verdict != "dead"]
    verdict: Verdict = "undecided"
    if not living:
        verdict = "dead"
    elif genuine:
        verdict = "genuine"
    elif len(explained) == len(living):
        verdict = "explained by routing"
    source = _of_others(
        series,
        lambda e: estimate(
            series.pooled("divergence", e), expert=e, name="divergence", unit="loss/weight"
        ),
    )
    return Answer(
        question="Do the experts really learn different things?",
        verdict=verdict,
        source_reading=_divergence_source_reading([item.number for item in source.values()]),
        sound_reading=_divergence_sound_reading(series, apart, genuine),
        numbers=tuple(_divergence_numbers(series, apart, source)),
        missing=tuple(_divergence_missing(apart, series)) if verdict == "undecided" else (),
        experts={e: found.verdict for e, found in apart.items()},
        tone=TONES[verdict],
    )


def _direction(
    series: ExpertSeries, expert: str, quantity: str, met: Collection[str] = ()
) -> Estimate | None:
    return estimate(series.mean(quantity, expert, met), expert=expert, name=quantity, unit="1")


def _divergence_source_reading(found: list[Number]) -> str:
    if not found:
        return "no divergence was logged"
    high, low = (choose(found, key=lambda number: number.value) for choose in (max, min))
    text = f"mean divergence {span(high)} loss/weight (expert {high.expert})"
    if len(found) > 1:
        text += f", {span(low)} (expert {low.expert})"
    return f"{text}: {_reading(low.value, high.value)}"


def _reading(low: float, high: float) -> str:
    if low > MEANINGFUL:
        return f"meaningful (above {MEANINGFUL})"
    if high < SAME:
        return f"converged (below {SAME})"
    if high > MEANINGFUL:
        return f"meaningful (above {MEANINGFUL}) in some"
    return f"between converged ({SAME}) and meaningful ({MEANINGFUL})"


def _divergence_sound_reading(
    series: ExpertSeries, apart: dict[str, Apartness], genuine: list[str]
) -> str:
    directions = [found.direction.number for found in apart.values() if found.direction]
    sizes = [found.size.number for found in apart.values() if found.size]
    parts = []
    if sizes:
        far = max(sizes, key=lambda number: abs(number.value))
        parts.append(f"norm per routing weight of expert {far.expert} is {times(far)} expert 0's")
    if directions:
        far = min(directions, key=lambda number: number.value)
        parts.append(f"{far.name} {span(far)} (expert {far.expert})")
    if not parts:
        return "no verdict: neither routing weights nor cosines were measured"
    if genuine and len(genuine) < len(apart):
        parts.append(f"genuine in {listed(genuine)} of {len(apart)}")
    if series.routing == "top-k" and genuine:
        parts.append("each expert sees its own tokens, which by itself lowers a cosine")
    return "; ".join([*parts, *_standing_words({e: found.standing for e, found in apart.items()})])


def _standing_words(standings: Mapping[str, Standing]) -> list[str]:
    """Who is one with expert 0, and who is dead."""
    words = []
    if one := {e: x.distance for e, x in standings.items() if x.one and x.distance is not None}:
        e = min(one, key=lambda e: one[e])
        more = f" (and {len(one) - 1} more)" if len(one) > 1 else ""
        words.append(
            f"the weights of expert {e}{more} are {100 * one[e]:.2g}% of their size from expert"
            " 0's: they are the same function, and only their inputs differ"
        )
    if partly := [e for e, x in standings.items() if x.met_in and not x.one]:
        words.append(f"in some layers the weights of {listed(partly)} are expert 0's")
    if dead := [e for e, x in standings.items() if x.dead]:
        words.append(f"{listed(dead)} {'gets' if len(dead) == 1 else 'get'} no gradient")
    return words


def _divergence_numbers(
    series: ExpertSeries, apart: dict[str, Apartness], source: dict[str, Estimate]
) -> list[Number]:
    found = [item.number for item in source.values()]
    for e, item in apart.items():
        found += [part.number for part in (item.size, item.direction) if part]
        points = series.mean("log_ratio_routed", e)
        extra = estimate(points, expert=e, name="log_ratio_routed", unit="nats")
        found += [extra.number] if extra else []
        if item.direction and item.direction.number.name == "cos_mean":
            beside = _direction(series, e, "cos_to_0")
            found += [beside.number] if beside else []
    if series.routing == "top-k" and (mine := _direction(series, REFERENCE, "cos_mean")):
        found.append(mine.number)
    return found


def _divergence_missing(apart: dict[str, Apartness], series: ExpertSeries) -> list[str]:
    missing = []
    unsized = [e for e, item in apart.items() if item.size is None and "size" in item.judged]
    undirected = [e for e, item in apart.items() if item.direction is None]
    if unsized:
        name = key("grad/expert/<expert>/routing_weight", expert=unsized[0])
        missing.append(f"{name} and of expert 0: is the router's output understood?")
    if undirected:
        missing.append(key("grad/expert/<expert>/cos_to_0", expert=undirected[0]))
    unweighed = [
        e for e, item in apart.items() if item.routed and item.standing.weights == "unknown"
    ]
    if unweighed:
        missing.append(
            key("grad/expert/<expert>/weight_distance", expert=unweighed[0])
            + ": different tokens lower a cosine whether or not the experts differ"
        )
    parts = [part for item in apart.values() for part in (item.size, item.direction) if part]
    few = [steps_short(part.points) for part in parts if part.interval is None]
    if few:
        missing.append(f"about {max(few)} more steps, for intervals")
    elif not missing and any(item.verdict == "undecided" for item in apart.values()):
        missing.append(
            f"more steps: an interval still crosses {MARGIN} nats or a cosine of {COS_MARGIN}"
        )
    return missing


MARGIN = 0.05
"""Nats: five per cent of a gradient, the smallest difference between experts worth a word."""


def judge_waking(series: ExpertSeries, standings: Mapping[str, Standing]) -> Answer:
    """The answer over all experts, and for each."""
    lost = standings[REFERENCE].dead
    sound = {} if lost else _of_others(series, lambda e: _inside(series, e, "rms"))
    living = [e for e in series.others if not standings[e].dead]
    judged = {e: found for e, found in sound.items() if e in living}
    # who is expert 0 again has no weights of its own that could wake
    p_above = {e: 1.0 if standings[e].one else x.p_above(MARGIN) for e, x in judged.items()}
    p_below = {e: found.p_below(MARGIN) for e, found in judged.items()}
    experts: dict[str, Verdict] = {
        e: _verdict(p_above.get(e, 1.0), p_below.get(e, 1.0)) if e in living else "dead"
        for e in series.others
    }
    awake, asleep = confirmed(p_above), confirmed(p_below)
    verdict: Verdict = "undecided"
    if not living:
        verdict = "dead"
    elif awake:
        verdict = "waking up"
    elif len(asleep) == len(living):
        verdict = "not waking up"
    source = _of_others(series, lambda e: _relative(series, e, "bottom_norm"))
    return Answer(
        question="Do the smallest weights begin to learn?",
        verdict=verdict,
        source_reading=_waking_source_reading(source),
        sound_reading=_waking_sound_reading(series, sound, experts, awake),
        numbers=tuple(_waking_numbers(series, source, sound)),
        missing=tuple(_waking_missing(series, sound, decided=verdict != "undecided")),
        experts=experts,
        tone=TONES[verdict],
    )


def _inside(series: ExpertSeries, expert: str, kind: str) -> Estimate | None:
    name, bottom, middle = f"bottom/middle {kind}", f"bottom_{kind}", f"middle_{kind}"
    return _relative(series, expert, bottom, per=middle, name=name)


def _per_weight(series: ExpertSeries, expert: str) -> Estimate | None:
    name = "bottom_rms per routing weight"
    return _relative(series, expert, "bottom_rms", per="routing_weight", name=name)


def _verdict(p_above: float, p_below: float) -> Verdict:
    return "waking up" if p_above < LEVEL else "not waking up" if p_below < LEVEL else "undecided"


def _waking_source_reading(found: dict[str, Estimate]) -> str:
    if not found:
        return "no bottom norms to compare"
    largest = max(found.values(), key=lambda item: item.number.value).number
    word = "higher" if largest.value > MARGIN else "lower" if largest.value < -MARGIN else "similar"
    which = f" (expert {largest.expert}, the highest of {len(found)})" if len(found) > 1 else ""
    return f"bottom norm {times(largest)} expert 0's{which}: {word}, without correcting for routing"


def _waking_sound_reading(
    series: ExpertSeries, sound: dict[str, Estimate], experts: dict[str, Verdict], awake: list[str]
) -> str:
    if not sound:
        return _from_norms(series)
    largest = max(sound.values(), key=lambda item: item.number.value).number
    text = (
        f"bottom/middle RMS of expert {largest.expert} is {times(largest)} expert 0's; routing"
        " cancels in it"
    )
    if awake and len(awake) < len(series.others):
        text += f"; above {MARGIN} nats in {listed(awake)} of {len(series.others)}"
    elif not awake and (open_ := with_verdict(experts, "undecided")):
        text += f"; undecided against {MARGIN} nats in {listed(open_)}"
    return text


def _from_norms(series: ExpertSeries) -> str:
    """What Prismatic's own columns allow: a number, no verdict, for layers may differ."""
    found = list(_of_others(series, lambda e: _inside(series, e, "norm")).values())
    if not found:
        return "no verdict: the tiers of the experts were not measured"
    largest = max(found, key=lambda item: item.number.value).number
    return (
        f"bottom/middle norm of expert {largest.expert} is {times(largest)} expert 0's, from norms"
        " averaged over layers: routing cancels only if every layer routes alike, so no verdict"
    )


def _waking_numbers(
    series: ExpertSeries, source: dict[str, Estimate], sound: dict[str, Estimate]
) -> list[Number]:
    routed = _of_others(series, lambda e: _per_weight(series, e))
    norms = {} if sound else _of_others(series, lambda e: _inside(series, e, "norm"))
    return [item.number for found in (source, routed, norms, sound) for item in found.values()]


def _waking_missing(
    series: ExpertSeries, sound: dict[str, Estimate], *, decided: bool
) -> list[str]:
    absent = [e for e in series.others if e not in sound]
    missing = []
    if absent:
        names = " and ".join(
            key(f"grad/expert/<expert>/{tier}_rms", expert=absent[0])
            for tier in ("bottom", "middle")
        )
        missing.append(f"{names} (and of expert 0){_for_more(absent)}")
    short = [(steps_short(item.points), e) for e, item in sound.items() if item.interval is None]
    if short:
        steps, expert = max(short)
        missing.append(
            f"about {steps} more steps, for an interval (expert {expert} is the furthest from one)"
        )
    elif not missing and not decided:
        missing.append(f"more steps: an interval still crosses {MARGIN} nats")
    return missing


def _for_more(absent: list[str]) -> str:
    return f", and of {len(absent) - 1} more experts" if len(absent) > 1 else ""


FLOORS = {
    "log_ratio_routed": 0.1 * MARGIN,
    "cosine": 0.1 * (1.0 - COS_MARGIN),
    "weight_distance": 1e-4,
}
"""Below these a quantity is rounding and noise, and its logarithm would wander over decades."""

MEASURE_OF = {"size": "log_ratio_routed", "direction": "cosine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What one quantity did over the window."""

    name: str
    points: TimeSeries
    trend: Drift | None
    """Of its decimal logarithm; None below 8 measurements."""
    grounded: bool
    """At its floor most of the time: nothing that could fall."""

    @property
    def p_fall(self) -> float:
        """Two-sided p of a fall by half or more; 1 for anything else and below 8 blocks."""
        if (
            self.trend is None
            or self.trend.p_value is None
            or self.trend.change > -MIN_DRIFT_DECADES
        ):
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
class ExpertFate:
    """The courses of one expert's divergence, and what Question 2 said about it."""

    gradient: tuple[Course, ...]
    """Those that carry the divergence."""
    weights: Course | None
    apart: Verdict
    standing: Standing

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
        """Either will do, hence the factor; unless the weights stay apart, or have met."""
        if self.standing.collapsed:
            return 0.0
        if self.standing.dead or self.standing.one or self.standing.weights == "apart":
            return 1.0
        return min(1.0, 2.0 * min(self.p_gradient, self.p_weights))

    @property
    def p_fade(self) -> float:
        """Small when the gradients meet while the weights stay apart."""
        stay = self.standing.weights == "apart" and not self.standing.dead
        return self.p_gradient if stay else 1.0

    @property
    def verdict(self) -> Verdict:
        """On this expert by itself."""
        if self.p_collapse < LEVEL:
            return "collapses"
        if self.apart == "explained by routing":
            return "converged"
        if self.standing.dead:
            return "dead"
        if self.p_fade < LEVEL:
            return "fades"
        lasting = self.apart == "genuine" and any(course.holds for course in self.gradient)
        return "lasts" if lasting else "undecided"


def judge_lasting(series: ExpertSeries, apart: dict[str, Apartness]) -> Answer:
    """The answer over all experts, and for each."""
    courses = {e: _courses(series, e, apart[e]) for e in series.others}
    fates = {e: _fate(courses[e], apart[e]) for e in series.others}
    experts: dict[str, Verdict] = {e: fate.verdict for e, fate in fates.items()}
    fallen = confirmed({e: fate.p_collapse for e, fate in fates.items()})
    source = {
        e: found for e in series.others if (found := series.pooled("divergence", e)).values.size
    }
    verdict = _headline(experts, fallen, fates, apart)
    # of one merge for all, gradients that are alike while the weights differ are no fault
    alike = all(found.standing.one or found.routed for found in apart.values())
    apart_still = any(found.standing.weights == "apart" for found in apart.values())
    return Answer(
        question="Does the difference last?",
        verdict=verdict,
        tone="bad" if verdict == "converged" and alike and not apart_still else TONES[verdict],
        source_reading=_lasting_source_reading(source),
        sound_reading=_lasting_sound_reading(courses, fates, experts, fallen),
        numbers=tuple(
            _number(e, course) for e, found in courses.items() for course in found if course.trend
        ),
        missing=tuple(_lasting_missing(series, courses, fates)),
        experts=experts,
    )


def _headline(
    experts: dict[str, Verdict],
    fallen: list[str],
    fates: dict[str, ExpertFate],
    apart: dict[str, Apartness],
) -> Verdict:
    """Collapses when one surely does; lasts when all do whose divergence is surely genuine."""
    if fallen:
        return "collapses"
    living = [e for e, found in apart.items() if found.verdict != "dead"]
    if not living:
        return "dead"
    genuine = confirmed({e: found.p_genuine for e, found in apart.items()})
    if genuine:
        if all(experts[e] == "lasts" for e in genuine):
            return "lasts"
        faded = confirmed({e: fate.p_fade for e, fate in fates.items()})
        return "fades" if set(faded) & set(genuine) else "undecided"
    explained = confirmed({e: found.p_explained for e, found in apart.items()})
    return "converged" if len(explained) == len(living) else "undecided"


def _courses(series: ExpertSeries, expert: str, apart: Apartness) -> tuple[Course, ...]:
    cosine = apart.direction.points if apart.direction else None
    found = {
        "log_ratio_routed": series.mean("log_ratio_routed", expert, apart.standing.met_in),
        "cosine": TimeSeries(steps=cosine.steps, values=1.0 - cosine.values) if cosine else None,
        "weight_distance": series.mean("weight_distance", expert),
    }
    return tuple(
        _course(name, points) for name, points in found.items() if points and points.values.size
    )


def _course(name: str, points: TimeSeries) -> Course:
    floor = FLOORS[name]
    raised = np.maximum(points.values, floor)
    trend = drift(points.steps, np.log10(raised))
    return Course(name=name, points=points, trend=trend, grounded=bool(np.median(raised) <= floor))


def _fate(courses: tuple[Course, ...], apart: Apartness) -> ExpertFate:
    outside = {
        MEASURE_OF[name]
        for name, p_value in (("size", apart.p_size), ("direction", apart.p_direction))
        if p_value * len(apart.judged) < LEVEL
    }
    judged = {MEASURE_OF[name] for name in apart.judged}
    gradient = [course for course in courses if course.name in judged and not course.grounded]
    carrying = [course for course in gradient if course.name in outside]
    # tiers of two experts are not the same weights: their RMS may still move
    if apart.verdict == "explained by routing":
        gradient = []
    weights = next((course for course in courses if course.name == "weight_distance"), None)
    return ExpertFate(
        gradient=tuple(carrying or gradient),
        weights=weights,
        apart=apart.verdict,
        standing=apart.standing,
    )


def _number(expert: str, course: Course) -> Number:
    assert course.trend is not None
    name = "1 - cosine" if course.name == "cosine" else course.name
    return Number(
        expert=expert,
        name=f"trend of {name}",
        unit="log10 of the change over the window",
        value=course.trend.change,
        p_value=course.trend.p_value,
        points=int(course.points.values.size),
        blocks=course.trend.num_blocks,
    )


def _lasting_source_reading(found: dict[str, TimeSeries]) -> str:
    """First against last quarter, as a person reads the curve; the lowest end of all experts."""
    if not found:
        return "no divergence was logged"
    ends = {e: _ends(points) for e, points in found.items()}
    expert = min(ends, key=lambda e: ends[e][1])
    first, last = ends[expert]
    word = (
        f"converged (below {SAME})"
        if last < SAME
        else "falling"
        if last < 0.8 * first
        else "sustained"
    )
    which = f" (expert {expert}, the lowest of {len(found)})" if len(found) > 1 else ""
    return f"divergence {fmt(first)} in the first quarter, {fmt(last)} in the last{which}: {word}"


def _ends(points: TimeSeries) -> tuple[float, float]:
    quarter = max(1, points.values.size // 4)
    return float(points.values[:quarter].mean()), float(points.values[-quarter:].mean())


def _lasting_sound_reading(
    courses: dict[str, tuple[Course, ...]],
    fates: dict[str, ExpertFate],
    experts: dict[str, Verdict],
    fallen: list[str],
) -> str:
    if not any(courses.values()):
        return "no verdict: none of log_ratio_routed, cosine and weight_distance was measured"
    if fallen:
        worst = min(fallen, key=lambda e: fates[e].p_collapse)
        rest = f"; lasts in {listed(lasts)}" if (lasts := with_verdict(experts, "lasts")) else ""
        more = f" (and in {len(fallen) - 1} more)" if len(fallen) > 1 else ""
        met = "its weights have met expert 0's, " if fates[worst].standing.collapsed else ""
        return f"expert {worst}{more}: {met}{_words(courses[worst])}{rest}"
    expert = _lowest(courses)
    nothing = (
        "no divergence beyond routing that could last; "
        if set(experts.values()) == {"converged"}
        else ""
    )
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
    return f"{name} x{fmt(power(course.change))} over the window{sure or ', no trend'}"


def _lasting_missing(
    series: ExpertSeries, courses: dict[str, tuple[Course, ...]], fates: dict[str, ExpertFate]
) -> list[str]:
    missing = []
    for quantity, name in (("log_ratio_routed", "log_ratio_routed"), ("cosine", "cos_to_0")):
        absent = [
            e for e, found in courses.items() if quantity not in {course.name for course in found}
        ]
        if absent:
            missing.append(key(f"grad/expert/<expert>/{name}", expert=absent[0]))
    open_ = [
        course for fate in fates.values() if fate.verdict == "undecided" for course in fate.gradient
    ]
    few = [
        steps_short(
            course.points, blocks=MIN_VALUES, block=course.trend.block if course.trend else None
        )
        for course in open_
        if course.trend is None or course.trend.p_value is None
    ]
    if few:
        missing.append(
            f"about {max(few)} more steps, until the series are worth {MIN_VALUES} independent"
            " blocks"
        )
    elif any(course.change <= -MIN_DRIFT_DECADES and course.p_fall >= LEVEL for course in open_):
        missing.append(
            "more steps: half of it is gone, but the series is too noisy to call it a trend"
        )
    elif not missing and any(fate.verdict == "undecided" for fate in fates.values()):
        missing.append(
            "an answer to question 2: what is not known to diverge cannot be said to last"
        )
    return missing
