"""Scale: a gradient that depends on how the batch was cut, and a clip that saw the loss scale of half precision."""

from __future__ import annotations

import math

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.lacking import too_short
from gradiometer.doctor.rule import Skipped, Verdict
from gradiometer.doctor.rules.wiring import wired
from gradiometer.doctor.signs import level, number
from gradiometer.records import Evidence, Finding
from gradiometer.store.readable import Floats
from gradiometer.words import fmt

__all__ = ["clip_before_unscale", "gradient_not_invariant"]

SCALE, RAW = "grad/all/term/scale", "grad/<block>/norm/raw"

MIN_SCALES = 3
"""Measurements of the factor between terms and gradient: it is exact, three only tell a habit from an accident."""
FACTOR_ERROR = 0.02
"""How far a fitted factor may be from the one it is taken for: rounding of half precision, with room."""
LOSS_SCALE = 2**8
"""Powers of two from here on are a GradScaler's (it starts at 65,536); nobody accumulates 256 micro-batches by halves."""
MIN_CHANGES = 3
"""Changes of the loss scale that the norm must follow; by chance it follows one."""
SIDE = 8
"""Measurements on each side of a jump: their medians tell a new level from a spike."""
FOLLOWS = 0.5
"""Slope of log2 norm over log2 scale above which it follows: 1 when the clip sees scaled gradients, 0 when it does not."""
JUMP, JUMP_ERROR = 0.7, 0.2
"""A doubling is 1 on the binary logarithm; what is larger than 0.7 must be within 0.2 of it, each time."""
HUGE = 2.0**10
"""Gradient norms above which a loss scale is likely: the smallest scale that leaves half precision well above its floor."""


@wired("gradient-not-invariant")
def gradient_not_invariant(chart: Chart) -> Verdict:
    """The same samples must give the same gradient however they are cut into micro-batches. The audit tests it; a log shows one
    case of it: a loss divided by the number of micro-batches twice, where the terms were given undivided."""
    scale, parts = chart.get(SCALE), chart.get("meter/micro_batches")
    if scale is None or len(scale.finite) < MIN_SCALES:
        why = "cut one batch in several ways: gm.audit(..., micro_batches=loss_of, batch=batch) compares the gradients"
        return Skipped(rule="gradient-not-invariant", why=why, metric=SCALE)
    said = chart.fact("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps")
    count = level(parts) if parts is not None else number(said) or math.nan
    if not count >= 2 or np.max(np.abs(scale.finite.values * count * count - 1)) > FACTOR_ERROR:
        return None
    first, last = int(scale.finite.steps[0]), int(scale.finite.steps[-1])
    return Finding(
        id="gradient-not-invariant",
        title=f"The gradient is {count:.0f} times too small: the loss is divided by {count:.0f} micro-batches twice",
        severity="warn",
        basis="heuristic",
        since_step=first,
        evidence=(
            Evidence(
                series=scale.name,
                reading=f"{fmt(level(scale))} = 1/{count:.0f}² from terms to gradient, on {len(scale.finite)} steps",
                first_step=first,
                last_step=last,
            ),
        ),
        cause="Once by hand, and once more by the trainer or accelerator. Adam hides it; clips, SGD and weight decay feel it.",
        fix=(
            "Divide the loss by gradient_accumulation_steps in one place only: accelerate and transformers do it in backward",
        ),
        confirm="gm.audit(..., micro_batches=loss_of, batch=batch): one batch as 1×N and as N×1 must give the same gradient.",
        references=("ms-swift issue 10117: g/4", "TRL issue 6024: ×0.5 and ×4", "Megatron-LM issue 7452"),
    )


@wired("clip-before-unscale")
def clip_before_unscale(chart: Chart) -> Verdict:
    """The clip saw gradients that still held the loss scale: what is left after unscaling is a tiny, unrelated gradient.

    Proved where the terms say by which power of two the gradient at the clip was too long. Otherwise the norm must follow the
    loss scale, or jump by exact factors of two at an absurd height while the clip cuts it to nothing.
    """
    raw = chart.get(RAW, block="all")
    clips = chart.has("grad/<block>/clip/ratio") or chart.has("grad/<block>/clip/active")
    scale = chart.get(SCALE)
    if scale is not None and clips and len(scale.finite) >= MIN_SCALES:
        reading = f"{fmt(level(scale))}: a power of two on {len(scale.finite)} measured steps, 1 once unscaled"
        seen = _powers_of_two(scale.finite.values)
        return _finding(chart, scale, reading, basis="proved") if seen else None
    if raw is None or len(raw.finite) < 2 * SIDE * MIN_CHANGES:
        needed = f"{2 * SIDE * MIN_CHANGES} needed; or split the loss with meter.terms"
        return too_short("clip-before-unscale", [] if raw is None else raw, needed, metric=RAW)
    followed = _follows(raw.finite, chart.get("loss_scale"))
    if followed is not None:
        return _finding(chart, raw, followed, basis="statistical")
    ratio = chart.get("grad/<block>/clip/ratio", block="all")
    if ratio is not None and level(ratio) < 1 / LOSS_SCALE and (jumps := _jumps(raw.finite)) is not None:
        return _finding(chart, raw, jumps, basis="heuristic")
    return None


def _powers_of_two(values: Floats) -> bool:
    if (values < LOSS_SCALE * (1 - FACTOR_ERROR)).any():
        return False
    exponents = np.log2(values)
    return bool((np.abs(exponents - np.round(exponents)) < FACTOR_ERROR).all())


def _follows(raw: Series, scale: Series | None) -> str | None:
    """Whether the norm's level moves with the logged loss scale; the reading when it surely does."""
    if scale is None or not (scale.finite.values > 0).all() or len(scale.finite) < 2:
        return None
    kept = raw.values > 0
    steps, logs = raw.steps[kept], np.log2(raw.values[kept])
    powers = np.log2(scale.finite.values)
    slopes = []
    for i in np.flatnonzero(np.diff(powers)):
        at = int(np.searchsorted(steps, scale.finite.steps[i + 1]))
        before, after = logs[max(0, at - SIDE) : at], logs[at : at + SIDE]
        if len(before) >= 3 and len(after) >= 3:
            slopes.append(float((np.median(after) - np.median(before)) / (powers[i + 1] - powers[i])))
    if len(slopes) < MIN_CHANGES:
        return None
    mean, error = float(np.mean(slopes)), float(np.std(slopes, ddof=1) / math.sqrt(len(slopes)))
    if mean - _quantile(len(slopes) - 1) * error <= FOLLOWS:
        return None
    moves = f"log2 of the norm moves {mean:.2f} ± {error:.2f} with log2 of the loss scale"
    return f"{moves}, over {len(slopes)} changes; 0 once unscaled"


def _quantile(freedom: int) -> float:
    """Student's 97.5 % point."""
    from scipy.special import stdtrit  # 40 ms to import

    return float(stdtrit(freedom, 0.975))


def _jumps(raw: Series) -> str | None:
    """Whether a huge norm changes its level by nothing but factors of two, at least three times."""
    if level(raw) < HUGE or not (raw.values > 0).all():
        return None
    logs = np.log2(raw.values)
    windows = np.median(np.lib.stride_tricks.sliding_window_view(logs, SIDE), axis=1)
    shifts = windows[SIDE:] - windows[:-SIDE]
    sizes: list[float] = []
    for i in np.argsort(-np.abs(shifts), kind="stable") if len(shifts) else ():
        if abs(shifts[i]) < JUMP:
            break
        neighbours = np.abs(shifts[max(0, i - SIDE) : i + SIDE + 1])
        if abs(shifts[i]) == neighbours.max():
            sizes.append(float(abs(shifts[i])))
    if len(sizes) < MIN_CHANGES or max(abs(size - 1) for size in sizes) > JUMP_ERROR:
        return None
    return f"{len(sizes)} lasting changes, each by a factor of two, at a norm of {fmt(level(raw))}"


def _finding(chart: Chart, series: Series, reading: str, *, basis: str) -> Finding:
    finite = series.finite
    first, last = int(finite.steps[0]), int(finite.steps[-1])
    evidence = [Evidence(series=series.name, reading=reading, first_step=first, last_step=last)]
    ratio = chart.get("grad/<block>/clip/ratio", block="all")
    if ratio is not None and len(ratio.finite):
        cut = f"median {fmt(level(ratio))}: the clip leaves that much of the gradient"
        evidence.append(Evidence(series=ratio.name, reading=cut, first_step=first, last_step=last))
    return Finding(
        id="clip-before-unscale",
        title="Gradients are clipped while they still hold the loss scale of half precision",
        severity="critical" if basis == "proved" else "warn",
        basis="proved" if basis == "proved" else "statistical" if basis == "statistical" else "heuristic",
        since_step=first,
        evidence=tuple(evidence),
        cause="clip_grad_norm_ ran before the GradScaler divided the gradients by its scale: every step is cut to max_norm and "
        "then divided by some 65,536, so the true norm is far below max_norm and sinks as the scale grows.",
        fix=(
            "Call scaler.unscale_(optimizer) before torch.nn.utils.clip_grad_norm_(...), then scaler.step(optimizer)",
            "With bfloat16 leave the GradScaler out: it is not needed",
        ),
        confirm="Print the norm that clip_grad_norm_ returns with init_scale=1024 and with 65536: it must not change.",
        references=("Lightning issues 9330 and 9694", "failure catalogue F30"),
    )
