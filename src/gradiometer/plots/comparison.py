"""The same norms at several steps side by side, on the same axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradiometer.plots.analysis import USUAL_TERMS, AnalysisStep
from gradiometer.plots.figures import NORM_UNIT, WIDTH, legend, norm_panel, plain_norms
from gradiometer.plots.scales import set_scale
from gradiometer.plots.style import sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_comparison"]


def draw_comparison(steps: Sequence[AnalysisStep], *, mode: str = "") -> Figure:
    """A row for each term, a column for each step; a row shares its axis, so heights compare across steps."""
    terms = _terms(steps)
    figure = sheet(max(WIDTH, 0.6 + 2.1 * len(steps)), 0.9 + 1.75 * len(terms))
    axes = figure.subplots(len(terms), len(steps), squeeze=False, sharey="row")
    for row, term in zip(axes, terms, strict=True):
        drawn: list[float] = []
        judged = [norm for step in steps for norm in plain_norms(step, term)]
        for ax, step in zip(row, steps, strict=True):
            drawn += norm_panel(ax, step, term, label="reward-std bucket" if term == terms[-1] else "")
        for ax, step in zip(row, steps, strict=True):
            if term in step.measured_terms:
                set_scale(ax, drawn, judged=judged)
        row[0].tick_params(left=True, labelleft=True)
        row[0].set_ylabel(f"{term}\n{NORM_UNIT}")
    for ax, step in zip(axes[0], steps, strict=True):
        ax.set_title(f"step {step.step}")
    by = f" ({mode.upper()})" if mode else ""
    figure.suptitle(f"Gradient norm by reward-variance bucket{by}", fontsize=9, fontweight="bold", x=0.01, ha="left")
    legend(figure, list(steps), terms)
    return figure


def _terms(steps: Sequence[AnalysisStep]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(term for step in steps for term in step.terms)) or USUAL_TERMS[:1]
