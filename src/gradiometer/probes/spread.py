"""From the units of a replicate study to its numbers: traces, signal, cosines, projections, blocks, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.blocks import Blocks
from gradiometer.maths import gram, variance
from gradiometer.maths import weights as weighing
from gradiometer.maths.sketch import Sketcher, key_of
from gradiometer.maths.variance import Interval, Units

__all__ = ["Spread", "UnitNumbers", "UnitRow", "block_atoms", "combined", "described", "snr_of", "unit_row"]

Floats = NDArray[np.float64]
NUM_PROJECTIONS = 64
PROJECTION_STREAM = 64_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitRow:
    """What is kept of one unit."""

    count: int
    within: Floats
    """v_u of each parameter tensor, [tensors]."""
    mean_sq: Floats
    """‖ḡ_u‖² of each, [tensors]."""
    sketches: NDArray[np.float32]
    """Of each replicate's gradient, [R, k]."""
    concentration: dict[str, float]
    rollouts: int
    """Of each instance."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitNumbers:
    """What a task brings back: its units, and Σ n_u g_ru over them, [R, P]."""

    rows: list[UnitRow]
    sums: Floats
    sizes: list[int]
    """Elements of each parameter tensor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """Everything the numbers are made of; two of the same instances can be compared."""

    rows: list[UnitRow]
    products: Floats
    """<G_r, G_s> of each parameter tensor, [tensors, R, R]."""
    projections: Floats
    """[R, 64]"""

    def units(self, tensors: Sequence[int] | None = None) -> Units:
        """The units, over all parameters or some."""
        at = slice(None) if tensors is None else list(tensors)
        products = self.products[at].sum(0)
        replicates = len(products)
        return Units(
            counts=np.array([row.count for row in self.rows], np.float64),
            within=np.array([row.within[at].sum() for row in self.rows]),
            mean_sq=np.array([row.mean_sq[at].sum() for row in self.rows]),
            total_sq=float(products.sum()) / replicates**2,
            replicates=replicates,
        )


def unit_row(gradients: Tensor, sizes: Sequence[int], count: int, weights: Tensor, sketcher: Sketcher) -> UnitRow:
    """The replicates of one unit, [R, P], in a few numbers."""
    replicates = len(gradients)
    # Element by element in float32, summed in float64. From the first replicate on, so that no difference is exactly none.
    shifted = gradients - gradients[0]
    centre = shifted.mean(0)
    both = torch.stack([(shifted - centre).square_().sum(0), (gradients[0] + centre).square()]).double().cpu().numpy()
    spread, mean_sq = np.add.reduceat(both, np.cumsum([0, *sizes[:-1]]), axis=1)
    within = spread / (replicates - 1) if replicates > 1 else np.full(len(sizes), np.nan)
    key = [key_of("gradient")]
    sketches = torch.stack([sketcher.sketch([row], key) for row in gradients])
    return UnitRow(
        count=count,
        within=within,
        mean_sq=mean_sq,
        sketches=sketches.cpu().numpy(),
        concentration=weighing.summary(weights),
        rollouts=weights.shape[-1],
    )


def combined(rows: list[UnitRow], sums: Floats, sizes: Sequence[int], seed: int | None) -> Spread:
    """The units, and Σ n_u g_ru [R, P] over them all; without a seed nothing is projected, as controls need not be."""
    totals = sums / sum(row.count for row in rows)
    projections = np.zeros((len(totals), 0)) if seed is None else _projections(totals, seed)
    return Spread(rows=rows, products=_products(totals, sizes), projections=projections)


def _products(totals: Floats, sizes: Sequence[int]) -> Floats:
    pieces = np.split(totals, np.cumsum(sizes)[:-1], axis=1)
    return np.array([piece @ piece.T for piece in pieces])


def _projections(totals: Floats, seed: int) -> Floats:
    """On fixed N(0, I) vectors, drawn one at a time: sixty-four gradients would not fit where one does."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, PROJECTION_STREAM]))
    columns = [totals @ generator.standard_normal(totals.shape[1]) for _ in range(NUM_PROJECTIONS)]
    return np.stack(columns, axis=1)


def block_atoms(blocks: Blocks) -> dict[str, list[int]]:
    """The named blocks, as parameter tensors."""
    named = zip(blocks.names[: blocks.num_named], blocks.members, strict=False)
    return {name: list(members) for name, members in named if name != "all"}


def described(found: Spread, blocks: Mapping[str, Sequence[int]], *, brief: bool = False) -> dict[str, Any]:
    """The numbers of a record. What needs two replicates, or four units, is None without them."""
    whole, products = found.units(), found.products.sum(0)
    signal = variance.signal_sq(products)
    several = whole.replicates > 1
    trace = whole.sampling_trace if several else Interval(value=float("nan"), low=None, high=None)
    numbers: dict[str, Any] = {
        "trace": _plain(trace) if several else None,
        "signal_sq": signal,
        "signal_norm": None if signal is None else gram.signed_root(signal),
        "snr": _plain(snr_of(found)) if several else None,
        "mean_cosine": variance.mean_cosine(products),
    }
    if brief:
        return numbers
    return {
        **numbers,
        "unit": "block of instances",
        "num_units": len(found.rows),
        "num_replicates": whole.replicates,
        "trace_of_replicates": variance.replicate_trace(products),
        "instance_trace": whole.instance_trace if several else None,
        "projections": {
            "count": found.projections.shape[1],
            "mean": found.projections.mean(0).tolist(),
            "variance": found.projections.var(0, ddof=1).tolist() if several else None,
        },
        "concentration": _concentration(found.rows),
        "blocks": {name: _block(found, tensors) for name, tensors in blocks.items()},
        "notes": [] if several else ["one replicate: variance, SNR and intervals are undefined"],
    }


def _block(found: Spread, tensors: Sequence[int]) -> dict[str, float | None]:
    units, products = found.units(tensors), found.products[list(tensors)].sum(0)
    signal = variance.signal_sq(products)
    return {
        "norm": float(np.sqrt(np.trace(products) / len(products))),
        "signal_sq": signal,
        "trace": units.sampling_trace.value if len(products) > 1 else None,
    }


def snr_of(found: Spread) -> Interval:
    """‖E G‖²/tr Cov; the interval leaves out one unit at a time, with sketches for the products that takes.

    Without unit u the replicates are (G_r − w_u g_ru)/(1 − w_u). Products of whole replicates are exact; those of a unit
    with the rest come from sketches, and shape the interval only.
    """
    units = found.units()
    signal, trace = variance.signal_sq(found.products.sum(0)), units.sampling_trace.value
    assert signal is not None
    if not trace > 0:
        return Interval(value=float("nan"), low=None, high=None)
    if len(found.rows) < variance.MIN_UNITS:
        return Interval(value=signal / trace, low=None, high=None)
    counts = units.counts
    each = np.stack([row.sketches for row in found.rows]).astype(np.float64)  # [U, R, k]
    whole = np.einsum("u,urk->rk", counts / counts.sum(), each)
    without = []
    for u in range(len(counts)):
        rest = counts.sum() - counts[u]
        left = (counts.sum() * whole - counts[u] * each[u]) / rest
        kept = np.arange(len(counts)) != u
        spread = float((counts[kept] ** 2 * units.within[kept]).sum()) / rest**2
        without.append(float(variance.signal_sq(left @ left.T) or 0.0) / spread if spread > 0 else np.nan)
    width = variance.jackknife_width(np.array(without))
    if not np.isfinite(width):  # all the variance is in one unit
        return Interval(value=signal / trace, low=None, high=None)
    return Interval(value=signal / trace, low=signal / trace - width, high=signal / trace + width)


def _concentration(rows: Sequence[UnitRow]) -> dict[str, float]:
    """Means over instances; an instance whose weights are all zero counts only where it has the quantity."""
    found: dict[str, float] = {}
    for name in (name for name in rows[0].concentration if not name.endswith("_left_out") and name != "instances"):
        values = np.array([row.concentration[name] for row in rows])
        sizes = np.array([row.concentration["instances"] - row.concentration[f"{name}_left_out"] for row in rows])
        used = sizes > 0
        found[name] = float((values[used] * sizes[used]).sum() / sizes[used].sum()) if used.any() else float("nan")
    return found


def _plain(interval: Interval) -> dict[str, float | None]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}
