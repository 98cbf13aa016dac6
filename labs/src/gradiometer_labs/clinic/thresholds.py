"""What a tool that only knows public thresholds would say of a scalar log: the baseline beside
ours.

Each line is a number that some public tool or text uses (docs/failures.md), applied as it stands to
the last tenth of the log unless its source says otherwise, in the order of the catalogue. Nothing
here is ours, and nothing is tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from gradiometer.doctor.rundata import RunData, Series
from gradiometer.doctor.signs import level, robust_sigma

__all__ = ["public_findings"]

Says = Callable[[RunData], bool]


def _end(run: RunData, name: str, **parts: str) -> float:
    """The median of the last tenth; NaN, which satisfies no comparison, where nothing was
    logged."""
    series = run.get(name, **parts)
    return math.nan if series is None or not len(series.finite) else level(series.finite.last(0.1))


def _start(run: RunData, name: str) -> float:
    series = run.get(name)
    return math.nan if series is None or not len(series.finite) else level(series.finite.first(0.1))


def _most(run: RunData, name: str, **parts: str) -> float:
    series = run.get(name, **parts)
    return (
        math.nan
        if series is None or not len(series.finite)
        else float(np.abs(series.finite.values).max())
    )


def _norm(run: RunData) -> Series | None:
    found = run.get("grad/<block>/norm/raw", block="all")
    return None if found is None or not len(found.finite) else found


def _nonfinite(run: RunData) -> bool:
    named = (run.get(name) for name in ("policy_loss", "value_loss", "loss", "reward", "entropy"))
    norm = run.get("grad/<block>/norm/raw", block="all")
    return any(x is not None and not np.isfinite(x.values).all() for x in (*named, norm))


def _norm_against_start(run: RunData) -> float:
    norm = _norm(run)
    start = math.nan if norm is None else level(norm.finite.first(0.1))
    return level(norm.finite.last(0.1)) / start if norm is not None and start > 0 else math.nan


def _spikes(run: RunData) -> bool:
    norm = _norm(run)
    if norm is None:
        return False
    values, middle = norm.finite.values, level(norm)
    return int(((values - middle > 8 * robust_sigma(values)) & (values >= 3 * middle)).sum()) >= 3


def _flat(run: RunData) -> bool:
    return not _end(run, "reward") > 1.05 * _start(run, "reward")


def _dominated(run: RunData) -> bool:
    every = [
        each.finite
        for each in run.every("rewards/<function>/<statistic>")
        if each.parts["statistic"] == "std"
    ]
    spreads = [level(each.last(0.1)) ** 2 for each in every if len(each)]
    return len(spreads) > 1 and max(spreads) >= 0.9 * sum(spreads) > 0


def _longer(run: RunData) -> bool:
    return _end(run, "episode_length") >= 1.5 * _start(run, "episode_length") and not (
        _end(run, "val/reward") >= 1.25 * _start(run, "val/reward")
    )


PUBLIC: tuple[tuple[str, Says], ...] = (
    ("nonfinite-gradient", _nonfinite),
    (
        "groups-too-easy",
        lambda c: _end(c, "zero_variance_groups") >= 0.5 and _end(c, "success_rate") >= 0.85,
    ),
    (
        "groups-too-hard",
        lambda c: _end(c, "zero_variance_groups") >= 0.5 and _end(c, "success_rate") <= 0.15,
    ),
    ("reward-hacking", lambda c: _end(c, "reward") - _end(c, "val/reward") >= 0.3),
    ("length-exploit", _longer),
    ("truncation", lambda c: _end(c, "truncated_fraction") >= 0.3),
    ("reward-term-dominates", _dominated),
    ("reward-scale", lambda c: _most(c, "returns/<statistic>", statistic="max_abs") > 10),
    (
        "advantage-scale",
        lambda c: (
            abs(_end(c, "policy_loss")) > 1
            or _end(c, "advantages/<statistic>", statistic="std") > 5
        ),
    ),
    ("step-too-large", lambda c: _end(c, "approx_kl") > 0.02),
    ("policy-frozen", lambda c: _most(c, "approx_kl") < 1e-4),
    ("entropy-collapse", lambda c: _end(c, "entropy") < 0.1 * _start(c, "entropy") and _flat(c)),
    (
        "entropy-never-falls",
        lambda c: _end(c, "entropy") > 0.95 * _start(c, "entropy") and _flat(c),
    ),
    ("kl-runaway", lambda c: _end(c, "kl_ref") > 0.3),
    ("kl-strangled", lambda c: _most(c, "kl_ref") < 1e-4),
    ("ppo-clip-saturated", lambda c: _end(c, "clip_fraction") > 0.3),
    ("stale-data", lambda c: _end(c, "ess") < 0.3),
    ("gradient-spikes", _spikes),
    ("vanishing-gradient", lambda c: _norm_against_start(c) < 0.05),
    ("exploding-gradient", lambda c: _norm_against_start(c) > 10),
    ("critic-explains-nothing", lambda c: _end(c, "explained_variance") < 0.1),
    ("dormant-units", lambda c: _end(c, "dormant_fraction") > 0.25),
    (
        "exploration-schedule",
        lambda c: _start(c, "entropy") < 0.3 or _most(c, "exploration_rate") == 0,
    ),
    ("action-collapse", lambda c: _end(c, "action_share") > 0.8),
    ("observation-scale", lambda c: _most(c, "observation/<statistic>", statistic="max_abs") > 10),
    ("reward-plateau", _flat),
)


def public_findings(run: RunData) -> list[str]:
    """The ids whose threshold is crossed, in the order above."""
    with np.errstate(all="ignore"):
        return [id for id, says in PUBLIC if says(run)]
