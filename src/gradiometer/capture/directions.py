"""Which way the gradient points: against the step before, against its own past, against what the weights did."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradiometer.capture.reading import Fetched
from gradiometer.capture.sheet import Mask, Numbers, Sheet
from gradiometer.maths.sketch import cosine

__all__ = ["Directions"]

EMA_BETA = 0.9
WINDOW = 8  # measured steps; on noise alone their alignment is 1/√8 = 0.35


class Directions:
    """Keeps, per named block, the EMA of earlier sketches and the last few of them."""

    def __init__(self, sheet: Sheet, atoms: Sequence[Sequence[int]], size: int) -> None:
        self._size = size
        self._sheet, self._atoms = sheet, [list(part) for part in atoms]
        self._named = sheet.blocks.names[: sheet.blocks.num_named]
        self._seen: Numbers | None = None
        """Gradient norms of the last measured step: the previous ones, when the scratch was filled in that step."""
        self._ema: dict[str, Numbers] = {}
        self._window: dict[str, deque[Numbers]] = {}

    def write(self, values: dict[str, float], fetched: Fetched, seen: Numbers) -> None:
        """cos_prev and cos_update, for every block. `seen` are the gradient norms as the optimizer saw them."""
        if "previous_dot" in fetched.values:
            before = np.zeros_like(seen) if self._seen is None else self._seen
            if "previous_norm" in fetched.values:  # kept on a step that was not measured, so the host has not seen it
                before = np.where(fetched.present["previous_norm"], fetched.values["previous_norm"], before)
            present = fetched.present["previous_dot"]
            self._cosine(values, "cos_prev", fetched, "previous_dot", fetched.values["raw"], before, present)
        if "update_dot" in fetched.values:
            present = fetched.present["update_dot"] & fetched.present["raw"]
            self._cosine(values, "cos_update", fetched, "update_dot", seen, fetched.values["update"], present)
        self._seen = seen

    def _cosine(
        self, values: dict[str, float], name: str, fetched: Fetched, dot: str, a: Numbers, b: Numbers, present: Mask
    ) -> None:
        """Σ<a_p, b_p> / (‖a‖‖b‖) over the members that have both."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            size = self._sheet.norms(a, present) * self._sheet.norms(b, present)
            cosines = self._sheet.sums(np.where(present, fetched.values[dot], 0.0)) / size
        self._sheet.write(values, name, cosines, (size > 0) & np.isfinite(cosines))

    def write_sketched(self, values: dict[str, float], fetched: Fetched) -> dict[str, NDArray[np.float32]]:
        """cos_ema and alignment_window per named block; the block's sketches, to be kept."""
        if "sketch" not in fetched.arrays:
            return {}
        sketches = self._by_block(fetched.arrays["sketch"])
        before = fetched.arrays.get("previous_sketch")
        earlier = None if before is None else self._by_block(before)
        kept: dict[str, NDArray[np.float32]] = {}
        for number, (block, sketch) in enumerate(zip(self._named, sketches, strict=True)):
            if not np.isfinite(sketch).all() or not sketch.any():
                continue
            if earlier is not None:
                _put(values, f"grad/{block}/cos_prev", cosine(sketch, earlier[number]))
            if block in self._ema:
                _put(values, f"grad/{block}/cos_ema", cosine(sketch, self._ema[block]))
            self._remember(values, block, sketch)
            kept[f"sketch/{block}"] = sketch.astype(np.float32)
        return kept

    def _by_block(self, sketch: Numbers) -> list[Numbers]:
        """Sums of atoms, not a matrix product: a NaN in the actor is not the critic's."""
        return [sketch[part].sum(0) for part in self._atoms]

    def _remember(self, values: dict[str, float], block: str, sketch: Numbers) -> None:
        past = self._ema.get(block, np.zeros_like(sketch))
        self._ema[block] = EMA_BETA * past + (1 - EMA_BETA) * sketch
        window = self._window.setdefault(block, deque(maxlen=WINDOW))
        window.append(sketch)
        if len(window) == WINDOW:
            lengths = sum(float(np.linalg.norm(part)) for part in window)
            values[f"grad/{block}/alignment_window"] = float(np.linalg.norm(np.sum(window, axis=0))) / lengths

    def state_dict(self) -> dict[str, Any]:
        """Plain lists, which every way of saving a checkpoint takes."""
        return {
            "ema": {block: past.tolist() for block, past in self._ema.items()},
            "window": {block: [part.tolist() for part in window] for block, window in self._window.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the past of before."""
        sizes = {len(past) for past in state["ema"].values()}
        if sizes - {self._size}:  # sketches of another size are of another run
            return
        self._ema = {block: np.asarray(past) for block, past in state["ema"].items()}
        self._window = {
            block: deque((np.asarray(part) for part in window), maxlen=WINDOW)
            for block, window in state["window"].items()
        }


def _put(values: dict[str, float], name: str, value: float | None) -> None:
    if value is not None:
        values[name] = value
