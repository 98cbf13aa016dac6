"""Where a log shows a NaN or an Inf of a gradient, and what became of the run after it."""

from __future__ import annotations

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.gradients import layered, where
from gradiometer.records import Severity
from gradiometer.store.readable import Ints

__all__ = ["LOSSES", "aftermath", "nonfinite_steps"]

LOSSES = ("loss", "policy_loss", "value_loss")
MAX_LOST = 0.02
"""Share of the steps lost to a NaN and skipped up to which a run is noisy rather than worthless."""
MAX_SCALING = 0.05
"""A GradScaler overflows a dozen times while it looks for its level, then once in 2000 steps: that is how it works."""
MIN_TRAILING = 3
"""NaNs at the end of a logged loss that are a state: one may be a row without that loss."""


def nonfinite_steps(chart: Chart, norms: list[Series]) -> list[tuple[Series, Ints]]:
    """Series with the steps at which they show something that is not finite, the earliest and narrowest first.

    The float32 norm of finite elements may be Inf, so where elements were counted an infinite norm says nothing.
    """
    counted = chart.every("grad/<block>/nonfinite")
    judged = {where(series) for series in counted}
    terms = chart.every("grad/<block>/term/<term>/norm") + chart.every("grad/<block>/term/<term>/loss")
    losses = [series for name in LOSSES if (series := chart.get(name)) is not None]
    bad = [(series, series.steps[series.values > 0]) for series in counted]
    for series in norms + terms:
        off = np.isnan(series.values) if where(series) in judged else ~np.isfinite(series.values)
        bad.append((series, series.steps[off]))
    bad += [(series, _trailing(series, norms)) for series in losses]
    return sorted((x for x in bad if len(x[1])), key=lambda x: (x[1][0], not layered(x[0]), x[0].name))


def _trailing(loss: Series, norms: list[Series]) -> Ints:
    """The steps of the NaNs a logged loss ends with; none where the gradient's norm is known to be finite by then."""
    good = np.flatnonzero(np.isfinite(loss.values))
    tail = loss.steps[good[-1] + 1 if len(good) else 0 :]
    healthy = any(len(norm.finite) and len(tail) and norm.finite.steps[-1] >= tail[-1] for norm in norms)
    return tail[:0] if len(tail) < MIN_TRAILING or healthy else tail


def aftermath(chart: Chart, bad: list[tuple[Series, Ints]], norms: list[Series]) -> tuple[Severity, str]:
    """How bad it is, and what came after, in words."""
    skips = len(chart.events("skipped-step"))
    lost = max((len(steps) / len(series) for series, steps in bad), default=1.0)
    end = max((int(steps[-1]) for _, steps in bad), default=None)
    recovered = end is not None and any(len(norm.finite) and norm.finite.steps[-1] > end for norm in norms)
    skipped = f"{skips} steps were skipped. " if skips else ""
    if not recovered:
        return "critical", f"{skipped}No finite gradient was seen after it: the weights, or all steps since, are lost."
    said = f"{skipped}Gradients are finite again after it, so the trainer skipped those steps ({lost:.1%})"
    told = chart.fact("fp16", "mixed_precision", "precision", "amp_dtype", "dtype", "amp")
    half = str(told).lower() in {"true", "16", "fp16", "float16", "half", "16-mixed", "torch.float16"}
    if half and lost <= MAX_SCALING:
        return "info", f"{said}, as a loss scaler of fp16 does while it looks for its scale."
    return "warn" if lost <= MAX_LOST else "critical", f"{said}: what made them is still there."
