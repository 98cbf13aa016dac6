"""Clipping: a clip that is always active, and one that takes too much.

Under Adam a constant factor on the gradient cancels, so a clip that is always active with a steady ratio is information. What
harms is a ratio that varies (every step is then as long as the next, however sure or unsure its gradient), or an update that
starves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.gradients import NORM, flat_outcome, log10, over, seen, stays, stuck, where
from gradiometer.doctor.lacking import too_short, unlogged
from gradiometer.doctor.progress import progress_of
from gradiometer.doctor.rule import Skipped, Verdict, rule
from gradiometer.doctor.signs import enough, level, near_best, number, robust_sigma, since
from gradiometer.records import Finding
from gradiometer.words import fmt

__all__: list[str] = []

RATIO, CLIPPED = "grad/<block>/clip/ratio", "grad/<block>/norm/clipped"
MIN_POINTS = 12
"""Three windows of four measurements are the last half of 24, or all of 12."""
MIN_PINNED = 8
"""So many equal norms in a row are no chance: the norm of a gradient is never the same twice."""
PINNED_SHARE = 0.9
"""Of the last half, at the largest value there is: the clip is active at practically every step."""
PINNED_WITHIN = 1e-3
"""Of the threshold. clip_grad_norm_ divides by norm + 1e-6, and logs are rounded to three or four digits."""
ALWAYS = 0.95
"""Share of active steps that is `always`: one in twenty may be a quiet batch."""
FAR_BELOW = 0.1
"""The clip takes nine tenths of the gradient: it was meant for outliers, and this is the rule."""
VARIES = 0.3
"""Decades of robust σ: a typical step is scaled twice as much or half as much as the next."""
HALF_WAY = 0.5
"""Of the way to the known maximum that is still to go."""
STARVED = 1e-5
"""‖Δw‖/‖w‖ at which a step is lost: healthy is 1e-4 to 1e-2 (TheDeepChecker warns below 1e-4)."""
UNUSUAL, NEXT_TO_NOTHING = 1e-4, 1e-3
"""The lower end of what is healthy, and the share of the gradient that makes the clip the first to ask."""
THRESHOLDS = ("max_grad_norm", "grad_clip", "clip_grad", "gradient_clip_val", "max_norm", "clip_grad_norm")
"""What trainers call it: SB3, TRL and CleanRL, verl, timm, Lightning, torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """What the clip of a block did: the factor it multiplied the gradient by at each step, at most 1."""

    ratio: Series
    threshold: float | None
    source: str
    """How the factor is known."""


@rule("clip-always-active")
def clip_always_active(chart: Chart) -> Verdict:
    """The clip changes practically every gradient, or the logged norm is pinned at the threshold.

    A norm that is the same at every step was taken after the clip: it proves that the clip was active, and nothing about the
    raw gradients. Information only; `over-clipping` says when it harms.
    """
    pinned = next((series for series in _logged(chart) if _pin(series) is not None), None)
    clips = [clip for clip in _clips(chart) if enough(clip.ratio, MIN_POINTS)]
    if pinned is not None and not clips:
        return _pinned(chart, pinned)
    if not clips:
        return _skipped(chart, "clip-always-active")
    active = [clip for clip in clips if _always(clip)]
    if not active or any(_takes_too_much(chart, clip) for clip in active):
        return None
    clip = min(active, key=lambda each: level(each.ratio.last(0.5)))
    now, spread = level(clip.ratio.last(0.5)), robust_sigma(log10(clip.ratio).last(0.5).values)
    steady = spread < VARIES
    return Finding(
        id="clip-always-active",
        title=f"The gradient clip of {where(clip.ratio)} is active at every step, with a "
        f"{'steady ratio near' if steady else 'ratio that varies around'} {fmt(now)}",
        severity="info",
        basis="heuristic",
        since_step=since(clip.ratio, lambda x: x < 1.0),
        block=where(clip.ratio),
        evidence=(seen(clip.ratio, f"{clip.source}: median {fmt(now)}, σ {fmt(spread)} decades over the last half"),),
        cause="The threshold lies below the usual norm of the gradient. Under Adam a constant factor cancels and "
        "nothing is lost; with plain SGD it is a smaller learning rate, and every step has the same length.",
        fix=(f"{_key(chart, clip.ratio)}: nothing to do while the reward rises; to clip outliers only, set it near "
             f"{_advice(clip, now)}",),
        confirm="Train once with the threshold ten times as high: under Adam the curves must lie on each other.",
        references=("arXiv 1412.6980 (Adam does not see the scale of a gradient)", "arXiv 1905.11881"),
    )  # fmt: skip


@rule("over-clipping")
def over_clipping(chart: Chart) -> Verdict:
    """The clip leaves less than a tenth of the gradient for good, and that harms: the factor varies or the update starves,
    and the reward does not rise."""
    clips = [clip for clip in _clips(chart) if enough(clip.ratio, MIN_POINTS)]
    if not clips:
        return _skipped(chart, "over-clipping")
    found = [clip for clip in clips if _takes_too_much(chart, clip)]
    if not found:
        return None
    clip = min(found, key=lambda each: level(each.ratio.last(0.5)))
    now, spread = level(clip.ratio.last(0.5)), robust_sigma(log10(clip.ratio).last(0.5).values)
    moved = _starved(chart, clip)
    harm = "the weights hardly move" if moved else f"the factor varies by {10**spread:.1f} times from step to step"
    return Finding(
        id="over-clipping",
        title=f"The clip of {where(clip.ratio)} leaves {now:.1%} of the gradient, and {harm}",
        severity="warn",
        basis="heuristic",
        since_step=since(clip.ratio, lambda x: x < FAR_BELOW),
        block=where(clip.ratio),
        evidence=(
            seen(clip.ratio, f"{clip.source}: median {fmt(now)}, σ {fmt(spread)} decades over the last half"),
            *(() if moved is None else (seen(moved, f"median {fmt(level(moved.last(0.5)))}"),)),
            *flat_outcome(chart),
        ),
        cause="A clip is meant for outliers; this one rescales every gradient by another factor, so that noisy and clear "
        "batches count alike, or leaves so little that Adam's ε or the learning rate eats the rest.",
        fix=(f"{_key(chart, clip.ratio)}: raise it to about {_advice(clip, now)}, the median raw norm",
             "normalise advantages or rewards first if the raw norm is that large because of their scale",
             "Adam's eps = 1e-5 (CleanRL, SB3) matters at clipped elements below it: use 1e-8"),
        confirm="Train once with the threshold at the median raw norm: the update ratio and the reward must rise.",
        references=("failure catalogue F31", "arXiv 1905.11881"),
    )  # fmt: skip


def _always(clip: Clip) -> bool:
    """At practically every step of the last half that has a norm at all."""
    ratios = clip.ratio.last(0.5).finite.values
    return len(ratios) > 0 and float(np.mean(ratios < 1.0)) >= ALWAYS


def _takes_too_much(chart: Chart, clip: Clip) -> bool:
    """Far below 1 for good, while the reward does not rise, and by a factor that varies or with an update that starves."""
    if not stays(clip.ratio, lambda x: x < FAR_BELOW):
        return False
    if not stuck(chart):  # a policy that creeps up, far from the most there is, is starved all the same
        return _starved(chart, clip) is not None and _far_from_best(chart)
    return robust_sigma(log10(clip.ratio).last(0.5).values) >= VARIES or _starved(chart, clip) is not None


def _far_from_best(chart: Chart) -> bool:
    progress = progress_of(chart)
    if progress is None or progress.best is None:
        return False
    return not near_best(progress.end, progress.best, progress.start, within=HALF_WAY)


def _starved(chart: Chart, clip: Clip) -> Series | None:
    """The update ratio where it is too small for good; a clip that leaves next to nothing is blamed for less."""
    moved = chart.get("grad/<block>/update_ratio", block=where(clip.ratio))
    limit = UNUSUAL if stays(clip.ratio, lambda x: x < NEXT_TO_NOTHING) else STARVED
    return moved if moved is not None and stays(moved, lambda x: x < limit) else None


def _pinned(chart: Chart, series: Series) -> Finding:
    pin = _pin(series)
    threshold = _threshold(chart)
    known = threshold is not None and pin is not None and abs(pin - threshold) <= PINNED_WITHIN * threshold
    said = f"{_fixed(series)}" + (", the run's clip threshold" if known else "")
    return Finding(
        id="clip-always-active",
        title=f"The logged gradient norm is {said} at every step: a post-clip norm proves nothing about raw gradients",
        severity="info",
        basis="heuristic",
        since_step=since(series, lambda x: pin is not None and abs(x - pin) <= PINNED_WITHIN * pin),
        block=where(series),
        evidence=(seen(series, f"{_fixed(series)} at {_at_pin(series):.0%} of the last half, and never above"),),
        cause="The norm of a gradient is never the same twice, so this is the length the clip leaves. The clip is active at "
        "every step; whether raw gradients explode or vanish cannot be read from it. Under Adam that is harmless while the raw "
        "norm is steady. Norms of parts of the model in this log are shares of it, not sizes.",
        fix=("log what clip_grad_norm_ returns: it is the norm before the clip",
             "or watch the training with gm.watch(model, optimizer): it stores norm/raw, norm/clipped and clip/ratio"),
        confirm="Log the raw norm for a few steps: how much its ratio to the threshold varies says whether the clip harms.",
        references=("torch.nn.utils.clip_grad_norm_ returns the norm before clipping", "failure catalogue F31"),
    )  # fmt: skip


# What is known of a clip


def _logged(chart: Chart) -> list[Series]:
    """Norms that may have been taken after a clip, whatever their name says."""
    named = [chart.get(CLIPPED, block="all"), chart.get(NORM, block="all"), chart.get("total_grad_norm")]
    return [series for series in named if series is not None and enough(series, MIN_PINNED)]


def _pin(series: Series) -> float | None:
    """The value at which a norm is pinned: nearly all of the last half is at its largest; None where it is not."""
    top = float(np.max(series.finite.values))
    return top if top > 0.0 and _at_pin(series) >= PINNED_SHARE else None


def _at_pin(series: Series) -> float:
    top = float(np.max(series.finite.values))
    return float(np.mean(series.finite.last(0.5).values >= (1.0 - PINNED_WITHIN) * top))


def _fixed(series: Series) -> str:
    return f"{level(series.last(0.5)):.4g}"


def _clips(chart: Chart) -> list[Clip]:
    """The clips of a run as the meter saw them, as two norms say, or as the raw norm and the threshold among the facts do."""
    seen_by_us = [
        Clip(
            ratio=series,
            threshold=_last(chart.get("grad/<block>/clip/threshold", block=where(series))),
            source="measured",
        )
        for series in chart.every(RATIO)
    ]
    raw, clipped, threshold = chart.get(NORM, block="all"), chart.get(CLIPPED, block="all"), _threshold(chart)
    if seen_by_us or raw is None or (enough(raw, MIN_PINNED) and _pin(raw) is not None):
        return seen_by_us
    if clipped is not None:
        return [Clip(ratio=_capped(over(clipped, raw)), threshold=threshold, source="norm/clipped over norm/raw")]
    if threshold is None or raw.library == "":
        return []
    with np.errstate(divide="ignore"):
        ratio = replace(raw, values=threshold / raw.values)
    return [Clip(ratio=_capped(ratio), threshold=threshold, source=f"threshold {fmt(threshold)} over {raw.name}")]


def _capped(ratio: Series) -> Series:
    """At most 1, and 1 where rounding alone is below it."""
    return replace(ratio, values=np.where(ratio.values >= 1.0 - PINNED_WITHIN, 1.0, ratio.values))


def _threshold(chart: Chart) -> float | None:
    told = number(chart.fact(*THRESHOLDS))
    return told if told is not None and told > 0.0 else None


def _last(series: Series | None) -> float | None:
    return float(series.finite.values[-1]) if series is not None and len(series.finite) else None


def _advice(clip: Clip, ratio: float) -> str:
    """The median raw norm, where the threshold is known."""
    return "the median raw norm" if clip.threshold is None or ratio <= 0.0 else fmt(clip.threshold / ratio)


def _key(chart: Chart, series: Series) -> str:
    """What the trainer of this log calls the threshold."""
    libraries = (
        {each.library for each in (outcome, series) if each is not None} if (outcome := chart.get("reward")) else set()
    )
    return "actor.grad_clip" if "verl" in libraries else "max_grad_norm"


def _skipped(chart: Chart, id: str) -> Skipped:
    found = chart.every(RATIO)
    return too_short(id, found, MIN_POINTS) if found else unlogged(id, RATIO)
