"""The analyst: from the numbers of a measured step, and what it remembers of earlier ones, to named values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gradiometer.capture.blocks import Blocks, select
from gradiometer.capture.directions import Directions
from gradiometer.capture.experts import ExpertLayer
from gradiometer.capture.expertsheet import ExpertSheet
from gradiometer.capture.history import Ring
from gradiometer.capture.reading import Fetched
from gradiometer.capture.rounds import Round
from gradiometer.capture.settings import Settings
from gradiometer.capture.sheet import Sheet
from gradiometer.capture.vitals import Vitals
from gradiometer.maths import health, noise, pairs

__all__ = ["Analyst"]

PAIR_HISTORY = 200
SCALED = 1e3


@dataclass(frozen=True, slots=True)
class Pair:
    """Two modules side by side, as parameter numbers, with the past of their intensities."""

    seed: NDArray[np.int64]
    host: NDArray[np.int64]
    past: Ring


class Analyst:
    """Holds the past: sketches, norms, noise, pairs. Nothing here touches a device."""

    def __init__(
        self,
        settings: Settings,
        parameters: Mapping[str, nn.Parameter],
        blocks: Blocks,
        atoms: Sequence[Sequence[int]],
        owner: Mapping[int, int],
        experts: Sequence[ExpertLayer] = (),
    ) -> None:
        self._settings, self._expert_layers = settings, experts
        self.experts = ExpertSheet()
        self._optimizer_of = [
            next((owner[i] for i in part if i in owner), 0) for part in blocks.members[: blocks.num_named]
        ]
        shapes = [(*p.shape, 2) if p.is_complex() else tuple(p.shape) for p in parameters.values()]
        self.sheet = Sheet(blocks, shapes)
        self._directions = Directions(self.sheet, atoms, settings.sketch_size)
        self._vitals = Vitals(self.sheet)
        self._named_members = {
            name: frozenset(members)
            for name, members in zip(blocks.names, blocks.members[: blocks.num_named], strict=False)
        }
        self._noise: dict[str, noise.NoiseState] = {}
        self._layer_norms = [f"grad/{layer}/norm/raw" for layer in blocks.names[blocks.num_named :]]
        self._pairs = {name: _pair(name, pair, parameters) for name, pair in settings.pairs.items()}

    def analyse(
        self, current: Round, fetched: Fetched, *, epoch: int | None, replicas: int
    ) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
        """The values of the step, and the vectors to keep with it."""
        values: dict[str, float] = {}
        vectors: dict[str, NDArray[Any]] = {}
        self.sheet.terms(values, fetched, current.terms)
        if "raw" not in fetched.values:
            return values, vectors
        self.sheet.unscale(fetched, current)
        seen = self.sheet.light(values, fetched, current)
        self._clips(values, fetched, current)
        for number, rate in current.learning_rates.items():
            values[f"optimizer/{number}/lr"] = rate
        if self._settings.standard:
            self.sheet.update(values, fetched)
            self.sheet.spread(values, fetched)
            self._concentration(values)
            self._directions.write(values, fetched, seen)
            vectors.update(self._directions.write_sketched(values, fetched))
            self._write_noise(values, fetched, epoch, replicas)
            rates = [current.learning_rates.get(number, float("nan")) for number in self._optimizer_of]
            self._vitals.write(values, current.step, fetched, learning_rates=rates)
            self._write_pairs(values, fetched)
        if self._expert_layers:
            self.experts.write(values, fetched, current, self._expert_layers)
        for name, array in fetched.arrays.items():
            if name.startswith("histogram/"):
                vectors[name] = array.astype(np.int64)
        return values, vectors

    def note_advantages(self, step: int, std: float) -> None:
        """The scale of the advantages, which may come after the step was measured."""
        self._vitals.note_advantages(step, std)

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
        return {n: {"seed": p.seed.tolist(), "host": p.host.tolist()} for n, p in self._pairs.items()}

    def _clips(self, values: dict[str, float], fetched: Fetched, current: Round) -> None:
        if not current.clips:
            return
        named = {name: members & current.captured for name, members in self._named_members.items()}
        self._vitals.note_clips(values, current.clip_values(fetched, values, named))

    def _concentration(self, values: dict[str, float]) -> None:
        """Over the layers of the model: 1 when they share the gradient evenly, 0 when one has it all."""
        norms = [values[name] for name in self._layer_norms if name in values]
        share = health.concentration(np.square(norms))
        if share is not None:
            values["grad/all/concentration"] = share

    def _write_noise(self, values: dict[str, float], fetched: Fetched, epoch: int | None, replicas: int) -> None:
        if "parts" not in fetched.arrays:
            if "local" in fetched.values and epoch in (None, 0):
                self._write_rank_noise(values, fetched, replicas)
            return
        parts, total = fetched.arrays["parts"], fetched.arrays["parts_sum"]
        count = len(parts)
        values["meter/micro_batches"] = float(count)
        for number, block in enumerate(self.sheet.blocks.names[: self.sheet.blocks.num_named]):
            lengths = float(np.sqrt(parts[:, number]).sum())
            if not (np.isfinite(lengths) and lengths > 0):
                continue
            values[f"grad/{block}/alignment"] = float(np.sqrt(total[number])) / lengths
            # PPO's later epochs measure noise given the buffer, which is another quantity.
            if epoch in (None, 0):
                mean_square, batch = float(total[number]) / count**2, float(self._settings.micro_batch_size or 1)
                self._update_noise(values, block, noise.from_parts(parts[:, number].tolist(), mean_square, batch))

    def _write_rank_noise(self, values: dict[str, float], fetched: Fetched, replicas: int) -> None:
        """This rank's own gradient is the small batch, the average over ranks the large one: nothing is communicated."""
        small = self.sheet.norms(fetched.values["local"], fetched.present["local"]) ** 2
        large = self.sheet.norms(fetched.values["raw"], fetched.present["local"]) ** 2
        batch = float(self._settings.micro_batch_size or 1)
        for number, block in enumerate(self.sheet.blocks.names[: self.sheet.blocks.num_named]):
            # Averaging cannot shrink a norm like this: the local one was read before a GradScaler took its scale out.
            if small[number] > SCALED * replicas * large[number]:
                continue
            pair = noise.two_point(float(small[number]), float(large[number]), batch, replicas * batch)
            self._update_noise(values, block, pair)

    def _update_noise(self, values: dict[str, float], block: str, pair: noise.SignalNoise) -> None:
        signal, spread = pair
        self._noise[block] = noise.update(self._noise.get(block, noise.NoiseState()), signal, spread)
        scale = noise.noise_scale(self._noise[block])
        if scale.value is not None:
            values[f"grad/{block}/noise_scale"] = scale.value
        elif scale.lower_bound is not None:
            values[f"grad/{block}/noise_scale_bound"] = scale.lower_bound

    def _write_pairs(self, values: dict[str, float], fetched: Fetched) -> None:
        raw, present = fetched.values["raw"], fetched.present["raw"]
        for name, pair in self._pairs.items():
            intensities = [_intensity(raw, present, part, self.sheet.sizes) for part in (pair.seed, pair.host)]
            pair.past.add(np.array(intensities))
            reading = self.pair_reading(name)
            if reading.ratio is not None:
                values[f"grad/pair/{name}/ratio"] = reading.ratio

    def state_dict(self) -> dict[str, Any]:
        """The past, as plain numbers and lists."""
        return {
            "directions": self._directions.state_dict(),
            "vitals": self._vitals.state_dict(),
            "noise": {block: dataclasses.asdict(state) for block, state in self._noise.items()},
            "pairs": {name: pair.past.state_dict() for name, pair in self._pairs.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the past of before."""
        self._directions.load_state_dict(state["directions"])
        self._vitals.load_state_dict(state["vitals"])
        self._noise = {block: noise.NoiseState(**saved) for block, saved in state["noise"].items()}
        for name, saved in state["pairs"].items():
            if name in self._pairs:
                self._pairs[name].past.load_state_dict(saved)


def _pair(name: str, given: Sequence[Any], parameters: Mapping[str, nn.Parameter]) -> Pair:
    seed = set(select(f"{name} (seed)", given[0], parameters))
    host = set(select(f"{name} (host)", given[1], parameters)) - seed
    return Pair(np.array(sorted(seed)), np.array(sorted(host), dtype=np.int64), Ring(PAIR_HISTORY, 2))


def _intensity(
    raw: NDArray[np.float64], present: NDArray[np.bool_], members: NDArray[np.int64], sizes: NDArray[np.float64]
) -> float:
    """‖g‖/√n of some parameters; NaN when none of them has a gradient."""
    there = members[present[members]]
    return float(np.sqrt(np.sum(raw[there] ** 2) / sizes[members].sum())) if there.size else float("nan")
