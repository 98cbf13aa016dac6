"""Estimators side by side: who varies less, by how much, and is that more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradiometer.errors import UsageError
from gradiometer.maths import estimators, variance
from gradiometer.maths.variance import Interval
from gradiometer.probes.replicates import Replicates

__all__ = ["Curve", "Row", "compared", "curve_of", "sentence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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
            "variance_ratio": [self.ratio.value, self.ratio.low, self.ratio.high],
            "snr": None if self.snr is None else [self.snr.value, self.snr.low, self.snr.high],
            "ess_abs": self.ess_abs,
            "seconds": self.seconds,
            "objective": self.objective,
        }


def compared(studies: Sequence[Replicates], names: Sequence[str] | None = None) -> list[Row]:
    """Against the first, on the same instances and streams under one reduction; `names` for shorter labels."""
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
        snr = extended["snr"]
        rows.append(
            Row(
                label=name,
                k=study.record["config"].get("k"),
                ratio=_scaled(
                    variance.variance_ratio(study.spread.units(), first.units()),
                    (_scale(study) / _scale(studies[0])) ** 2,
                ),
                snr=None if snr is None else Interval(**snr),
                ess_abs=extended["concentration"]["ess_abs"],
                seconds=study.seconds,
                objective=extended["objective"],
            )
        )
    return rows


def _scale(study: Replicates) -> float:
    """What takes the measured gradient to that of the estimator's own objective, n rollouts reduced by a mean or a sum.

    The weights of max@K hold the 1/n already and those of the others do not: under one reduction one of them is off by n.
    """
    assert study.spread is not None
    own = estimators.find(study.record["config"]["algorithm"]).reduction
    asked, rollouts = study.record["config"]["reduction"], study.spread.rows[0].rollouts
    if asked in ("source", own):
        return 1.0
    return float(rollouts) if own == "sum" else 1.0 / rollouts


def _scaled(ratio: Interval, factor: float) -> Interval:
    low, high = (None if end is None else end * factor for end in (ratio.low, ratio.high))
    return Interval(value=ratio.value * factor, low=low, high=high)


def sentence(row: Row, first: Row) -> str:
    """The verdict in words; nothing is said that the interval does not carry."""
    ratio = row.ratio
    if row.snr is None:
        return f"{row.label} and {first.label} have one replicate each: their variance is undefined."
    if math.isnan(ratio.value):
        return f"{row.label} cannot be compared with {first.label}: one of them does not vary at all."
    if ratio.low is None or ratio.high is None:
        return f"{row.label} has {ratio.value:.2g} × the variance of {first.label}; too few units for an interval."
    at = f" at K={row.k}" if row.k is not None and row.k == first.k else ""
    inside = f"{ratio.low:.2g}–{ratio.high:.2g} × the variance of {first.label}{at}"
    other = "" if row.objective == first.objective else f", but of another objective ({row.objective})"
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
        snr = [None if each is None else [each.value, each.low, each.high] for each in self.snr]
        return {"axis": self.axis, "values": self.values, "snr": snr, "answer": self.answer}


def curve_of(axis: str, values: Sequence[int], studies: Sequence[Replicates]) -> Curve:
    """The SNRs in order, and the answer in words."""
    found = [study.record["extended"]["snr"] for study in studies]
    snr = [None if each is None else Interval(**each) for each in found]
    answer = _rollouts_needed(values, snr) if axis == "rollouts" else _best(values, snr)
    return Curve(axis=axis, values=list(values), snr=snr, answer=answer)


def _rollouts_needed(values: Sequence[int], snr: Sequence[Interval | None]) -> str:
    """Noise falls as 1/n and the signal stays, so SNR = c·n: c by least squares through zero, from the measured ones."""
    told = [(n, each) for n, each in zip(values, snr, strict=True) if each is not None and math.isfinite(each.value)]
    pairs = [(n, each.value) for n, each in told]
    measured = [(n, each) for n, each in told if each.value >= 1]
    if not pairs:
        return "No SNR was measured: use two replicates or more, and a policy whose gradient varies."
    slope = float(np.dot(*np.array(pairs, np.float64).T) / np.square([n for n, _ in pairs]).sum())
    if measured:
        fewest, found = min(measured, key=lambda pair: pair[0])
        sure = found.low is not None and found.low >= 1
        doubt = "" if sure else "; its 95 % interval reaches below 1, so use more instances to be sure"
        return f"{fewest} rollouts an instance reach SNR ≥ 1 on this batch, the fewest of those measured{doubt}."
    if slope <= 0:
        return (
            "No SNR above zero was measured: the signal is lost in the noise; use more instances or a better baseline."
        )
    needed = math.ceil(1 / slope)
    return f"About {needed} rollouts an instance for SNR ≥ 1, if noise goes on falling as 1/n: none of {list(values)} does."


def _best(values: Sequence[int], snr: Sequence[Interval | None]) -> str:
    told = [
        (each.value, k) for k, each in zip(values, snr, strict=True) if each is not None and math.isfinite(each.value)
    ]
    if not told:
        return "No SNR was measured: use two replicates or more, and a policy whose gradient varies."
    value, k = max(told)
    return f"Of the K measured, {k} has the largest SNR ({value:.3g}); a larger K aims at a rarer best, with more variance."
