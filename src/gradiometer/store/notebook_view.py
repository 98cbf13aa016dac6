"""A run as a notebook shows it: what one looks at first, each series with a small curve."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np

from gradiometer.store.comparison import by_default, quantities
from gradiometer.words import number

if TYPE_CHECKING:
    from gradiometer.store.logs import Log
    from gradiometer.store.reader import Floats, Run

__all__ = ["as_html", "sparkline"]

MOST_POINTS = 80
WIDTH, HEIGHT, MARGIN = 160, 28, 2


def as_html(run: Run | Log) -> str:
    """A table of the usual series: last value, and the curve of all."""
    names = run.names()
    book = quantities(names, run.facts)
    rows = "".join(_row(run, name, book[name].series) for name in by_default([book]))
    steps = "no step yet" if run.newest_step is None else f"up to step {run.newest_step:,}"
    head = f"<b>{html.escape(run.name)}</b> {steps}, {len(names)} series"
    more = "<code>gm.diagnose(run)</code> says what is wrong with it"
    return f"<div>{head}<table>{rows}</table><small>{more}</small></div>"


def _row(run: Run | Log, name: str, series: str) -> str:
    found = run.thinned(series, MOST_POINTS)
    if not len(found.steps):
        return ""
    last = run.part(series, int(found.steps[-1]))[1][-1]
    cells = (html.escape(name), sparkline(found.mean), number(float(last)))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def sparkline(values: Floats) -> str:
    """A curve as SVG, as wide as there are values; what is not finite is left out."""
    finite = np.isfinite(values)
    if finite.sum() < 2:
        return ""
    at = np.flatnonzero(finite)
    low, high = float(values[at].min()), float(values[at].max())
    x = MARGIN + (WIDTH - 2 * MARGIN) * at / (len(values) - 1)
    level = (values[at] - low) / (high - low) if high > low else np.full(len(at), 0.5)
    y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * level
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="from {number(low)} to'
        f' {number(high)}"><polyline fill="none" stroke="currentColor" points="{points}"/></svg>'
    )
