"""Runs whose truth is known: series of experts as the meter would write them, with AR(1) noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.metrics import key
from gradiometer.records import Row
from gradiometer.store.logs import Log
from gradiometer.store.writer import Writer

TIERS = ("top", "bottom", "middle")
COUNTS = {"top": 50, "bottom": 50, "middle": 900}
LAYER = "layer.blocks.0.moe"
Rows = dict[int, dict[str, float]]


def red_noise(rng: np.random.Generator, length: int, phi: float, sd: float) -> np.ndarray:
    """AR(1) of standard deviation sd, begun in its stationary law."""
    shocks = sd * rng.standard_normal(length)
    x = np.empty(length)
    x[0] = shocks[0]
    for i in range(1, length):
        x[i] = phi * x[i - 1] + math.sqrt(1 - phi * phi) * shocks[i]
    return x


def planted(
    *,
    weights: tuple[float, ...] = (0.5, 0.3, 0.2),
    points: int = 200,
    bottom: float = 0.0,
    size: float | np.ndarray = 0.0,
    cosine: float | np.ndarray = 1.0,
    distance: float | np.ndarray = 0.3,
    noise: float = 0.0,
    phi: float = 0.0,
    seed: int = 0,
    token_routed: bool = False,
    layers: Mapping[str, tuple[float, ...]] | None = None,
) -> Rows:
    """Every 10th step of a run in which experts 1 and up differ from expert 0 by what is said,
    beyond routing.

    `bottom`: log factor of their bottom tier only; `size`: log factor of their whole gradient; both
    may move with time. `layers` gives each layer its own routing weights; without it there is one.
    """
    rng = np.random.default_rng(seed)
    steps = 10 * np.arange(points)
    rows: Rows = {int(step): {} for step in steps}
    common = np.exp(red_noise(rng, points, 0.9, 0.3))
    for layer, shares in (layers or {LAYER: weights}).items():
        base: dict[str, np.ndarray] = {}
        for e, share in enumerate(shares):
            shift = (
                np.zeros(points)
                if e == 0
                else np.broadcast_to(np.asarray(size, dtype=float), (points,))
            )
            own = shift + (red_noise(rng, points, phi, noise) if e else 0.0)
            found: dict[str, np.ndarray] = {}
            for tier in TIERS:
                wobble = red_noise(rng, points, phi, noise) if e else 0.0
                extra = bottom if e and tier == "bottom" else 0.0
                found[f"{tier}_rms"] = share * common * np.exp(own + extra + wobble)
                found[f"{tier}_norm"] = found[f"{tier}_rms"] * math.sqrt(COUNTS[tier])
            whole = sum(COUNTS[tier] * found[f"{tier}_rms"] ** 2 for tier in ("top", "middle"))
            found["norm"] = np.sqrt(
                whole + COUNTS["bottom"] * (found["bottom_rms"] * math.exp(-bottom * (e > 0))) ** 2
            )
            found["routing_weight"] = np.full(points, share)
            found["norm_per_weight"] = found["norm"] / share
            found["cos_mean"] = np.broadcast_to(np.asarray(cosine, dtype=float), (points,)) - abs(
                red_noise(rng, points, phi, 0.02 * noise)
            )
            if token_routed:
                found["norm_per_token"] = found["norm"] / (1000 * share)
            if e == 0:
                base = found
            else:
                found["cos_to_0"] = found["cos_mean"]
                found["divergence"] = np.mean(
                    [abs(found[f"{tier}_norm"] - base[f"{tier}_norm"]) for tier in TIERS], axis=0
                )
                per = [
                    np.log(found[f"{t}_rms"] / share / base[f"{t}_rms"] * shares[0]) for t in TIERS
                ]
                found["log_ratio_routed"] = np.mean(np.abs(per), axis=0)
                found["weight_distance"] = np.broadcast_to(
                    np.asarray(distance, dtype=float), (points,)
                )
            _put(rows, layer, str(e), found)
    if layers is None or len(layers) == 1:
        _pool(rows)
    return rows


def _put(rows: Rows, layer: str, expert: str, found: dict[str, np.ndarray]) -> None:
    for quantity, values in found.items():
        name = key(f"grad/<layer>/expert/<expert>/{quantity}", layer=layer, expert=expert)
        for row, value in zip(rows.values(), values, strict=True):
            row[name] = float(value)


def _pool(rows: Rows) -> None:
    """Of one layer: what is over all layers is the same."""
    for row in rows.values():
        row.update({name.replace(f"/{LAYER}/", "/"): value for name, value in row.items()})


def routed(rows: Rows, router: str, **series: float | dict[str, float]) -> Rows:
    """The same with constant series of a router: balance=0.9, load={"0": 0.5, ...}."""
    for row in rows.values():
        for quantity, value in series.items():
            if isinstance(value, dict):
                for e, share in value.items():
                    row[key("router/<router>/load/<expert>", router=router, expert=e)] = share
            else:
                row[key(f"router/<router>/{quantity}", router=router)] = value
    return rows


def only(rows: Rows, *quantities: str) -> Rows:
    """Only some quantities, over all layers: what an old log has."""
    return {
        step: {
            n: v
            for n, v in row.items()
            if n.startswith("grad/expert/") and n.rpartition("/")[2] in quantities
        }
        for step, row in rows.items()
    }


def without(rows: Rows, *quantities: str) -> Rows:
    return {
        step: {n: v for n, v in row.items() if n.rpartition("/")[2] not in quantities}
        for step, row in rows.items()
    }


def write(folder: Path, rows: Rows, facts: Mapping[str, Any] | None = None) -> Path:
    """A real run on disk."""
    with Writer(folder, facts=dict(facts or {})) as writer:
        for step, values in rows.items():
            writer.put(Row(step=step, wall_time=float(step), values=values))
    return folder


def log(rows: Rows, facts: Mapping[str, Any] | None = None) -> Log:
    """The same in memory, where many are needed."""
    return Log("planted", name="planted", run_id="planted", rows=rows.items(), facts=facts)
