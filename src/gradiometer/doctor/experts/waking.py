"""Question 1: are the bottom weights waking up?

Sound: x_e = log[(bottom RMS/middle RMS) of expert e ÷ the same of expert 0]. Both tiers of an expert carry the same
routing weight, so it cancels. Waking up: x_e clearly above 0.05 nats; not: clearly below it.
"""

from __future__ import annotations

from gradiometer.doctor.experts.answers import Answer, Number, Verdict
from gradiometer.doctor.experts.readings import (
    Estimate,
    confirmed,
    estimate,
    listed,
    steps_short,
    times,
    with_verdict,
)
from gradiometer.doctor.experts.series import REFERENCE, ExpertSeries
from gradiometer.maths.means import LEVEL
from gradiometer.metrics import key

__all__ = ["MARGIN", "judge_waking"]

MARGIN = 0.05
"""Nats: five per cent of a gradient's size, the smallest difference between experts that is worth a word."""

QUESTION = "Are the bottom weights waking up?"


def judge_waking(series: ExpertSeries) -> Answer:
    """The answer over all experts, and for each."""
    sound = {e: found for e in series.others if (found := _inside(series, e, "rms"))}
    p_above = {e: found.p_above(MARGIN) for e, found in sound.items()}
    p_below = {e: found.p_below(MARGIN) for e, found in sound.items()}
    experts: dict[str, Verdict] = {e: _verdict(p_above.get(e, 1.0), p_below.get(e, 1.0)) for e in series.others}
    awake, asleep = confirmed(p_above), confirmed(p_below)
    verdict: Verdict = "waking up" if awake else "not waking up" if len(asleep) == len(series.others) else "undecided"
    source = {e: found for e in series.others if (found := _norms(series, e))}
    return Answer(
        question=QUESTION,
        verdict=verdict,
        source_reading=_source_reading(source),
        sound_reading=_sound_reading(series, sound, experts, awake),
        numbers=tuple(_numbers(series, source, sound)),
        missing=tuple(_missing(series, sound, decided=verdict != "undecided")),
        experts=experts,
    )


def _inside(series: ExpertSeries, expert: str, kind: str) -> Estimate | None:
    bottom, middle = f"bottom_{kind}", f"middle_{kind}"
    points = series.log_ratio(
        over=[(bottom, expert), (middle, REFERENCE)], under=[(middle, expert), (bottom, REFERENCE)]
    )
    return estimate(points, expert=expert, name=f"log bottom/middle {kind} over expert 0's", unit="nats")


def _norms(series: ExpertSeries, expert: str) -> Estimate | None:
    points = series.log_ratio(over=[("bottom_norm", expert)], under=[("bottom_norm", REFERENCE)])
    return estimate(points, expert=expert, name="log bottom_norm over expert 0's", unit="nats")


def _per_weight(series: ExpertSeries, expert: str) -> Estimate | None:
    points = series.log_ratio(
        over=[("bottom_rms", expert), ("routing_weight", REFERENCE)],
        under=[("bottom_rms", REFERENCE), ("routing_weight", expert)],
    )
    return estimate(points, expert=expert, name="log bottom_rms per routing weight over expert 0's", unit="nats")


def _verdict(p_above: float, p_below: float) -> Verdict:
    return "waking up" if p_above < LEVEL else "not waking up" if p_below < LEVEL else "undecided"


def _source_reading(found: dict[str, Estimate]) -> str:
    if not found:
        return "no bottom norms to compare"
    largest = max(found.values(), key=lambda item: item.number.value).number
    word = "higher" if largest.value > MARGIN else "lower" if largest.value < -MARGIN else "similar"
    which = f" (expert {largest.expert}, the highest of {len(found)})" if len(found) > 1 else ""
    return f"bottom norm {times(largest)} expert 0's{which}: {word}, routing still in it"


def _sound_reading(
    series: ExpertSeries, sound: dict[str, Estimate], experts: dict[str, Verdict], awake: list[str]
) -> str:
    if not sound:
        return _from_norms(series)
    largest = max(sound.values(), key=lambda item: item.number.value).number
    text = f"bottom/middle RMS of expert {largest.expert} is {times(largest)} expert 0's; routing cancels in it"
    if awake and len(awake) < len(series.others):
        text += f"; above {MARGIN} nats in {listed(awake)} of {len(series.others)}"
    elif not awake and (open_ := with_verdict(experts, "undecided")):
        text += f"; undecided against {MARGIN} nats in {listed(open_)}"
    return text


def _from_norms(series: ExpertSeries) -> str:
    """What the source's own columns allow: a number, and no verdict, for layers may route differently."""
    found = [item for e in series.others if (item := _inside(series, e, "norm"))]
    if not found:
        return "no verdict: the tiers of the experts were not measured"
    largest = max(found, key=lambda item: item.number.value).number
    return (
        f"bottom/middle norm of expert {largest.expert} is {times(largest)} expert 0's, from norms averaged over "
        "layers: routing cancels only if every layer routes alike, so no verdict"
    )


def _numbers(series: ExpertSeries, source: dict[str, Estimate], sound: dict[str, Estimate]) -> list[Number]:
    routed = {e: found for e in series.others if (found := _per_weight(series, e))}
    norms = {} if sound else {e: found for e in series.others if (found := _inside(series, e, "norm"))}
    return [item.number for found in (source, routed, norms, sound) for item in found.values()]


def _missing(series: ExpertSeries, sound: dict[str, Estimate], *, decided: bool) -> list[str]:
    absent = [e for e in series.others if e not in sound]
    missing = []
    if absent:
        names = " and ".join(key(f"grad/expert/<expert>/{tier}_rms", expert=absent[0]) for tier in ("bottom", "middle"))
        missing.append(f"{names} (and of expert 0){_for_more(absent)}")
    short = [(steps_short(item.points), e) for e, item in sound.items() if item.interval is None]
    if short:
        steps, expert = max(short)
        missing.append(f"about {steps} more steps, for an interval (expert {expert} is the furthest from one)")
    elif not missing and not decided:
        missing.append(f"more steps: an interval still crosses {MARGIN} nats")
    return missing


def _for_more(absent: list[str]) -> str:
    return f", and of {len(absent) - 1} more experts" if len(absent) > 1 else ""
