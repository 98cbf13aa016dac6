"""How large the elements of a block's gradient are, over time: a column for each step that is kept."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from gradiometer.dashboard.desk import Desk, Open, info_of
from gradiometer.dashboard.shape import Axis, Chart, Matrix, Number
from gradiometer.dashboard.views.layers import block_title, measured_at
from gradiometer.dashboard.views.series import called
from gradiometer.store.thinning import Ints

__all__ = ["ROWS", "histogram"]

MOST_COLUMNS = 120
BINS = 37
"""Zeros, below 1e-12, 32 half decades, above 1e4, NaN, Inf: as maths/histogram.py counts."""
LOWEST, HIGHEST, PER_DECADE = -12, 4, 2
ZERO, FIRST, LAST, NAN, INF = 0, 1, 34, 35, 36
ENDS = [half / PER_DECADE for half in range(LOWEST * PER_DECADE, HIGHEST * PER_DECADE + 1)]
ROWS = (
    "exactly zero",
    f"below {LOWEST}",
    *(f"{low:g} … {high:g}" for low, high in pairwise(ENDS)),
    f"above {HIGHEST}",
    "NaN",
    "Inf",
)
"""What each count is; of sizes, log10."""
PREFIX = "histogram/"


def histogram(desk: Desk, block: str) -> list[Chart]:
    """The sizes of the elements of a block of the run in focus, as shares of all; of the whole model where it has none."""
    run = desk.focus
    kept = [name.removeprefix(PREFIX) for name in run.log.vector_names() if name.startswith(PREFIX)]
    block = block if block in kept else "all" if "all" in kept else next((k for k in kept if "expert/" not in k), "")
    if not block:
        if not any(name.startswith("grad/") for name in run.names):
            return []
        empty = measured_at(run, "histograms", "deep")
        info = info_of("grad/<block>/max_abs")
        return [
            Chart(
                id="histogram",
                kind="matrix",
                title="Sizes of the elements",
                section="Histograms",
                info=info,
                empty=empty,
            )
        ]
    steps = _within(desk, run.log.vector_steps(PREFIX + block))
    others = [block_title(other) for other in kept if other != block and "expert/" not in other]
    told = (
        called(desk, run) if len(desk.runs) > 1 else "",
        f"choose {' or '.join(others[:4])} above" if others else "",
    )
    return [
        Chart(
            id="histogram", kind="matrix", title=f"Sizes of the elements · {block_title(block)}", section="Histograms",
            subtitle=" · ".join(filter(None, told)), x=Axis(title="step"), y=Axis(title="log10 |g|"),
            matrix=_matrix(run, PREFIX + block, steps), info=info_of("grad/<block>/max_abs"), wide=True,
        )
    ]  # fmt: skip


def _within(desk: Desk, steps: Ints) -> Ints:
    """At most 120 of the asked steps: evenly from the first on, and the last, where a training may have broken."""
    first, last = desk.ask.first, desk.ask.last
    inside = steps[(steps >= (steps[0] if first is None else first)) & (steps <= (steps[-1] if last is None else last))]
    if len(inside) <= MOST_COLUMNS:
        return inside
    stride = -(-len(inside) // (MOST_COLUMNS - 1))
    return np.unique(np.append(inside[::stride], inside[-1]))


def _matrix(run: Open, name: str, steps: Ints) -> Matrix:
    """[bins, steps] shares; sizes that never occur at either end are left out, zeros and non-finite ones never."""
    counts = np.array([run.log.vector(name, int(step)).values for step in steps], dtype=np.float64).reshape(-1, BINS)
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    filled = FIRST + np.flatnonzero(counts[:, FIRST : LAST + 1].any(axis=0))
    sizes = range(int(filled[0]), int(filled[-1]) + 1) if len(filled) else range(0)
    rows = [ZERO, *sizes, NAN, INF]
    return Matrix(
        rows=[ROWS[row] for row in rows],
        columns=steps.tolist(),
        cells=[_rounded(shares[:, row]) for row in rows],
        low=0.0,
    )


def _rounded(shares: np.ndarray[Any, np.dtype[np.float64]]) -> list[Number]:
    """To four digits: the page needs no more, and a tick of a live run should be small."""
    return [float(f"{share:.4g}") for share in shares.tolist()]
