"""Vital signs that need a past: bands, severities and health, drift and period, responses, clip rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradiometer.capture.history import Ring
from gradiometer.capture.reading import Fetched
from gradiometer.capture.sheet import Numbers, Sheet
from gradiometer.maths import health, trends

__all__ = ["Vitals"]

TENSOR_HISTORY = 100  # measured steps a tensor's band is read off
BLOCK_HISTORY = 256  # measured steps a trend is judged over
REFRESH = 10  # measured steps from one look at the bands to the next
TRENDS_EVERY = 25  # measured steps from one look at the trends to the next; a look takes milliseconds
CLIP_WINDOW = 100
EMA_BETA = 0.98
COLUMNS = 3  # of each named block, beside step and advantages: log10 of norm/raw, norm/update and learning rate


class Vitals:
    """Keeps log10 norms of tensors and named blocks, and judges each against its own past."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._named = sheet.blocks.names[: sheet.blocks.num_named]
        layers = [(i, set(part)) for i, part in enumerate(sheet.blocks.members) if i >= len(self._named)]
        self._layers_inside = [
            [i for i, part in layers if part <= set(members)] for members in sheet.blocks.members[: len(self._named)]
        ]
        self._tensors = Ring(TENSOR_HISTORY, len(sheet.sizes))
        self._blocks = Ring(BLOCK_HISTORY, 2 + COLUMNS * len(self._named))
        self._late_advantages: dict[int, float] = {}
        self._low = self._high = np.empty(0)
        self._emas: dict[str, tuple[float, float]] = {}
        self._clips: dict[str, Ring] = {}
        self._measured = 0

    def write(self, values: dict[str, float], step: int, fetched: Fetched, *, learning_rates: Sequence[float]) -> None:
        """Severity and health of every block, the EMA of named blocks, and now and then their trends."""
        raw, present = fetched.values["raw"], fetched.present["raw"]
        with np.errstate(divide="ignore", invalid="ignore"):
            self._tensors.add(np.where(present, np.log10(raw), np.nan))
        if self._measured % REFRESH == 0 or len(self._tensors) <= health.MIN_OBSERVATIONS:
            self._refresh_bands()
        self._write_severities(values, raw, fetched)
        for block in self._named:
            self._write_ema(values, block)
        row = [self._late_advantages.pop(step, np.nan)]
        for block, rate in zip(self._named, learning_rates, strict=True):
            row += [values.get(f"grad/{block}/norm/raw", np.nan), values.get(f"grad/{block}/norm/update", np.nan), rate]
        with np.errstate(divide="ignore", invalid="ignore"):
            self._blocks.add(np.array([step, *np.log10(row)]))
        self._late_advantages = {at: std for at, std in self._late_advantages.items() if at > step}
        if self._measured % TRENDS_EVERY == 0:
            self._write_trends(values)
        self._measured += 1

    def note_advantages(self, step: int, std: float) -> None:
        """The scale of the advantages of a step, logged after it was measured or while it is in progress."""
        if not self._blocks.amend(step, 1, float(np.log10(std)) if std > 0 else np.nan):
            self._late_advantages[step] = std

    def note_clips(self, values: dict[str, float], blocks: list[str]) -> None:
        """The share of the last clip calls that bit, per block."""
        for block in blocks:
            ring = self._clips.setdefault(block, Ring(CLIP_WINDOW, 1))
            active = values[f"grad/{block}/clip/active"]
            ring.add(np.array([1.0 if np.isnan(active) else active]))  # a NaN norm clips everything to NaN
            values[f"grad/{block}/clip/rate"] = ring.mean()

    def _refresh_bands(self) -> None:
        rows = self._tensors.rows()
        self._low, self._high = health.band(rows, np.full(rows.shape[1], len(rows)))

    def _write_severities(self, values: dict[str, float], raw: Numbers, fetched: Fetched) -> None:
        present, sheet = fetched.present["raw"], self._sheet
        number = sheet.sums(present.astype(np.float64))
        there = number > 0
        vanishing = np.where(present, health.vanishing_severity(raw, self._low), 0.0)
        exploding = np.where(present, health.exploding_severity(raw, self._high), 0.0)
        mean_vanishing = np.divide(sheet.sums(vanishing), number, out=np.zeros_like(number), where=there)
        mean_exploding = np.divide(sheet.sums(exploding), number, out=np.zeros_like(number), where=there)
        sheet.write(values, "vanishing_severity", mean_vanishing, there)
        sheet.write(values, "exploding_severity", mean_exploding, there)
        bad = sheet.any(present & ~np.isfinite(fetched.values["low"] + fetched.values["high"]))
        imbalance = np.zeros(len(number))
        imbalance[: len(self._named)] = self._imbalance(raw, fetched)
        sheet.write(values, "health", health.scores(mean_vanishing, mean_exploding, imbalance, bad), there)

    def _imbalance(self, raw: Numbers, fetched: Fetched) -> list[float]:
        """How far apart the layers of each named block are, per element."""
        present = fetched.present["raw"]
        norms = self._sheet.norms(raw, present)
        sizes = self._sheet.sums(np.where(present, self._sheet.sizes, 0.0))
        rms = np.divide(norms, np.sqrt(sizes), out=np.full_like(norms, np.nan), where=sizes > 0)
        return [health.depth_imbalance(rms[inside]) for inside in self._layers_inside]

    def _write_ema(self, values: dict[str, float], block: str) -> None:
        norm = values.get(f"grad/{block}/norm/raw")
        if norm is not None and np.isfinite(norm):
            self._emas[block] = trends.ema_update(self._emas.get(block, trends.EMA_START), norm, EMA_BETA)
            values[f"grad/{block}/norm/ema"] = self._emas[block][0]

    def _write_trends(self, values: dict[str, float]) -> None:
        table = self._blocks.rows()
        steps, advantages = table[:, 0], table[:, 1]
        for number, block in enumerate(self._named):
            norms, updates, rates = table[:, 2 + COLUMNS * number : 2 + COLUMNS * (number + 1)].T
            if drift := trends.drift(steps, norms):
                values[f"grad/{block}/drift"] = drift.slope
                if drift.p_value is not None:
                    values[f"grad/{block}/drift_p"] = drift.p_value
            if (period := trends.dominant_period(steps, norms)) and period.significant:
                values[f"grad/{block}/period"] = period.steps
            if response := trends.correlation(rates, updates):
                values[f"grad/{block}/lr_response"] = response.rho
            if response := trends.correlation(advantages, norms):
                values[f"grad/{block}/advantage_response"] = response.rho

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {
            "tensors": self._tensors.state_dict(),
            "blocks": self._blocks.state_dict(),
            "clips": {block: ring.state_dict() for block, ring in self._clips.items()},
            "emas": {block: list(state) for block, state in self._emas.items()},
            "measured": self._measured,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the past of before."""
        self._tensors.load_state_dict(state["tensors"])
        self._blocks.load_state_dict(state["blocks"])
        for block, saved in state["clips"].items():
            self._clips.setdefault(block, Ring(CLIP_WINDOW, 1)).load_state_dict(saved)
        self._emas = {block: (float(mean), float(weight)) for block, (mean, weight) in state["emas"].items()}
        self._measured = int(state["measured"])
        self._refresh_bands()
