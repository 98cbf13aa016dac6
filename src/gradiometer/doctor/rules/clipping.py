"""Clipping: a clip that is always active, and one that takes too much.

Under Adam a constant factor on the gradient cancels, so a clip that is always active with a steady
ratio is information. What harms is a ratio that varies (every step is then as long as the next,
however sure or unsure its gradient), or an update that starves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradiometer.doctor import thresholds
from gradiometer.doctor.outcome import flat_outcome, near_best, outcome_of, stuck
from gradiometer.doctor.rule import Draft, Skipped, Verdict, finding, rule, too_short, unlogged
from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import (
    NORM,
    enough,
    in_words,
    level,
    log10,
    newest,
    number,
    over,
    robust_sigma,
    shown,
    since,
    stays,
    where,
)
from gradiometer.records import Evidence
from gradiometer.words import fmt

__all__: list[str] = []

RATIO, CLIPPED = "grad/<block>/clip/ratio", "grad/<block>/norm/clipped"
limits = thresholds.group("clipping")
THRESHOLDS = (
    "max_grad_norm",
    "grad_clip",
    "clip_grad",
    "gradient_clip_val",
    "max_norm",
    "clip_grad_norm",
)
"""What trainers call it: SB3, TRL and CleanRL, verl, timm, Lightning, torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The factor a clip multiplied the gradient of a block by at each step, at most 1."""

    ratio: Series
    threshold: float | None
    source: str
    """How the factor is known."""

    @property
    def now(self) -> float:
        """Over the last half."""
        return level(self.ratio.last(0.5))

    @property
    def is_total(self) -> bool:
        """Whether less is left than Adam adds to its denominator."""
        return stays(self.ratio, lambda x: x < limits.below_adam)

    @property
    def spread(self) -> float:
        """In decades."""
        return robust_sigma(log10(self.ratio).last(0.5).values)

    @property
    def place(self) -> str:
        """What it covers, in words."""
        return in_words(where(self.ratio))

    @property
    def evidence(self) -> Evidence:
        now, spread = fmt(self.now), fmt(10.0**self.spread)
        seen = f"median {now} over the last half, mostly within ×{spread} of it"
        return shown(self.ratio, f"{self.source}: {seen}")

    @property
    def advice(self) -> str:
        """A threshold at the median raw norm, where today's is known."""
        known = self.threshold is not None and self.now > 0.0
        return fmt((self.threshold or 0.0) / self.now) if known else "the median raw norm"


@rule(
    "clip-always-active",
    """
    cause: The threshold lies below the usual norm of the gradient. Under Adam a constant factor
      cancels and nothing is lost; with plain SGD it is a smaller learning rate, and every step has
      the same length.
    fix: {key}: nothing to do while the reward rises; to clip outliers only, set it near {size}
    confirm: Train once with the threshold ten times as high: under Adam the curves must coincide.
    see: arXiv 1412.6980 (Adam does not see the scale of a gradient)
    see: arXiv 1905.11881
    [pinned]
    cause: The norm of a gradient is never the same twice, so this is the length the clip leaves.
      The clip is active at every step; whether raw gradients explode or vanish cannot be read from
      it. Under Adam that is harmless while the raw norm is steady. Norms of parts of the model in
      this log are shares of it, not sizes.
    fix: log what clip_grad_norm_ returns: it is the norm before the clip
    fix: or watch the training with gm.watch(model, optimizer): it stores norm/raw, norm/clipped and
      clip/ratio
    confirm: Log the raw norm for a few steps: how much its ratio to the threshold varies says
      whether the clip harms.
    see: torch.nn.utils.clip_grad_norm_ returns the norm before clipping
    see: F31
    """,
)
def clip_always_active(run: RunData) -> Verdict:
    """The clip changes practically every gradient, or the logged norm is pinned at the threshold.

    A norm that is the same at every step was taken after the clip: it proves that the clip was
    active, and nothing about the raw gradients. Information only; `over-clipping` says when it
    harms.
    """
    pins = ((series, pin) for series in _logged(run) if (pin := _pin(series)) is not None)
    pinned = next(pins, None)
    known = _clips(run)  # too few of them to judge say all the same that the raw norm is there
    clips = [clip for clip in known if enough(clip.ratio, limits.min_points)]
    if pinned is not None and not known:
        return _pinned(run, *pinned)
    if not clips:
        return _skipped(run)
    active = [clip for clip in clips if _always(clip)]
    if not active or any(_takes_too_much(run, clip) for clip in active):
        return None
    clip = min(active, key=lambda each: each.now)
    kind = "steady ratio near" if clip.spread < limits.varies else "ratio that varies around"
    return finding(
        f"Clipping is active at every step on {clip.place}, with a {kind} {fmt(clip.now)}",
        clip.evidence,
        severity="info",
        since_step=since(clip.ratio, lambda x: x < 1.0),
        block=where(clip.ratio),
        key=_key(run, clip.ratio),
        size=clip.advice,
    )


@rule(
    "over-clipping",
    """
    cause: A clip is meant for outliers; this one rescales every gradient by another factor, so that
      noisy and clear batches count alike, or leaves so little that Adam's ε or the learning rate
      removes the rest.
    fix: {key}: raise it to about {size}, the median raw norm
    fix: normalise advantages or rewards first if the raw norm is that large because of their scale
    fix: Adam's eps = 1e-5 (CleanRL, SB3) matters at clipped elements below it: use 1e-8
    confirm: Train once with the threshold at the median raw norm: the update ratio and the reward
      must rise.
    see: F31
    see: arXiv 1905.11881
    """,
)
def over_clipping(run: RunData) -> Verdict:
    """Clipping removes over 90 % of the gradient, permanently, and learning suffers."""
    clips = [clip for clip in _clips(run) if enough(clip.ratio, limits.min_points)]
    if not clips:
        return _skipped(run)
    found = [clip for clip in clips if _takes_too_much(run, clip)]
    if not found:
        return None
    clip = min(found, key=lambda each: each.now)
    moved, left = _starved(run, clip), f"{clip.now:.1%}" if clip.now >= 1e-3 else fmt(clip.now)
    harm = f"the factor varies by {10**clip.spread:.1f} times from step to step"
    harm = "steps of Adam shrink with it" if clip.is_total else harm
    return finding(
        f"Clipping on {clip.place} leaves {left} of the gradient, and"
        f" {'the weights hardly move' if moved else harm}",
        clip.evidence,
        None if moved is None else shown(moved, f"median {fmt(level(moved.last(0.5)))}"),
        *flat_outcome(run),
        since_step=since(clip.ratio, lambda x: x < limits.far_below),
        block=where(clip.ratio),
        key=_key(run, clip.ratio),
        size=clip.advice,
    )


def _always(clip: Clip) -> bool:
    """At practically every step of the last half that has a norm at all."""
    ratios = clip.ratio.last(0.5).finite.values
    return len(ratios) > 0 and float(np.mean(ratios < 1.0)) >= limits.always


def _takes_too_much(run: RunData, clip: Clip) -> bool:
    """Far below 1 for good, without a rising reward, and varying or with an update that starves; or
    so far that next to nothing is left, whatever the reward does."""
    if not stays(clip.ratio, lambda x: x < limits.far_below):
        return False
    if clip.is_total:
        return True
    starved = _starved(run, clip) is not None
    harms = starved or clip.spread >= limits.varies
    if stuck(run):
        return harms
    # a policy that creeps up, far from the most there is, is starved all the same
    return (starved and _far_from_best(run)) or (harms and _far_from_the_rule(run))


def _far_from_the_rule(run: RunData) -> bool:
    """Most of the way from a random policy to a simple rule is still to go; False where either is
    not known."""
    progress = outcome_of(run)
    known = None if progress is None else progress.references
    if progress is None or known is None or known.random is None or known.baseline is None:
        return False
    way = known.baseline - known.random
    return way > 0.0 and progress.end - known.random < limits.half_way * way


def _far_from_best(run: RunData) -> bool:
    progress = outcome_of(run)
    if progress is None or progress.known_best is None:
        return False
    return not near_best(progress.end, progress.known_best, progress.start, within=limits.half_way)


def _starved(run: RunData, clip: Clip) -> Series | None:
    """The update ratio where it is too small for good; a hard clip is blamed for less. Steps as
    long as the learning rate alone makes them are not the clip's."""
    moved = run.get("grad/<block>/update_ratio", block=where(clip.ratio))
    rate = run.get("learning_rate")
    if moved is None:
        return None
    of_the_rate = np.inf if rate is None else limits.by_rate * level(rate.finite.last(0.5))
    if level(moved.last(0.5)) >= of_the_rate:
        return None
    hard = stays(clip.ratio, lambda x: x < limits.next_to_nothing)
    limit = limits.unusual if hard else limits.starved
    return moved if stays(moved, lambda x: x < limit) else None


def _pinned(run: RunData, series: Series, pin: float) -> Draft:
    threshold, fixed = _threshold(run), f"{level(series.last(0.5)):.4g}"
    known = threshold is not None and abs(pin - threshold) <= limits.pinned_within * threshold
    said = fixed + (", the run's clip threshold" if known else "")
    return finding(
        f"The logged gradient norm is {said} at every step: a post-clip norm proves nothing"
        " about raw gradients",
        shown(series, f"{fixed} at {_at_pin(series):.0%} of the last half, and never above"),
        severity="info",
        since_step=since(series, lambda x: abs(x - pin) <= limits.pinned_within * pin),
        block=where(series),
        words="pinned",
    )


# What is known of a clip


def _logged(run: RunData) -> list[Series]:
    """Norms that may have been taken after a clip, whatever their name says; ours is taken before
    it, so where no clip is known one that is the same at every step is the gradient itself."""
    named = [run.get(CLIPPED, block="all"), run.get(NORM, block="all"), run.get("total_grad_norm")]
    clips = _threshold(run) is not None
    may = [x for x in named if x is not None and (clips or x.library or x.metric.name != NORM)]
    return [series for series in may if enough(series, limits.min_pinned)]


def _pin(series: Series) -> float | None:
    """The value nearly all of the last half is pinned at, its largest; None where it is not."""
    top = float(np.max(series.finite.values))
    return top if top > 0.0 and _at_pin(series) >= limits.pinned_share else None


def _at_pin(series: Series) -> float:
    top = float(np.max(series.finite.values))
    return float(np.mean(series.finite.last(0.5).values >= (1.0 - limits.pinned_within) * top))


def _clips(run: RunData) -> list[Clip]:
    """The clips as the meter saw them, as two norms say, or as raw norm and threshold do."""
    if seen_by_us := run.every(RATIO):
        bounds = (run.get("grad/<block>/clip/threshold", block=where(x)) for x in seen_by_us)
        last = (None if x is None or not len(x.finite) else newest(x) for x in bounds)
        return [
            Clip(ratio=series, threshold=bound, source="measured")
            for series, bound in zip(seen_by_us, last, strict=True)
        ]
    raw, clipped = run.get(NORM, block="all"), run.get(CLIPPED, block="all")
    threshold = _threshold(run)
    if raw is None or (enough(raw, limits.min_pinned) and _pin(raw) is not None):
        return []
    if clipped is not None:
        ratio, source = over(clipped, raw), "norm/clipped over norm/raw"
    elif threshold is not None and raw.library != "":
        with np.errstate(divide="ignore"):
            ratio = replace(raw, values=threshold / raw.values)
        source = f"threshold {fmt(threshold)} over {raw.name}"
    else:
        return []
    # at most 1, and 1 where rounding alone is below it
    whole = ratio.values >= 1.0 - limits.pinned_within
    ratio = replace(ratio, values=np.where(whole, 1.0, ratio.values))
    return [Clip(ratio=ratio, threshold=threshold, source=source)]


def _threshold(run: RunData) -> float | None:
    told = number(run.fact(*THRESHOLDS))
    return told if told is not None and told > 0.0 else None


def _key(run: RunData, series: Series) -> str:
    """What the trainer of this log calls the threshold."""
    outcome = run.get("reward")
    libraries = {outcome.library, series.library} if outcome else set()
    return "actor.grad_clip" if "verl" in libraries else "max_grad_norm"


def _skipped(run: RunData) -> Skipped:
    found = run.every(RATIO)
    return too_short(found, limits.min_points) if found else unlogged(RATIO)
