"""What is said of experts: tiers, divergence and its sound companions, routing, routers.

In a merged-weight router ∂L/∂W_e = w̄_e ∂L/∂W: Prismatic's divergence then measures routing
weights. So beside it stand norms divided by w̄_e, |log ratio| of tier RMS, and cosines, which no
scale can move.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradiometer import metrics
from gradiometer.capture.expertreading import ExpertReader
from gradiometer.capture.experts import ExpertLayer
from gradiometer.capture.rounds import Recorder, Round, SeenExperts, SeenTerms
from gradiometer.capture.statistics import RAW, Fetched, Numbers, Reading
from gradiometer.maths import gram
from gradiometer.maths.tiers import TIERS
from gradiometer.records import Table

__all__ = ["ExpertNotices", "ExpertValues", "dynamics", "write_router_gradients"]

Values = dict[str, float]

AUXILIARY = re.compile("aux|balanc|z_?loss|router", re.IGNORECASE)
SOURCE_SUMS, SOUND_SUMS, COUNTS = slice(0, 4), slice(4, 7), slice(7, 10)
NORMS = (*(f"{tier}_norm" for tier in TIERS), "norm")
MEANS = (
    *NORMS,
    *("divergence", "log_ratio", "log_ratio_routed", "cos_to_0", "cos_mean"),
    *("routing_weight", "norm_per_weight", "norm_per_token"),
)
"""Over layers the plain mean, as Prismatic takes it."""
RELATIVE = ("divergence", "log_ratio", "log_ratio_routed", "cos_to_0")
"""To expert 0."""
UNSPOILED = ("routing_weight", "weight_distance")
"""What a NaN in a gradient does not touch."""


class ExpertValues:
    """Writes the values of expert layers; remembers how far apart their weights were."""

    def __init__(self) -> None:
        self._apart: dict[str, Numbers] = {}

    def write(
        self, values: Values, fetched: Fetched, current: Round, layers: Sequence[ExpertLayer]
    ) -> None:
        """Experts and routing where this round read them; gradients of the routers."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if current.experts:
                scales = {
                    i: fetched.scalars[name] for indices, name in current.scaled for i in indices
                }
                self._write_experts(values, fetched, current.experts, scales)
            write_router_gradients(
                values, fetched, layers, current.terms, whole=bool(current.experts)
            )

    def write_now(self, values: Values, fetched: Fetched, seen: Sequence[SeenExperts]) -> None:
        """The experts and their routing, read by themselves and not with a step."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._write_experts(values, fetched, seen, {})

    def _write_experts(
        self,
        values: Values,
        fetched: Fetched,
        seen: Sequence[SeenExperts],
        scales: Mapping[int, float],
    ) -> None:
        """Each layer, all of them together, and who was asked."""
        layers: list[dict[str, Numbers]] = []
        pooled, spoiled = _Padded(6), _Padded(1)
        for each in seen:
            if not any(each.present):
                continue
            sums, inner = self._taken(each, fetched, scales.get(min(each.layer.parameters), 1.0))
            found = {**_of_tiers(sums), **_of_directions(inner)}
            found |= _of_routing(found, _routing(each, fetched), each.rows)
            self._note_apart(each, fetched, found)
            bad = np.array(each.present) & np.isnan(sums).any(1)
            _write(values, f"layer.{each.layer.path}", found, bad)
            layers.append(found)
            pooled.add(
                np.where(np.isnan(sums).any(1, keepdims=True), 0.0, sums)[:, SOUND_SUMS.start :]
            )
            spoiled.add(bad[:, None].astype(np.float64))
        if layers:
            found, bad = self._all(layers, pooled.total, seen), spoiled.total[:, 0] > 0
            _write(values, "", _without_spoiled(found, bad), bad)
        _write_routers(values, fetched, seen)

    def _taken(self, each: SeenExperts, fetched: Fetched, scale: float) -> tuple[Numbers, Numbers]:
        """Sums and products without the loss scale; NaN for experts without a gradient."""
        sums = fetched.arrays[f"{each.name}/sums"].copy()
        inner = fetched.arrays[f"{each.name}/gram"] / scale**2
        sums[:, : COUNTS.start] /= scale**2
        absent = ~np.array(each.present)
        sums[absent] = np.nan
        inner[absent, :] = inner[:, absent] = np.nan
        return sums, inner

    def _note_apart(self, each: SeenExperts, fetched: Fetched, found: dict[str, Numbers]) -> None:
        apart = fetched.arrays.get(f"{each.name}/apart")
        if apart is not None:
            self._apart[each.layer.path] = apart
            found["weight_distance"] = _without_first(_root(_over(apart[:, 0], apart[:, 1])))

    def _all(
        self, layers: Sequence[dict[str, Numbers]], pooled: Numbers, seen: Sequence[SeenExperts]
    ) -> dict[str, Numbers]:
        """Over layers: means, and RMS and distances of what is joined.

        A cosine of joined vectors would bring routing back in: each layer has weights of its own,
        and scales its part.
        """
        found = {name: _mean([layer[name] for layer in layers if name in layer]) for name in MEANS}
        rms = _root(_over(pooled[:, :3], pooled[:, 3:]))
        found |= {f"{tier}_rms": rms[:, place] for place, tier in enumerate(TIERS)}
        if any("weight_distance" in layer for layer in layers):
            apart = _Padded(2)
            for path in (each.layer.path for each in seen if each.layer.path in self._apart):
                apart.add(self._apart[path])
            found["weight_distance"] = _without_first(
                _root(_over(apart.total[:, 0], apart.total[:, 1]))
            )
        return found


def _without_spoiled(found: Mapping[str, Numbers], bad: NDArray[np.bool_]) -> dict[str, Numbers]:
    """Without experts that hold a NaN in one layer: their other layers are not the whole.

    Nothing can be compared with an expert 0 that is spoiled.
    """
    kept = {name: column for name, column in found.items() if not (bad[0] and name in RELATIVE)}
    return {
        name: column if name in UNSPOILED else np.where(bad[: len(column)], np.nan, column)
        for name, column in kept.items()
    }


class _Padded:
    """A sum over layers that may have different numbers of experts, [N, width]."""

    def __init__(self, width: int) -> None:
        self.total: Numbers = np.zeros((0, width))

    def add(self, part: Numbers) -> None:
        grown = np.zeros((max(len(self.total), len(part)), self.total.shape[1]))
        for held in (self.total, part):
            grown[: len(held)] += held
        self.total = grown


def _of_tiers(sums: Numbers) -> dict[str, Numbers]:
    """Norms, RMS, divergence and log ratio of each expert, [N] each; NaN is missing."""
    norms = _root(sums[:, SOURCE_SUMS])
    rms = _root(_over(sums[:, SOUND_SUMS], sums[:, COUNTS]))
    found = {f"{tier}_norm": norms[:, place] for place, tier in enumerate(TIERS)} | {
        "norm": norms[:, 3]
    }
    found |= {f"{tier}_rms": rms[:, place] for place, tier in enumerate(TIERS)}
    found["divergence"] = _without_first(np.abs(norms[:, :3] - norms[0, :3]).mean(1))
    found["log_ratio"] = _log_ratio(rms)
    return found


def _log_ratio(rms: Numbers) -> Numbers:
    """Mean over the tiers that both have of |log(r_e/r_0)|, [N]."""
    logs = np.log(np.where(rms > 0, rms, np.nan))
    return _without_first(_mean(list(np.abs(logs - logs[0]).T)))


def _of_directions(inner: Numbers) -> dict[str, Numbers]:
    cosines = gram.cosines(inner)
    others = np.where(np.eye(len(cosines), dtype=np.bool_), np.nan, cosines)
    return {"cos_to_0": _without_first(cosines[0]), "cos_mean": _mean(list(others))}


def _routing(each: SeenExperts, fetched: Fetched) -> dict[str, Numbers]:
    return {
        kind: array
        for kind in ("weights", "tokens")
        if (array := fetched.arrays.get(f"{each.name}/{kind}")) is not None
    }


def _of_routing(
    found: Mapping[str, Numbers], asked: Mapping[str, Numbers], rows: int
) -> dict[str, Numbers]:
    """Routing weight, norms per weight and token, and the log ratio without routing."""
    routed: dict[str, Numbers] = {}
    if "weights" in asked and rows:
        weight = asked["weights"] / rows
        per_weight = np.stack([_over(found[f"{tier}_rms"], weight) for tier in TIERS], 1)
        routed["routing_weight"] = weight
        routed["norm_per_weight"] = _over(found["norm"], weight)
        routed["log_ratio_routed"] = _log_ratio(per_weight)
    if "tokens" in asked:
        routed["norm_per_token"] = _over(found["norm"], asked["tokens"])
    return routed


def _write_routers(values: Values, fetched: Fetched, seen: Sequence[SeenExperts]) -> None:
    """Load, utilisation, balance, dead share and largest excess of each router, and their means."""
    routers: list[tuple[str, Values]] = []
    for each in seen:
        asked = _routing(each, fetched)
        amount = asked.get("tokens", asked.get("weights"))
        if amount is not None and amount.sum() > 0:
            routers.append((each.layer.path, _of_load(amount / amount.sum())))
    together = {
        name: [found[name] for _, found in routers if name in found]
        for _, first in routers
        for name in first
    }
    for path, found in [
        *routers,
        ("all", {name: float(np.mean(parts)) for name, parts in together.items()}),
    ]:
        values.update((f"router/{path}/{name}", x) for name, x in found.items())


def _of_load(load: Numbers) -> Values:
    num, busy = len(load), load[load > 0]
    return {
        **{f"load/{e}": float(share) for e, share in enumerate(load)},
        "utilisation": float(np.minimum(1.0, num * load).mean()),
        "balance": float(np.exp(-(busy * np.log(busy)).sum()) / num),
        "dead_share": float((load == 0).mean()),
        "max_violation": float(num * load.max() - 1.0),
    }


def write_router_gradients(
    values: Values,
    fetched: Fetched,
    layers: Sequence[ExpertLayer],
    terms: SeenTerms | None,
    *,
    whole: bool,
) -> None:
    """What trains the routers: all (where `whole`), and by task and auxiliary terms."""
    squares: dict[str, list[float]] = {}

    def note(layer: ExpertLayer, name: str, square: float) -> None:
        values[f"router/{layer.path}/{name}"] = float(
            np.sqrt(max(square, 0.0)) if square == square else np.nan
        )
        squares.setdefault(name, []).append(square)

    for layer in layers:
        own = list(layer.router_parameters)
        if whole and own and fetched.present[RAW][own].any():
            note(
                layer,
                "grad",
                float(np.square(fetched.values[RAW][own][fetched.present[RAW][own]]).sum()),
            )
        if terms is not None and terms.terms and own:
            for name, members in _kinds(terms.terms).items():
                if any(set(own) & terms.reached[f"term/{terms.terms[a]}"] for a in members):
                    inner = fetched.arrays["gram/term"][np.ix_(own, members, members)]
                    note(layer, name, float(inner.sum()))
    values.update(
        (f"router/all/{name}", float(np.sqrt(max(sum(parts), 0.0))))
        for name, parts in squares.items()
    )


def _kinds(names: Sequence[str]) -> dict[str, list[int]]:
    auxiliary = [a for a, name in enumerate(names) if AUXILIARY.search(name)]
    task = [a for a in range(len(names)) if a not in auxiliary]
    return {
        name: members for name, members in (("grad_task", task), ("grad_aux", auxiliary)) if members
    }


def dynamics(values: Mapping[str, float], num: int) -> dict[str, dict[str, object]]:
    """Over layers, under Prismatic's names: `expert_gradients` and `divergence_scores`."""
    gradients: dict[str, object] = {}
    scores: dict[str, object] = {}
    for e in range(num):
        whole = "perturbed_norm" if e else "clean_norm"
        keys = {whole if name == "norm" else name: _keys(name, "", num)[e] for name in NORMS}
        row = {name: values[key] for name, key in keys.items() if key in values}
        if row:
            gradients[f"expert_{e}"] = row
        divergence = values.get(_keys("divergence", "", num)[e])
        if divergence is not None:
            scores[f"expert_{e}_divergence"] = divergence
    return {"expert_gradients": gradients, "divergence_scores": scores}


def _write(
    values: Values, layer: str, found: Mapping[str, Numbers], spoiled: NDArray[np.bool_]
) -> None:
    """What is there; an expert whose gradient holds a NaN has norms, and they are NaN."""
    for name, column in found.items():
        keys = _keys(name, layer, len(column))
        kept = ~np.isnan(column) | (spoiled[: len(column)] if name in NORMS else False)
        values.update(
            (key, float(x)) for key, x, keep in zip(keys, column, kept, strict=True) if keep
        )


@cache
def _keys(name: str, layer: str, num: int) -> tuple[str, ...]:
    template = f"grad/<layer>/expert/<expert>/{name}" if layer else f"grad/expert/<expert>/{name}"
    return tuple(metrics.key(template, layer=layer, expert=str(e)) for e in range(num))


def _without_first(column: Numbers) -> Numbers:
    return np.concatenate([[np.nan], column[1:]])


def _root(x: Numbers) -> Numbers:
    root: Numbers = np.sqrt(x)
    return root


def _over(a: Numbers, b: Numbers) -> Numbers:
    """a/b where b is above zero; missing elsewhere."""
    ratio: Numbers = np.divide(a, b, out=np.full(np.broadcast(a, b).shape, np.nan), where=b > 0)
    return ratio


def _mean(parts: Sequence[Numbers]) -> Numbers:
    """Mean of columns that may have different lengths, over those that are there."""
    if len({len(part) for part in parts}) == 1:
        joined = np.stack(parts)
        there = ~np.isnan(joined)
        return _over(np.where(there, joined, 0.0).sum(0), there.sum(0))
    size = max((len(part) for part in parts), default=0)
    total, count = np.zeros(size), np.zeros(size)
    for part in parts:
        there = ~np.isnan(part)
        total[: len(part)][there] += part[there]
        count[: len(part)][there] += 1
    return _over(total, count)


class ExpertNotices:
    """What is said of experts beside their numbers, each thing once."""

    def __init__(self, recorder: Recorder, put: Callable[[Table], None]) -> None:
        self._recorder, self._put = recorder, put
        self._described: dict[str, Any] | None = None
        self._said_missing = False

    def note(self, reader: ExpertReader, step: int) -> None:
        """The layers of experts, when they are first seen and when they change."""
        described = reader.describe()
        if described == self._described:
            return
        self._described = described
        self._put(Table(step=step, name="experts", content=described))
        layers = described["layers"]
        counts = ", ".join(f"{layer['experts']} in {layer['layer']}" for layer in layers[:3])
        more = f" and {len(layers) - 3} more layers" if len(layers) > 3 else ""
        self._recorder.event("experts", f"found experts: {counts}{more}", step)

    def look(
        self, reader: ExpertReader, writer: ExpertValues, current: Round | None, step: int
    ) -> dict[str, float] | None:
        """The values now, by a sync of its own; none without gradients, None without experts."""
        if not reader.layers:
            return None
        reader.asked_for = True
        reading = Reading(0)
        seen = reader.read_now(reading, None if current is None else current.number)
        values: dict[str, float] = {}
        fetched = reading.fetch()
        writer.write_now(values, fetched, seen)
        reader.learn(fetched, seen)
        self.note(reader, step)
        norms = (
            metrics.key("grad/expert/<expert>/norm", expert=str(e)) for e in range(reader.largest)
        )
        # A zero_grad that fills with zeros leaves gradients that nobody made.
        if any(values.get(name) for name in norms):
            return values
        if not self._said_missing:
            self._said_missing = True
            message = (
                "no expert has a gradient: look after backward() and before optimizer.step() and"
                " zero_grad()"
                if not reader.by_vote
                else "sharded experts are read with the steps, on all ranks together, and not by"
                " hand: see experts_every"
            )
            self._recorder.event("experts-missing", message, step)
            self._recorder.warn(f"step {step}: {message}")
        return {}
