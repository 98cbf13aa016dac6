"""What replicates say: the numbers of one study with intervals, and estimators side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradiometer.capture.blocks import Blocks
from gradiometer.errors import UsageError
from gradiometer.maths import estimators, gram, variance
from gradiometer.maths import weights as weighing
from gradiometer.maths.sketch import Sketcher, key_of
from gradiometer.maths.variance import Interval, Units

__all__ = [
    "Curve",
    "EstimatorRow",
    "Replicates",
    "Spread",
    "UnitNumbers",
    "UnitRow",
    "best_k",
    "block_atoms",
    "combined",
    "compared",
    "curve_of",
    "described",
    "gradient_scale",
    "sentence",
    "snr_of",
    "unit_row",
]

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


def unit_row(
    gradients: Tensor, sizes: Sequence[int], count: int, weights: Tensor, sketcher: Sketcher
) -> UnitRow:
    """The replicates of one unit, [R, P], in a few numbers."""
    replicates = len(gradients)
    # Element by element in float32, summed in float64. From the first replicate on, so that no
    # difference is exactly none.
    shifted = gradients - gradients[0]
    centre = shifted.mean(0)
    both = torch.stack([(shifted - centre).square_().sum(0), (gradients[0] + centre).square()])
    starts = np.cumsum([0, *sizes[:-1]])
    spread, mean_sq = np.add.reduceat(both.double().cpu().numpy(), starts, axis=1)
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
    """The units, and Σ n_u g_ru [R, P] over them all; projected where there is a seed."""
    totals = sums / sum(row.count for row in rows)
    projections = np.zeros((len(totals), 0)) if seed is None else _projections(totals, seed)
    return Spread(rows=rows, products=_products(totals, sizes), projections=projections)


def _products(totals: Floats, sizes: Sequence[int]) -> Floats:
    pieces = np.split(totals, np.cumsum(sizes)[:-1], axis=1)
    return np.array([piece @ piece.T for piece in pieces])


def _projections(totals: Floats, seed: int) -> Floats:
    """On fixed N(0, I) vectors, drawn one at a time: 64 gradients need not fit where one does."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, PROJECTION_STREAM]))
    columns = [totals @ generator.standard_normal(totals.shape[1]) for _ in range(NUM_PROJECTIONS)]
    return np.stack(columns, axis=1)


def block_atoms(blocks: Blocks) -> dict[str, list[int]]:
    """The named blocks, as parameter tensors."""
    named = zip(blocks.names[: blocks.num_named], blocks.members, strict=False)
    return {name: list(members) for name, members in named if name != "all"}


def described(
    found: Spread, blocks: Mapping[str, Sequence[int]], *, brief: bool = False
) -> dict[str, Any]:
    """The numbers of a record. What needs two replicates, or four units, is None without them."""
    whole, products = found.units(), found.products.sum(0)
    signal = variance.signal_sq(products)
    several = whole.replicates > 1
    trace = whole.sampling_trace if several else Interval(value=float("nan"))
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
    """‖E G‖²/tr Cov; the interval leaves out one unit at a time.

    Without unit u the replicates are (G_r − w_u g_ru)/(1 − w_u). Products of whole replicates are
    exact; those of a unit with the rest come from sketches, and shape the interval only.
    """
    units = found.units()
    signal, trace = variance.signal_sq(found.products.sum(0)), units.sampling_trace.value
    assert signal is not None
    if not trace > 0:
        return Interval(value=math.nan)
    snr = signal / trace
    if len(found.rows) < gram.MIN_UNITS:
        return Interval(value=snr)
    counts = units.counts
    each = np.stack([row.sketches for row in found.rows]).astype(np.float64)  # [U, R, k]
    whole = np.einsum("u,urk->rk", counts / counts.sum(), each)
    without = []
    for u in range(len(counts)):
        rest = counts.sum() - counts[u]
        left = (counts.sum() * whole - counts[u] * each[u]) / rest
        kept = np.arange(len(counts)) != u
        spread = float((counts[kept] ** 2 * units.within[kept]).sum()) / rest**2
        left_signal = variance.signal_sq(left @ left.T) or 0.0
        without.append(left_signal / spread if spread > 0 else np.nan)
    width = gram.jackknife_width(np.array(without))
    if not np.isfinite(width):  # all the variance is in one unit
        return Interval(value=snr)
    return Interval(value=snr, low=snr - width, high=snr + width)


def _concentration(rows: Sequence[UnitRow]) -> dict[str, float]:
    """Means over the instances that have the quantity: those of zero weight lack some."""
    found: dict[str, float] = {}
    told = [row.concentration for row in rows]
    for name in told[0]:
        if name.endswith("_left_out") or name == "instances":
            continue
        values = np.array([each[name] for each in told])
        sizes = np.array([each["instances"] - each[f"{name}_left_out"] for each in told])
        values, sizes = values[sizes > 0], sizes[sizes > 0]
        found[name] = float((values * sizes).sum() / sizes.sum()) if sizes.size else math.nan
    return found


def _plain(interval: Interval) -> dict[str, float | None]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """The record of one algorithm, and what comparisons need of it."""

    record: dict[str, Any]
    """The study's schema_version, config, metrics, per_replicate; ours under `extended`."""
    spread: Spread | None
    """None when the extended pass was not asked for."""
    seconds: float

    @property
    def label(self) -> str:
        """The algorithm with its options, as a comparison names it."""
        return str(self.record["config"]["label"])


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorRow:
    """One estimator of a comparison; the ratio is to the first."""

    label: str
    k: int | None
    """Of max@K."""
    ratio: Interval
    snr: Interval | None
    ess_abs: float
    seconds: float
    objective: str

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "label": self.label,
            "variance_ratio": _listed(self.ratio),
            "snr": _listed(self.snr),
            "ess_abs": self.ess_abs,
            "seconds": self.seconds,
            "objective": self.objective,
        }


def compared(
    studies: Sequence[Replicates], names: Sequence[str] | None = None
) -> list[EstimatorRow]:
    """Against the first, on the same instances and streams under one reduction."""
    reductions = {study.record["config"]["reduction"] for study in studies}
    assert len(reductions) == 1, "a comparison has one reduction"
    if any(study.spread is None for study in studies):
        raise UsageError("a comparison needs the extended pass: leave --no-extended out")
    first = studies[0].spread
    assert first is not None
    rows = []
    for name, study in zip(names or [study.label for study in studies], studies, strict=True):
        assert study.spread is not None
        extended = study.record["extended"]
        ratio = variance.variance_ratio(study.spread.units(), first.units())
        row = EstimatorRow(
            label=name,
            k=study.record["config"].get("k"),
            ratio=_scaled(ratio, (_scale(study) / _scale(studies[0])) ** 2),
            snr=_snr(study),
            ess_abs=extended["concentration"]["ess_abs"],
            seconds=study.seconds,
            objective=extended["objective"],
        )
        rows.append(row)
    return rows


def _snr(study: Replicates) -> Interval | None:
    found = study.record["extended"]["snr"]
    return None if found is None else Interval(**found)


def gradient_scale(algorithm: str, reduction: str, rollouts: int) -> float:
    """The measured gradient over that of the estimator's own objective.

    The weights of max@K hold the 1/n already and those of the others do not: under one reduction
    one of them is off by n.
    """
    own = estimators.find(algorithm).reduction
    if reduction in ("source", own):
        return 1.0
    return 1.0 / rollouts if own == "sum" else float(rollouts)


def _scale(study: Replicates) -> float:
    """What takes the measured gradient to that of the estimator's own objective."""
    assert study.spread is not None
    config = study.record["config"]
    rollouts = study.spread.rows[0].rollouts
    return 1.0 / gradient_scale(config["algorithm"], config["reduction"], rollouts)


def _scaled(ratio: Interval, factor: float) -> Interval:
    low, high = (None if end is None else end * factor for end in (ratio.low, ratio.high))
    return Interval(value=ratio.value * factor, low=low, high=high)


def sentence(row: EstimatorRow, first: EstimatorRow) -> str:
    """The verdict in words; nothing is said that the interval does not carry."""
    ratio = row.ratio
    if row.snr is None:
        why = "have one replicate each: their variance is undefined"
        return f"{row.label} and {first.label} {why}."
    if math.isnan(ratio.value):
        why = "one of them does not vary at all"
        return f"{row.label} cannot be compared with {first.label}: {why}."
    if ratio.low is None or ratio.high is None:
        what = f"{ratio.value:.2g} × the variance of {first.label}"
        return f"{row.label} has {what}; too few units for an interval."
    at = f" at K={row.k}" if row.k is not None and row.k == first.k else ""
    inside = f"{ratio.low:.2g}–{ratio.high:.2g} × the variance of {first.label}{at}"
    same = row.objective == first.objective
    other = "" if same else f", but of another objective ({row.objective})"
    if ratio.high < 1 or ratio.low > 1:
        return f"{row.label} has {inside}{other}."
    return f"{row.label} has {inside}: no difference that could not be chance{other}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """SNR against rollouts or K, and how many rollouts an SNR of one takes."""

    axis: str
    values: list[int]
    snr: list[Interval | None]
    answer: str

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        snr = [_listed(each) for each in self.snr]
        return {"axis": self.axis, "values": self.values, "snr": snr, "answer": self.answer}


def _listed(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [interval.value, interval.low, interval.high]


def curve_of(axis: str, values: Sequence[int], studies: Sequence[Replicates]) -> Curve:
    """The SNRs in order, and the answer in words."""
    snr = [_snr(study) for study in studies]
    told = [
        (value, each)
        for value, each in zip(values, snr, strict=True)
        if each is not None and math.isfinite(each.value)
    ]
    answer = "No SNR was measured: use two replicates or more, and a policy whose gradient varies."
    if told:
        answer = _rollouts_needed(values, told) if axis == "rollouts" else best_k(told)
    return Curve(axis=axis, values=list(values), snr=snr, answer=answer)


def _rollouts_needed(values: Sequence[int], told: Sequence[tuple[int, Interval]]) -> str:
    """Noise falls as 1/n and the signal stays: SNR = c·n, with c by least squares through zero."""
    measured = [(n, each) for n, each in told if each.value >= 1]
    if measured:
        fewest, found = min(measured, key=lambda pair: pair[0])
        sure = found.low is not None and found.low >= 1
        doubt = "; its 95 % interval reaches below 1, so use more instances to be sure"
        return (
            f"{fewest} rollouts an instance reach SNR ≥ 1 on this batch, the fewest of those"
            f" measured{'' if sure else doubt}."
        )
    n, snr = np.array([(n, each.value) for n, each in told], np.float64).T
    slope = float(n @ snr / np.square(n).sum())
    if slope <= 0:
        return (
            "No SNR above zero was measured: the signal is lost in the noise; use more instances or"
            " a better baseline."
        )
    return (
        f"About {math.ceil(1 / slope)} rollouts an instance for SNR ≥ 1, if noise goes on falling"
        f" as 1/n: none of {list(values)} does."
    )


def best_k(told: Sequence[tuple[int, Interval]]) -> str:
    """The K of the largest SNR, where its interval lies above all others."""
    best, found = max(told, key=lambda pair: (pair[1].value, pair[0]))
    others = [(k, each) for k, each in told if k != best]
    rarer = "a larger K aims at a rarer best, with more variance"
    if found.low is None or any(each.high is None for _, each in others):
        return f"No K can be preferred: too few units for intervals of the SNR; {rarer}."
    near = [k for k, each in others if each.high is not None and each.high >= found.low]
    if near:
        same = ", ".join(map(str, sorted([best, *near])))
        return f"No K stands out: the intervals of the SNR at K = {same} overlap; {rarer}."
    return f"Of the K measured, {best} has the largest SNR ({found.value:.3g}); {rarer}."
