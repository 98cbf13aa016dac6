"""Question 2: is the divergence genuine, once routing is divided out?

In a router that merges weights once a batch, ∂L/∂W_e = w_e ∂L/∂W. Routing then explains everything that sets two experts
apart: norms per routing weight agree, and cosines are 1. Two measures look for more:

    size       log[(norm/routing weight) of expert e ÷ the same of expert 0], explained within ± 0.05 nats
    direction  cosine with expert 0 (with all others, where no expert is special), explained above 0.99

Genuine: one of them is clearly outside. Explained by routing: both are clearly inside. Of experts that are asked token by
token only the direction is judged: norms of noise grow with the root of the tokens, not with their number.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradiometer.doctor.experts.answers import Answer, Number, Verdict
from gradiometer.doctor.experts.readings import Estimate, confirmed, estimate, listed, span, steps_short, times
from gradiometer.doctor.experts.series import REFERENCE, ExpertSeries, Points
from gradiometer.doctor.experts.waking import MARGIN
from gradiometer.maths.means import LEVEL
from gradiometer.metrics import key

__all__ = ["COS_MARGIN", "MEANINGFUL", "SAME", "Apartness", "judge_divergence", "measure"]

MEANINGFUL, SAME = 0.05, 0.01
"""Readings of source 002: a divergence above the first is meaningful, below the second the experts are converged."""

COS_MARGIN = 0.99
"""Eight degrees. Rounding and accumulated micro-batches leave a cosine above it; merging per sample gave 0.3 to 0.5."""

QUESTION = "Is the divergence genuine?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Apartness:
    """How far an expert is from the reference once routing is divided out; None where it was not measured."""

    size: Estimate | None
    direction: Estimate | None
    judged: tuple[str, ...]
    """Which of the two count."""

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
        return min(1.0, len(self.judged) * min(self.p_size, self.p_direction))

    @property
    def p_explained(self) -> float:
        """Small when all that counts is clearly inside, and was measured."""
        inside = self.direction.p_above(COS_MARGIN) if self.direction else 1.0
        if "size" in self.judged:
            within = max(self.size.p_above(-MARGIN), self.size.p_below(MARGIN)) if self.size else 1.0
            inside = max(inside, within)
        return inside

    @property
    def verdict(self) -> Verdict:
        """On this expert by itself."""
        if self.p_genuine < LEVEL:
            return "genuine"
        return "explained by routing" if self.p_explained < LEVEL else "undecided"


def measure(series: ExpertSeries) -> dict[str, Apartness]:
    """Size and direction of each expert but the reference."""
    routed = series.routing == "top-k"
    return {
        e: Apartness(
            size=estimate(_size(series, e), expert=e, name="log norm_per_weight over expert 0's", unit="nats"),
            direction=_direction(series, e, "cos_mean" if routed and series.has("cos_mean", e) else "cos_to_0"),
            judged=("direction",) if routed else ("size", "direction"),
        )
        for e in series.others
    }


def judge_divergence(series: ExpertSeries, apart: dict[str, Apartness]) -> Answer:
    """The answer over all experts, and for each."""
    genuine = confirmed({e: found.p_genuine for e, found in apart.items()})
    explained = confirmed({e: found.p_explained for e, found in apart.items()})
    verdict: Verdict = "undecided"
    if genuine:
        verdict = "genuine"
    elif len(explained) == len(apart):
        verdict = "explained by routing"
    source = {e: found for e in series.others if (found := _divergence(series, e))}
    return Answer(
        question=QUESTION,
        verdict=verdict,
        source_reading=_source_reading([item.number for item in source.values()]),
        sound_reading=_sound_reading(series, apart, genuine),
        numbers=tuple(_numbers(series, apart, source)),
        missing=tuple(_missing(apart, series)) if verdict != "genuine" else (),
        experts={e: found.verdict for e, found in apart.items()},
    )


def _size(series: ExpertSeries, expert: str) -> Points:
    points = series.log_ratio(
        over=[("norm", expert), ("routing_weight", REFERENCE)], under=[("norm", REFERENCE), ("routing_weight", expert)]
    )
    if points.values.size:
        return points
    return series.log_ratio(over=[("norm_per_weight", expert)], under=[("norm_per_weight", REFERENCE)])


def _direction(series: ExpertSeries, expert: str, quantity: str) -> Estimate | None:
    return estimate(series.mean(quantity, expert), expert=expert, name=quantity, unit="1")


def _divergence(series: ExpertSeries, expert: str) -> Estimate | None:
    return estimate(series.pooled("divergence", expert), expert=expert, name="divergence", unit="loss/weight")


def _source_reading(found: list[Number]) -> str:
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


def _sound_reading(series: ExpertSeries, apart: dict[str, Apartness], genuine: list[str]) -> str:
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
    return "; ".join(parts)


def _numbers(series: ExpertSeries, apart: dict[str, Apartness], source: dict[str, Estimate]) -> list[Number]:
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


def _missing(apart: dict[str, Apartness], series: ExpertSeries) -> list[str]:
    missing = []
    unsized = [e for e, item in apart.items() if item.size is None and "size" in item.judged]
    undirected = [e for e, item in apart.items() if item.direction is None]
    if unsized:
        name = key("grad/expert/<expert>/routing_weight", expert=unsized[0])
        missing.append(f"{name} and of expert 0: is the router's output understood?")
    if undirected:
        missing.append(key("grad/expert/<expert>/cos_to_0", expert=undirected[0]))
    parts = [part for item in apart.values() for part in (item.size, item.direction) if part]
    few = [steps_short(part.points) for part in parts if part.interval is None]
    if few:
        missing.append(f"about {max(few)} more steps, for intervals")
    elif not missing and any(item.verdict == "undecided" for item in apart.values()):
        missing.append(f"more steps: an interval still crosses {MARGIN} nats or a cosine of {COS_MARGIN}")
    return missing
