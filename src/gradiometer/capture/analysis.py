"""From numbers per parameter to named values per block."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gradiometer.capture import statistics
from gradiometer.capture.blocks import Blocks, select
from gradiometer.capture.experts import ExpertLayer
from gradiometer.capture.expertvalues import ExpertValues
from gradiometer.capture.rounds import Round, SeenClip, SeenTerms
from gradiometer.capture.settings import Settings
from gradiometer.capture.statistics import (
    AGREEING,
    CLIPPED,
    COMPARED,
    FOURTHS,
    HIGH,
    LARGE_FOURTHS,
    LOCAL,
    LOW,
    PREVIOUS_DOT,
    PREVIOUS_NORM,
    RAW,
    SAMPLE_SIZE,
    UPDATE,
    UPDATE_DOT,
    WEIGHT,
    BlockReducer,
    Fetched,
    Mask,
    Numbers,
    Statistic,
)
from gradiometer.maths import gram, health, noise, pairs, trends
from gradiometer.maths.segments import silent
from gradiometer.maths.sketch import cosine

__all__ = ["BlockHistory", "BlockValues", "Directions", "Ring", "StepAnalysis", "unscale"]

Reduced: TypeAlias = dict[Statistic, Numbers]
"""A number a block."""

MOST_LAYOUTS = 64  # which metrics a step writes: few combinations
SKETCH_BETA = 0.9
COSINES = 100  # measured steps that the band of cosines of noise is read off
WINDOW = 8  # measured steps; on noise alone their alignment is 1/√8 = 0.35
TENSOR_HISTORY = 100  # measured steps a tensor's band is read off
BLOCK_HISTORY = 256  # measured steps a trend is judged over
REFRESH = 10  # measured steps from one look at the bands to the next
# measured steps from one look at the trends to the next, which takes milliseconds: a quarter of
# those so far, for a look costs more with them, and sees less that is new
TRENDS_FIRST, TRENDS_LATER, TRENDS_GROW = 25, 75, 4
CLIP_WINDOW = 100
NORM_BETA = 0.98
# of each named block, beside step and advantages: log10 of norm/raw, norm/update and learning rate
TREND_COLUMNS = 3
PAIR_HISTORY = 200
AVERAGED = 1e3  # a norm of one rank beyond this many times what averaging explains is a scaled one


class BlockValues:
    """Writes the values of a step, block by block; a block without any member present gets none."""

    def __init__(self, blocks: Blocks, shapes: Sequence[tuple[int, ...]]) -> None:
        self.blocks = blocks
        self.reducer = BlockReducer(blocks, shapes)
        self._small = self.reducer.sizes <= SAMPLE_SIZE
        self._names = lru_cache(MOST_LAYOUTS)(self._names_of)
        self._rows: list[tuple[str, Numbers, Mask]] = []

    def write(self, metric: str, numbers: Numbers, where: Mask) -> None:
        """Keep `grad/<block>/<metric>` for the blocks in `where`: of all, or of the first ones."""
        self._rows.append((metric, numbers, where))

    def take(self, values: dict[str, float]) -> None:
        """What was written, by name: a step has the same names again and again."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        metrics, numbers, where = zip(*rows, strict=True)
        named = zip(
            self._names(metrics, tuple(map(len, numbers))),
            np.concatenate(numbers).tolist(),
            strict=True,
        )
        values.update(compress(named, np.concatenate(where).tolist()))

    def _names_of(self, metrics: tuple[str, ...], lengths: tuple[int, ...]) -> list[str]:
        return [
            f"grad/{block}/{metric}"
            for metric, length in zip(metrics, lengths, strict=True)
            for block in self.blocks.names[:length]
        ]

    def written(self, metric: str) -> dict[str, float]:
        """The numbers of this step by block."""
        for name, numbers, where in self._rows:
            if name == metric:
                named = zip(self.blocks.names, numbers.tolist(), strict=False)
                return dict(compress(named, where.tolist()))
        return {}

    def write_statistics(self, fetched: Fetched) -> Reduced:
        """Every statistic by block; those that are metrics by themselves are written."""
        reduced: Reduced = {}
        for each in statistics.STATISTICS:
            if each.reduce is None or each not in fetched.values:
                continue
            present = fetched.present[each]
            reduced[each] = each.reduce(self.reducer, fetched.values[each], present)
            if each.metric is not None:
                self.write(each.metric, reduced[each], self.reducer.any(present))
        return reduced

    def extremes(self, fetched: Fetched, nonfinite: Mask) -> None:
        """`max_abs`, and `nonfinite`: how many tensors of a block hold a NaN or an Inf."""
        present = fetched.present[RAW]
        max_abs = np.maximum(np.abs(fetched.values[LOW]), np.abs(fetched.values[HIGH]))
        there = self.reducer.any(present)
        self.write("max_abs", self.reducer.largest(max_abs, present), there)
        self.write("nonfinite", self.reducer.counts(nonfinite), there)

    def clipped(self, fetched: Fetched, current: Round) -> Numbers:
        """`norm/clipped`; returns the gradient norms as the optimizer saw them, by parameter."""
        raw, present = fetched.values[RAW], fetched.present[RAW]
        seen, clipped = raw, np.zeros(len(raw), dtype=np.bool_)
        for clip in current.clips:
            at = _at(clip.indices, len(raw))
            clipped[at] = True
            if clip.call.kind == "norm":
                seen = seen.copy() if seen is raw else seen
                seen[at] *= clip.factor(fetched)
        # Measured again where something else changed a gradient after the clip.
        seen = fetched.get(CLIPPED, seen)
        if current.clips:
            there = self.reducer.any(clipped & present)
            self.write("norm/clipped", self.reducer.norms(seen, present), there)
        return seen

    def ratios(self, fetched: Fetched, reduced: Reduced) -> None:
        """What is made of two statistics: `update_ratio`, `sign_agreement`, `participation`."""
        if UPDATE in reduced:
            moved, size = reduced[UPDATE], reduced[WEIGHT]
            # A block of zeros (fresh biases) has no ratio: missing, not infinite.
            sized = self.reducer.any(fetched.present[UPDATE]) & (size > 0)
            self.write("update_ratio", moved / size, sized)
        if COMPARED in reduced:
            compared = reduced[COMPARED]
            self.write("sign_agreement", reduced[AGREEING] / compared, compared > 0)
        participation = self._participation(fetched, reduced[RAW])
        self.write("participation", participation, np.isfinite(participation))

    def _participation(self, fetched: Fetched, norms: Numbers) -> Numbers:
        """(Σg²)²/Σg⁴; NaN for a block with a tensor of which only a sample was read."""
        present, whole = fetched.present[RAW], self._small
        if LARGE_FOURTHS in fetched.present:
            whole = whole | fetched.present[LARGE_FOURTHS]
        fourths = fetched.get(LARGE_FOURTHS, fetched.values[FOURTHS])
        found: Numbers = np.square(np.square(norms)) / self.reducer.sums(fourths, present)
        found[self.reducer.any(present & ~whole)] = np.nan
        return found

    def terms(self, values: dict[str, float], fetched: Fetched, seen: SeenTerms | None) -> None:
        """What each loss term and each reward contributes by block; whether the terms are all."""
        if seen is None:
            return
        values.update(
            (f"grad/all/{key}", x) for key, x in fetched.scalars.items() if key.startswith("term/")
        )
        if seen.terms:
            self._products("term", seen.terms, fetched.arrays["gram/term"], seen)
        if seen.rewards:
            size = len(seen.rewards)
            self._products(
                "reward", seen.rewards, fetched.arrays["gram/reward"][:, :size, :size], seen
            )
        if seen.cosine_error is not None:
            values["grad/all/term/cos_error"] = seen.cosine_error
        if "gram/raw" in fetched.arrays:
            pair = fetched.arrays["gram/raw"]
            error, scale = gram.additivity(pair)
            # Nothing against nothing has no error; a NaN of the gradients' own is recorded.
            if not (np.isnan(error) and np.isfinite(pair).all()):
                values["grad/all/term/additivity_error"] = error
                values["grad/all/term/scale"] = scale

    def _products(
        self,
        kind: str,
        names: Sequence[str],
        products: Numbers,
        seen: SeenTerms,
    ) -> None:
        """Norms, shares and cosines of each block, from inner products [parameters, n, n]."""
        blocks = self.reducer.add(products)
        norms, shares, cosines = gram.norms(blocks), gram.shares(blocks), gram.cosines(blocks)
        finite = np.isfinite(blocks).all((1, 2))
        there = [self.reducer.any(self._mask(seen.reached[f"{kind}/{name}"])) for name in names]
        for a, name in enumerate(names):
            self.write(f"{kind}/{name}/norm", norms[:, a], there[a])
            # A share of nothing and the direction of a zero are missing; a NaN spoils to NaN.
            shared = there[a] & ~(np.isnan(shares[:, a]) & finite)
            self.write(f"{kind}/{name}/share", shares[:, a], shared)
            for b in range(a + 1, len(names)):
                cosine = cosines[:, a, b]
                both = there[a] & there[b] & ~(np.isnan(cosine) & finite)
                self.write(f"{kind}/{name}~{names[b]}/cos", cosine, both)

    def _mask(self, indices: Collection[int]) -> Mask:
        mask: Mask = np.zeros(len(self.reducer.sizes), dtype=np.bool_)
        mask[list(indices)] = True
        return mask


def unscale(fetched: Fetched, current: Round) -> None:
    """Take out the loss scale of what was read before a fused optimizer took it out itself."""
    for indices, name in current.scaled:
        at = list(indices)
        for each, numbers in fetched.values.items():
            if each.loss_scale:
                numbers[at] /= fetched.scalars[name] ** each.loss_scale


def _at(indices: Sequence[int], count: int) -> Any:
    """To choose them among so many."""
    return slice(None) if len(indices) == count else list(indices)


class Directions:
    """Keeps, per named block, the EMA of earlier sketches, the last few of them, and cosines."""

    def __init__(
        self, block_values: BlockValues, atoms: Sequence[Sequence[int]], size: int
    ) -> None:
        self._size = size
        self._block_values, self._atoms = block_values, [list(part) for part in atoms]
        self._named = list(block_values.blocks.named)
        self._seen: Numbers | None = None
        """Gradient norms of the last measured step, for a scratch that was filled in it."""
        self._ema: dict[str, Numbers] = {}
        self._window: dict[str, deque[tuple[Numbers, float]]] = {}
        """The last sketches, each with its length."""
        self._cosines: dict[str, noise.CosineBand] = {}

    def write(self, fetched: Fetched, seen: Numbers) -> None:
        """cos_prev and cos_update; `seen`: gradient norms as the optimizer saw them."""
        raw = fetched.values[RAW]
        if PREVIOUS_DOT in fetched.values:
            before = np.zeros_like(seen) if self._seen is None else self._seen
            # Of a step that was not measured the host knows only what was read when it was kept.
            before = fetched.get(PREVIOUS_NORM, before)
            present = fetched.present[PREVIOUS_DOT]
            self._cosine("cos_prev", fetched.values[PREVIOUS_DOT], raw, before, present)
        if UPDATE_DOT in fetched.values:
            present = fetched.present[UPDATE_DOT] & fetched.present[RAW]
            moved = fetched.values[UPDATE]
            self._cosine("cos_update", fetched.values[UPDATE_DOT], seen, moved, present)
        self._seen = seen

    def _cosine(
        self,
        name: str,
        dots: Numbers,
        a: Numbers,
        b: Numbers,
        present: Mask,
    ) -> None:
        """Σ<a_p, b_p> / (‖a‖‖b‖) over the members that have both."""
        reducer = self._block_values.reducer
        size = reducer.norms(a, present) * reducer.norms(b, present)
        cosines = reducer.sums(dots, present) / size
        self._block_values.write(name, cosines, (size > 0) & np.isfinite(cosines))

    def write_sketched(
        self, values: dict[str, float], fetched: Fetched
    ) -> dict[str, NDArray[np.float32]]:
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

    def write_noise(self, values: dict[str, float]) -> None:
        """cos_noise, beside each cos_prev of a named block: from those before, not from itself."""
        exact = self._block_values.written("cos_prev")
        for block in self._named:
            cosine = exact.get(block, values.get(f"grad/{block}/cos_prev"))
            if cosine is None:
                continue
            past = self._cosines.get(block)
            if past is None:
                past = self._cosines[block] = noise.CosineBand(COSINES)
            _put(values, f"grad/{block}/cos_noise", past.half_width())
            past.add(cosine)

    def _by_block(self, sketch: Numbers) -> list[Numbers]:
        """Sums of atoms, not a matrix product: a NaN in the actor is not the critic's."""
        return [sketch[part].sum(0) for part in self._atoms]

    def _remember(self, values: dict[str, float], block: str, sketch: Numbers) -> None:
        past = self._ema.get(block, np.zeros_like(sketch))
        self._ema[block] = SKETCH_BETA * past + (1 - SKETCH_BETA) * sketch
        window = self._window.setdefault(block, deque(maxlen=WINDOW))
        window.append(_with_length(sketch))
        if len(window) == WINDOW:
            total = np.sum([part for part, _ in window], axis=0)
            lengths = sum(length for _, length in window)
            values[f"grad/{block}/alignment_window"] = float(np.linalg.norm(total)) / lengths

    def state_dict(self) -> dict[str, Any]:
        """Plain lists, which every way of saving a checkpoint takes."""
        return {
            "ema": {block: past.tolist() for block, past in self._ema.items()},
            "window": {
                block: [part.tolist() for part, _ in window]
                for block, window in self._window.items()
            },
            "cosines": {block: list(past.cosines) for block, past in self._cosines.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the past of before."""
        self._cosines = {
            block: noise.CosineBand(COSINES, past)
            for block, past in state.get("cosines", {}).items()
        }
        sizes = {len(past) for past in state["ema"].values()}
        if sizes - {self._size}:  # sketches of another size are of another run
            return
        self._ema = {block: np.asarray(past) for block, past in state["ema"].items()}
        self._window = {
            block: deque((_with_length(np.asarray(part)) for part in window), maxlen=WINDOW)
            for block, window in state["window"].items()
        }


def _with_length(sketch: Numbers) -> tuple[Numbers, float]:
    return sketch, float(np.linalg.norm(sketch))


def _put(values: dict[str, float], name: str, value: float | None) -> None:
    if value is not None:
        values[name] = value


class Ring:
    """The last rows of a table of numbers, oldest first; what was not measured is NaN."""

    def __init__(self, length: int, width: int) -> None:
        self._rows = np.full((length, width), np.nan)
        self.newest: Numbers = self._rows[0]
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._rows))

    def add(self, row: Numbers | float) -> None:
        """Take in a row; the oldest one goes."""
        self.newest = self._rows[self._count % len(self._rows)]
        self.newest[:] = row
        self._count += 1

    def amend(self, key: float, column: int, value: float) -> bool:
        """Fill in a late number in the row that begins with `key`; whether there is one."""
        found = self._rows[:, 0] == key
        self._rows[found, column] = value
        return bool(found.any())

    def rows(self) -> Numbers:
        """What is held, [length, width]."""
        if self._count <= len(self._rows):
            return self._rows[: self._count]
        return np.roll(self._rows, -(self._count % len(self._rows)), axis=0)

    def state_dict(self) -> dict[str, Any]:
        """As plain lists; NaN and all."""
        return {"rows": self.rows().tolist(), "width": self._rows.shape[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved one ended; another width is another model's and is ignored."""
        if state["width"] == self._rows.shape[1]:
            self._rows[:], self._count = np.nan, 0
            for row in state["rows"]:
                self.add(np.asarray(row, dtype=np.float64))


class BlockHistory:
    """Keeps log10 norms of tensors and named blocks, and judges each against its own past."""

    def __init__(self, block_values: BlockValues) -> None:
        self._block_values = block_values
        blocks = block_values.blocks
        self._named = list(blocks.named)
        places = {name: place for place, name in enumerate(blocks.names)}
        inside = [[places[layer] for layer in blocks.layers_inside(name)] for name in self._named]
        self._compared = np.array([bool(part) for part in inside])
        """Which named blocks have layers, and below where those lie among the blocks."""
        sizes = [len(part) for part in inside if part]
        self._inside = np.array([place for part in inside for place in part], np.int64)
        self._starts_inside = np.cumsum([0, *sizes])[: len(sizes)]
        self._tensors = Ring(TENSOR_HISTORY, len(block_values.reducer.sizes))
        self._blocks = Ring(BLOCK_HISTORY, 2 + TREND_COLUMNS * len(self._named))
        self._late_advantages: dict[int, float] = {}
        self._log_low = self._log_high = np.empty(0)
        self._emas: dict[str, tuple[float, float]] = {}
        self._clips: dict[str, deque[float]] = {}
        self._measured = self._trends_due = 0

    def write(
        self,
        values: dict[str, float],
        step: int,
        fetched: Fetched,
        reduced: Reduced,
        nonfinite: Mask,
        *,
        learning_rates: Sequence[float],
    ) -> None:
        """Severity and health of all blocks, the EMA of named ones; now and then trends."""
        raw, present = fetched.values[RAW], fetched.present[RAW]
        log_norms = np.log10(raw)
        self._tensors.add(log_norms)
        if not self._block_values.reducer.presence(present).everyone:
            self._tensors.newest[~present] = np.nan
        if self._measured % REFRESH == 0 or len(self._tensors) <= health.MIN_OBSERVATIONS:
            self._refresh_bands()
        self._write_severities(log_norms, present, reduced[RAW], nonfinite)
        norms = self._of_named(reduced, fetched, RAW)
        self._write_emas(norms.tolist())
        row = np.empty((len(self._named), TREND_COLUMNS))
        row[:, 0], row[:, 1] = norms, self._of_named(reduced, fetched, UPDATE)
        row[:, 2] = learning_rates
        self._blocks.add(step)
        newest = self._blocks.newest
        newest[1] = np.log10(self._late_advantages.pop(step, np.nan))
        np.log10(row.reshape(-1), out=newest[2:])
        if self._late_advantages:
            late = self._late_advantages.items()
            self._late_advantages = {at: std for at, std in late if at > step}
        if self._measured >= self._trends_due:
            self._write_trends(values)
            wait = max(TRENDS_FIRST, min(self._measured // TRENDS_GROW, TRENDS_LATER))
            self._trends_due = self._measured + wait
        self._measured += 1

    def note_advantages(self, step: int, std: float) -> None:
        """The scale of a step's advantages; it may be logged after the step."""
        if not self._blocks.amend(step, 1, float(np.log10(std)) if std > 0 else np.nan):
            self._late_advantages[step] = std

    def note_clips(self, values: dict[str, float], blocks: list[str]) -> None:
        """The share of the last clip calls that bit, per block."""
        for block in blocks:
            past = self._clips.setdefault(block, deque(maxlen=CLIP_WINDOW))
            active = values[f"grad/{block}/clip/active"]
            # A NaN norm clips everything to NaN.
            past.append(1.0 if math.isnan(active) else active)
            values[f"grad/{block}/clip/rate"] = sum(past) / len(past)

    def _refresh_bands(self) -> None:
        rows = self._tensors.rows()
        low, high = health.band(rows, np.full(rows.shape[1], len(rows)))
        self._log_low, self._log_high = np.log10(low), np.log10(high)

    def _of_named(self, reduced: Reduced, fetched: Fetched, each: Statistic) -> Numbers:
        """A norm of each named block, NaN where there is none."""
        count = len(self._named)
        if each not in reduced:
            return np.full(count, np.nan)
        there = self._block_values.reducer.any(fetched.present[each])[:count]
        return np.where(there, reduced[each][:count], np.nan)

    def _write_severities(
        self, log_norms: Numbers, present: Mask, norms: Numbers, nonfinite: Mask
    ) -> None:
        reducer, write = self._block_values.reducer, self._block_values.write
        number, there = reducer.counts(present), reducer.any(present)
        each = health.severities(log_norms, self._log_low, self._log_high)
        vanishing, exploding = (reducer.sums(x, present) / number for x in each)
        write("vanishing_severity", vanishing, there)
        write("exploding_severity", exploding, there)
        bad = reducer.any(nonfinite)
        imbalance = np.zeros(len(number))
        imbalance[: len(self._named)] = self._imbalance(norms, present)
        write("health", health.scores(vanishing, exploding, imbalance, bad), there)

    def _imbalance(self, norms: Numbers, present: Mask) -> Numbers:
        """How far apart the layers of each named block are, per element."""
        found = np.zeros(len(self._named))
        if len(self._inside):
            sizes = self._block_values.reducer.presence(present).root_elements
            rms = (norms / sizes)[self._inside]  # NaN of a block of nothing
            rms[~np.isfinite(rms)] = np.nan
            smallest = np.fmin.reduceat(rms, self._starts_inside)
            largest = np.fmax.reduceat(rms, self._starts_inside)
            found[self._compared] = health.imbalances(smallest, largest)
        return found

    def _write_emas(self, norms: Sequence[float]) -> None:
        """Of the named blocks; a norm that is not finite, or not there, leaves its block out."""
        means, finite = np.zeros(len(norms)), np.isfinite(norms)
        for place, (block, norm) in enumerate(zip(self._named, norms, strict=True)):
            if finite[place]:
                past = self._emas.get(block, trends.EMA_START)
                self._emas[block] = trends.ema_update(past, norm, NORM_BETA)
                means[place] = self._emas[block][0]
        self._block_values.write("norm/ema", means, finite)

    def _write_trends(self, values: dict[str, float]) -> None:
        table = self._blocks.rows()
        steps, advantages = table[:, 0], table[:, 1]
        for number, block in enumerate(self._named):
            first = 2 + TREND_COLUMNS * number
            norms, updates, rates = table[:, first : first + TREND_COLUMNS].T
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
            "clips": {block: list(past) for block, past in self._clips.items()},
            "emas": {block: list(state) for block, state in self._emas.items()},
            "measured": self._measured,
            "trends_due": self._trends_due,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the past of before."""
        self._tensors.load_state_dict(state["tensors"])
        self._blocks.load_state_dict(state["blocks"])
        for block, saved in state["clips"].items():
            past = [row for (row,) in saved["rows"]] if isinstance(saved, dict) else saved  # of 0.1
            self._clips[block] = deque(past, maxlen=CLIP_WINDOW)
        self._emas = {
            block: (float(mean), float(weight)) for block, (mean, weight) in state["emas"].items()
        }
        self._measured = int(state["measured"])
        self._trends_due = int(state.get("trends_due", self._measured))
        self._refresh_bands()


@dataclass(frozen=True, slots=True)
class WatchedPair:
    """Two modules side by side, as parameter numbers, with the past of their intensities."""

    seed: NDArray[np.int64]
    host: NDArray[np.int64]
    past: Ring


class StepAnalysis:
    """Holds the past: sketches, norms, noise, pairs. Nothing here touches a device."""

    def __init__(
        self,
        settings: Settings,
        parameters: Mapping[str, nn.Parameter],
        blocks: Blocks,
        atoms: Sequence[Sequence[int]],
        groups: Mapping[int, tuple[int, int]],
        experts: Sequence[ExpertLayer] = (),
    ) -> None:
        self._settings, self._expert_layers = settings, experts
        self._standard = settings.standard
        self.experts = ExpertValues()
        self._group_of = [
            next((groups[i] for i in part if i in groups), (0, 0)) for part in blocks.named.values()
        ]
        shapes = [(*p.shape, 2) if p.is_complex() else tuple(p.shape) for p in parameters.values()]
        self.block_values = BlockValues(blocks, shapes)
        self._directions = Directions(self.block_values, atoms, settings.sketch_size)
        self._history = BlockHistory(self.block_values)
        self._named = {name: frozenset(members) for name, members in blocks.named.items()}
        self._noise: dict[str, noise.NoiseState] = {}
        self._first_layer = blocks.num_named
        self._last_clip: tuple[set[int], tuple[int, ...], list[str]] | None = None
        self._pairs = {name: _pair(name, pair, parameters) for name, pair in settings.pairs.items()}

    @silent
    def analyse(
        self, current: Round, fetched: Fetched, *, epoch: int | None, data_ranks: int
    ) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
        """The values of the step, and the vectors to keep with it."""
        values: dict[str, float] = {}
        vectors: dict[str, NDArray[Any]] = {}
        self.block_values.terms(values, fetched, current.terms)
        if RAW not in fetched.values:
            self.block_values.take(values)
            return values, vectors
        unscale(fetched, current)
        nonfinite = fetched.nonfinite
        reduced = self.block_values.write_statistics(fetched)
        self.block_values.extremes(fetched, nonfinite)
        seen = self.block_values.clipped(fetched, current)
        self._clips(values, fetched, current)
        for number in current.learning_rates:
            values[f"optimizer/{number}/lr"] = current.learning_rate((number, 0))
        if self._standard:
            self.block_values.ratios(fetched, reduced)
            there = self.block_values.reducer.any(fetched.present[RAW])
            self._concentration(values, reduced[RAW], there)
            self._directions.write(fetched, seen)
            vectors.update(self._directions.write_sketched(values, fetched))
            self._directions.write_noise(values)
            # PPO's later epochs measure noise given the buffer, which is another quantity.
            first_epoch = epoch in (None, 0)
            if "parts" in fetched.arrays:
                self._write_parts(values, fetched, data_ranks, first_epoch=first_epoch)
            elif LOCAL in reduced and first_epoch:
                self._write_rank_noise(values, fetched, reduced[LOCAL], current, data_ranks)
            rates = [current.learning_rate(group) for group in self._group_of]
            self._history.write(
                values, current.step, fetched, reduced, nonfinite, learning_rates=rates
            )
            self._write_pairs(values, fetched)
        if self._expert_layers:
            self.experts.write(values, fetched, current, self._expert_layers)
        for name, array in fetched.arrays.items():
            if name.startswith("histogram/"):
                vectors[name] = array.astype(np.int64)
        self.block_values.take(values)
        return values, vectors

    def note_advantages(self, step: int, std: float) -> None:
        """The scale of the advantages, which may come after the step was measured."""
        self._history.note_advantages(step, std)

    def pair_reading(self, name: str) -> pairs.PairReading:
        """How two modules stand to each other now, and what a low ratio means."""
        pair = self._pairs[name]
        rows = pair.past.rows()
        reached = bool(len(rows)) and not np.isnan(rows[-1, 0])
        return pairs.read_pair(rows[:, 0], rows[:, 1], seed_reached=reached)

    @property
    def pair_names(self) -> list[str]:
        """The pairs that are watched."""
        return list(self._pairs)

    @property
    def pair_members(self) -> dict[str, dict[str, list[int]]]:
        """Which parameters a pair is of."""
        return {
            n: {"seed": p.seed.tolist(), "host": p.host.tolist()} for n, p in self._pairs.items()
        }

    def _clips(self, values: dict[str, float], fetched: Fetched, current: Round) -> None:
        """What each clip call did, under `all` or else under the blocks it covered whole."""
        if not current.clips:
            return
        written: list[str] = []
        for number, clip in enumerate(current.clips):
            covered = self._covered(current.captured, clip.indices)
            wanted = ["all"] if "all" in covered else covered
            # A second call over the same block, or one over parts of several, stands under its own
            # number.
            for block in [name for name in wanted if name not in written] or [f"clip.{number}"]:
                self._write_clip(values, clip, block, fetched)
                written.append(block)
        self._history.note_clips(values, written)

    def _covered(self, captured: set[int], indices: tuple[int, ...]) -> list[str]:
        """The named blocks that a clip of these parameters clips whole; most are of the same."""
        if self._last_clip is None or self._last_clip[:2] != (captured, indices):
            clipped = set(indices)
            named = {name: members & captured for name, members in self._named.items()}
            covered = [name for name, members in named.items() if members and members <= clipped]
            self._last_clip = set(captured), indices, covered
        return self._last_clip[2]

    def _write_clip(
        self, values: dict[str, float], clip: SeenClip, block: str, fetched: Fetched
    ) -> None:
        threshold, missing = clip.call.threshold, math.nan
        if clip.call.kind == "norm":
            size = fetched.scalars[clip.name]
            ratio = min(1.0, threshold / size) if size > 0 else 1.0 if size == 0 else missing
        else:
            kinds = ("max_abs", "norm/raw", "norm/clipped")
            found, raw, seen = (self.block_values.written(kind).get(block) for kind in kinds)
            size = missing if found is None else found
            ratio = seen / raw if raw and seen is not None else missing
        active = missing if math.isnan(size) else float(size > threshold)
        values[f"grad/{block}/clip/threshold"] = threshold
        values[f"grad/{block}/clip/active"] = active
        values[f"grad/{block}/clip/ratio"] = ratio
        values[f"grad/{block}/clip/intensity"] = 1.0 - ratio

    def _concentration(self, values: dict[str, float], norms: Numbers, there: Mask) -> None:
        """1 when the layers share the gradient evenly, 0 when one has it all."""
        layers = norms[self._first_layer :][there[self._first_layer :]]
        share = health.concentration(np.square(layers))
        if share is not None:
            values["grad/all/concentration"] = share

    def _write_parts(
        self, values: dict[str, float], fetched: Fetched, data_ranks: int, *, first_epoch: bool
    ) -> None:
        """What the micro-batches of a step have in common; each is of all ranks together."""
        parts, total = fetched.arrays["parts"], fetched.arrays["parts_sum"]
        count = len(parts)
        values["meter/micro_batches"] = float(count)
        part_batch = data_ranks * self._micro_batch
        for number, block in enumerate(self._named):
            lengths = float(np.sqrt(parts[:, number]).sum())
            if not (np.isfinite(lengths) and lengths > 0):
                continue
            values[f"grad/{block}/alignment"] = float(np.sqrt(total[number])) / lengths
            if first_epoch:
                mean_square = float(total[number]) / count**2
                pair = noise.from_parts(parts[:, number].tolist(), mean_square, part_batch)
                self._update_noise(values, block, pair)
                values["meter/noise_batch"] = count * part_batch

    def _write_rank_noise(
        self,
        values: dict[str, float],
        fetched: Fetched,
        own_norms: Numbers,
        current: Round,
        ranks: int,
    ) -> None:
        """This rank's gradient beside the average: no message."""
        own = own_norms**2
        average = self.block_values.reducer.norms(fetched.values[RAW], fetched.present[LOCAL]) ** 2
        for number, (block, members) in enumerate(self._named.items()):
            made_of = {parts for i, parts in current.local_parts.items() if i in members}
            # Averaging cannot shrink a norm like this: the local one was read before a GradScaler
            # took its scale out.
            if len(made_of) != 1 or own[number] > AVERAGED * ranks * average[number]:
                continue
            (made,) = made_of
            if not made.averages:  # to the end of the step each rank goes its own way
                continue
            pair = noise.from_ranks(
                float(own[number]),
                float(average[number]),
                ranks=ranks,
                parts=made.parts,
                averaged=made.averaged,
                part_batch=self._micro_batch,
            )
            self._update_noise(values, block, pair)
            values["meter/noise_batch"] = ranks * made.parts * self._micro_batch

    @property
    def _micro_batch(self) -> float:
        """Samples of one backward on one rank; 1 where nobody told, and that is the unit then."""
        return float(self._settings.micro_batch_size or 1)

    def _update_noise(self, values: dict[str, float], block: str, pair: noise.SignalNoise) -> None:
        self._noise[block] = noise.update(self._noise.get(block, noise.NoiseState()), *pair)
        scale = noise.noise_scale(self._noise[block])
        if scale.value is not None:
            values[f"grad/{block}/noise_scale"] = scale.value
        elif scale.lower_bound is not None:
            values[f"grad/{block}/noise_scale_bound"] = scale.lower_bound

    def _write_pairs(self, values: dict[str, float], fetched: Fetched) -> None:
        raw, present = fetched.values[RAW], fetched.present[RAW]
        for name, pair in self._pairs.items():
            intensities = [
                _intensity(raw, present, part, self.block_values.reducer.sizes)
                for part in (pair.seed, pair.host)
            ]
            pair.past.add(np.array(intensities))
            reading = self.pair_reading(name)
            if reading.ratio is not None:
                values[f"grad/pair/{name}/ratio"] = reading.ratio

    def state_dict(self) -> dict[str, Any]:
        """The past, as plain numbers and lists."""
        return {
            "directions": self._directions.state_dict(),
            "vitals": self._history.state_dict(),
            "noise": {block: dataclasses.asdict(state) for block, state in self._noise.items()},
            "pairs": {name: pair.past.state_dict() for name, pair in self._pairs.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the past of before."""
        self._directions.load_state_dict(state["directions"])
        self._history.load_state_dict(state["vitals"])
        self._noise = {block: noise.NoiseState(**saved) for block, saved in state["noise"].items()}
        for name, saved in state["pairs"].items():
            if name in self._pairs:
                self._pairs[name].past.load_state_dict(saved)


def _pair(name: str, given: Sequence[Any], parameters: Mapping[str, nn.Parameter]) -> WatchedPair:
    seed = set(select(f"{name} (seed)", given[0], parameters))
    host = set(select(f"{name} (host)", given[1], parameters)) - seed
    return WatchedPair(
        np.array(sorted(seed)), np.array(sorted(host), dtype=np.int64), Ring(PAIR_HISTORY, 2)
    )


def _intensity(raw: Numbers, present: Mask, members: NDArray[np.int64], sizes: Numbers) -> float:
    """‖g‖/√n of some parameters; NaN when none of them has a gradient."""
    there = members[present[members]]
    if not there.size:
        return float("nan")
    return float(np.sqrt(np.sum(raw[there] ** 2) / sizes[members].sum()))
