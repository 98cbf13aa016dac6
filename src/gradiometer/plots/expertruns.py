"""Several runs side by side: a column for each, the same axes along every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradiometer.plots.curves import edge_words, from_zero, log_limits, step_axis
from gradiometer.plots.divergence import LEFT, divergence_panel, ratio_panel
from gradiometer.plots.dynamics import at_the_end, sound_panel, tier_keys, tier_panel
from gradiometer.plots.expertdata import DIVERGENCE, LOG_RATIO, LOG_RATIO_ROUTED, TIERS, WEIGHT, ExpertRun, rms_of
from gradiometer.plots.figures import WIDTH
from gradiometer.plots.frame import headline, shortened, under
from gradiometer.plots.panels import nothing
from gradiometer.plots.rows import spoken
from gradiometer.plots.style import sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_expert_runs"]

BEFORE = "|log ratio|: thin and pale before routing is divided out, strong lines after."


def draw_expert_runs(runs: Sequence[ExpertRun]) -> Figure:
    """Tiers, RMS per routing weight, divergence and what is left of it after routing; rows nobody measured are left out."""
    rows = _rows(runs)
    figure = sheet(max(WIDTH, 0.7 + 2.3 * len(runs)), 0.8 + 1.65 * len(rows))
    axes = figure.subplots(len(rows), len(runs), sharex=True, sharey="row", squeeze=False)
    steps = np.unique(np.concatenate([found.steps for found in runs]))
    for line, (label, panel, log) in zip(axes, rows, strict=True):
        drawn = [number for ax, found in zip(line, runs, strict=True) for number in panel(ax, found) or []]
        if log:
            log_limits(line[0], drawn)
        else:
            from_zero(line[0], drawn, least=2 * LEFT)
        for ax in line:
            ax.set_ylabel("")
            step_axis(ax, steps, label=line is axes[-1])
        line[0].set_ylabel(label)
        line[0].tick_params(left=True, labelleft=True)
    for ax, found in zip(axes[0], runs, strict=True):
        ax.set_title(shortened(found.run))
    for ax in axes[-1]:
        ax.tick_params(bottom=True, labelbottom=True)
    # One run may have a line for every expert and another a band: both belong in the legend.
    marks = list({key.get_label(): key for found in runs for key in tier_keys(found)[0]}.values())
    captions = [BEFORE] if any(found.has(LOG_RATIO) for found in runs) else []
    under(figure, marks, [*captions, *edge_words(figure)], columns=len(marks) // len(TIERS) or None)
    headline(figure, f"Experts of {len(runs)} runs", " · ".join(map(_score, runs)))
    return figure


Panel = Callable[["Axes", ExpertRun], "list[float] | None"]


def _rows(runs: Sequence[ExpertRun]) -> list[tuple[str, Panel, bool]]:
    rows: list[tuple[str, Panel, bool]] = [("gradient norm", tier_panel, True)]
    if any(found.has(rms_of("middle"), WEIGHT) for found in runs):
        rows.append(("RMS / routing weight", _only_routed, True))
    rows.append(("divergence", divergence_panel, True))
    if any(found.has(LOG_RATIO_ROUTED) for found in runs):
        rows.append(("|log ratio|, nats", ratio_panel, False))
    return rows


def _only_routed(ax: Axes, found: ExpertRun) -> list[float] | None:
    """A bare RMS beside one that is divided would not compare."""
    if not found.has(rms_of("middle"), WEIGHT):
        nothing(ax, "no RMS or no routing weights\nin this run")
        return None
    return sound_panel(ax, found)


def _score(found: ExpertRun) -> str:
    known = list(at_the_end(found.field(DIVERGENCE)).values())
    score = spoken(float(np.median(known))) if known else "not measured"
    return f"{shortened(found.run)}: divergence {score}"
