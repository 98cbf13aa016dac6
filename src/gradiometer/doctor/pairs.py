"""Terms of a loss in pairs: how large the gradient of one is beside the other's, block by block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradiometer.doctor.chart import Chart, Series
from gradiometer.doctor.roles import Role, role_of

__all__ = [
    "COSINE",
    "NORM",
    "SHARE",
    "Pair",
    "cosine_of",
    "log_ratio",
    "named",
    "norms_by_block",
    "pairs_of",
]

NORM = "grad/<block>/term/<term>/norm"
SHARE = "grad/<block>/term/<term>/share"
COSINE = "grad/<block>/term/<term_a>~<term_b>/cos"


def named(series: Series) -> bool:
    """Of a block that has a name, or of all; not of a single layer."""
    return not series.parts.get("block", "layer.").startswith("layer.")


def norms_by_block(chart: Chart) -> dict[str, dict[str, Series]]:
    """Norms by block and term. Layers are left out: of many, one is always odd, and the named blocks hold them all."""
    found: dict[str, dict[str, Series]] = {}
    for series in chart.every(NORM):
        if named(series):
            found.setdefault(series.parts["block"], {})[series.parts["term"]] = series
    return found


def _of(terms: dict[str, Series], *roles: Role) -> list[Series]:
    return [series for term, series in terms.items() if role_of(term) in roles]


def log_ratio(above: Series, below: Series) -> Series:
    """log10 of one norm over another, where both were measured and are above zero."""
    steps, a, b = np.intersect1d(above.steps, below.steps, return_indices=True)
    x, y = above.values[a], below.values[b]
    kept = np.isfinite(x) & np.isfinite(y) & (x > 0.0) & (y > 0.0)
    return replace(above, steps=steps[kept], values=np.log10(x[kept]) - np.log10(y[kept]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two terms on a block, and how many decades the first is above the second."""

    block: str
    first: Series
    second: Series
    ratio: Series


def pairs_of(chart: Chart, first: tuple[Role, ...], second: tuple[Role, ...]) -> list[Pair]:
    """Every pair of terms in these roles, block by block."""
    return [
        Pair(block=block, first=a, second=b, ratio=log_ratio(a, b))
        for block, terms in norms_by_block(chart).items()
        for a in _of(terms, *first)
        for b in _of(terms, *second)
    ]


def cosine_of(chart: Chart, pair: Pair) -> Series | None:
    """The cosine of the two terms on their block, whichever was named first."""
    a, b = pair.first.parts["term"], pair.second.parts["term"]
    first = chart.get(COSINE, block=pair.block, term_a=a, term_b=b)
    return first or chart.get(COSINE, block=pair.block, term_a=b, term_b=a)
