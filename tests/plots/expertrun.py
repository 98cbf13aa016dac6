"""Runs with experts as the meter writes them, without a model: a merged-weight router, and the
awkward cases.

Expert e's gradient is its routing weight times one common gradient, so the divergence is routing
and nothing else, unless `genuine` plants a difference of its own in the experts after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from gradiometer.metrics import key
from gradiometer.records import Event, Row, Table, Vector
from gradiometer.store.logs import Log
from gradiometer.store.writer import Writer

TIERS = {"top": 0.4, "bottom": 0.1, "middle": 1.0}
SHARES = {"top": 0.05, "bottom": 0.05, "middle": 0.9}
ELEMENTS = 5000
SOURCE_NAMES = ("top_norm", "bottom_norm", "middle_norm", "norm", "divergence")

Values = dict[str, float]


def weights(count: int, step: int) -> np.ndarray:
    """Routing weights that drift apart, and add up to one."""
    tilt = np.linspace(1.0, -1.0, count) * min(step / 200, 1.0)
    raised = np.exp(tilt + 0.05 * np.sin(step / 30 + np.arange(count)))
    return np.asarray(raised / raised.sum())


def expert_values(
    count: int, step: int, *, layer: int = 0, genuine: float = 0.0
) -> dict[int, Values]:
    """One layer's numbers by expert, under the last part of their names."""
    weight = weights(count, step + 40 * layer)
    common = 0.5 * np.exp(-step / 300) * (1 + 0.15 * np.sin(step / 17 + layer))
    found: dict[int, Values] = {}
    for expert in range(count):
        own = 1.0 + (genuine * (1 + 0.3 * expert) if expert else 0.0)
        norms = {tier: float(weight[expert] * common * size * own) for tier, size in TIERS.items()}
        rms = {tier: norms[tier] / np.sqrt(SHARES[tier] * ELEMENTS) for tier in TIERS}
        values: Values = {f"{tier}_norm": norm for tier, norm in norms.items()}
        values |= {f"{tier}_rms": float(value) for tier, value in rms.items()}
        values["norm"] = float(np.sqrt(sum(norm**2 for norm in norms.values())))
        values["routing_weight"] = float(weight[expert])
        if expert:
            first = found[0]
            values["divergence"] = float(
                np.mean([abs(first[f"{t}_norm"] - norms[t]) for t in TIERS])
            )
            ratios = [np.log(rms[tier] / first[f"{tier}_rms"]) for tier in TIERS]
            values["log_ratio"] = float(np.mean(np.abs(ratios)))
            routed = [ratio - np.log(weight[expert] / weight[0]) for ratio in ratios]
            values["log_ratio_routed"] = float(np.mean(np.abs(routed)))
            values["cos_to_0"] = 1.0 if not genuine else float(np.exp(-genuine))
        found[expert] = values
    return found


def row(
    count: int, step: int, *, layers: int = 2, genuine: float = 0.0, terms: bool = True
) -> Values:
    """All series of a step: over layers, per layer, and of the routers."""
    each = [expert_values(count, step, layer=layer, genuine=genuine) for layer in range(layers)]
    values: Values = {}
    for expert in range(count):
        for name in each[0][expert]:
            over = [layer[expert][name] for layer in each]
            values[key(f"grad/expert/<expert>/{name}", expert=str(expert))] = float(np.mean(over))
            for number, value in enumerate(over):
                template = f"grad/<layer>/expert/<expert>/{name}"
                values[
                    key(template, layer=f"layer.model.layers.{number}.moe", expert=str(expert))
                ] = value
    for number in (*range(layers), None):
        values |= router(count, step, number, terms=terms)
    return values


def router(count: int, step: int, number: int | None, *, terms: bool) -> Values:
    name = "all" if number is None else f"model.layers.{number}.moe"
    load = weights(count, step + 40 * (number or 0))
    values = {
        key("router/<router>/load/<expert>", router=name, expert=str(e)): float(load[e])
        for e in range(count)
    }
    entropy = float(-(load * np.log(load)).sum())
    values[key("router/<router>/balance", router=name)] = float(np.exp(entropy)) / count
    values[key("router/<router>/dead_share", router=name)] = 0.0
    values[key("router/<router>/grad", router=name)] = 0.02 * (1 + (number or 0))
    if terms:
        values[key("router/<router>/grad_task", router=name)] = (
            0.02 * float(np.exp(-step / 60)) * (1 + (number or 0))
        )
        values[key("router/<router>/grad_aux", router=name)] = 0.004 * (1 + (number or 0))
    return values


def histogram(count: int, step: int, expert: int) -> np.ndarray:
    """Counts of 37 bins: log-normal sizes around a decade that falls with the step."""
    rng = np.random.default_rng(100 * step + expert)
    sizes = rng.normal(-4.0 - step / 200 - 0.1 * expert, 0.8, ELEMENTS)
    places = np.clip(np.floor((sizes + 12) * 2).astype(int) + 2, 1, 34)
    counts = np.bincount(places, minlength=37)
    counts[0] += 40 * expert
    return counts.astype(np.int64)


def write_run(
    folder: Path,
    *,
    experts: int = 3,
    layers: int = 2,
    steps: Iterable[int] = range(0, 400, 10),
    genuine: float = 0.0,
    deep: bool = True,
    terms: bool = True,
    change: Callable[[int, Values], Mapping[str, float]] = lambda step, values: values,
    missed: Iterable[int] = (),
) -> Path:
    """A run folder; `change` may drop or spoil the values of a step, `missed` are steps without any
    gradient."""
    steps = list(steps)
    with Writer(folder, facts={"seed": 7, "started": "2026-01-01T00:00:00+00:00"}) as writer:
        described = [
            {
                "layer": f"layer.model.layers.{n}.moe",
                "router": f"model.layers.{n}.moe",
                "kind": "list",
                "experts": experts,
                "parameters": ELEMENTS,
                "names": list(map(str, range(experts))),
            }
            for n in range(layers)
        ]
        writer.put(Table(step=steps[0], name="experts", content={"layers": described}))
        for step in missed:
            writer.put(Event(step=step, kind="experts-missing", message="no expert has a gradient"))
        for step in steps:
            values = change(step, row(experts, step, layers=layers, genuine=genuine, terms=terms))
            writer.put(Row(step=step, wall_time=float(step), values=dict(values)))
            if deep and step % 50 == 0:
                for expert in range(experts):
                    name = f"histogram/expert/{expert}"
                    writer.put(
                        Vector(step=step, name=name, values=histogram(experts, step, expert))
                    )
    return folder


def source_log(path: Path, *, experts: int = 3, steps: Iterable[int] = range(0, 400, 10)) -> Log:
    """What a Prismatic `dynamics.db` holds: norms of tiers, whole norms and divergence."""
    rows = []
    for step in steps:
        everything = row(experts, step, layers=1, terms=False)
        wanted = {
            key(f"grad/expert/<expert>/{n}", expert=str(e))
            for n in SOURCE_NAMES
            for e in range(experts)
        }
        rows.append((step, {name: value for name, value in everything.items() if name in wanted}))
    return Log(path, name="dynamics", run_id="0123abcd", rows=rows)
