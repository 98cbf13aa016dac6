"""The target network of a value-based agent: one that is no copy, or one that is never updated."""

from __future__ import annotations

import numpy as np

from gradiometer.doctor.chart import Chart
from gradiometer.doctor.lacking import too_short
from gradiometer.doctor.progress import key_of, progress_of, shown
from gradiometer.doctor.rule import Verdict, rule
from gradiometer.doctor.signs import level
from gradiometer.doctor.values import TARGET_KEYS, never_updated
from gradiometer.records import Finding
from gradiometer.words import fmt

__all__ = ["target_network"]

EQUAL = 1e-9
"""Relative distance of two networks at which they are one."""
MIN_DISTANCES = 12
"""Measurements of it: an update every so often must have happened in between."""


@rule("target-network", needs=("target_distance",))
def target_network(chart: Chart) -> Verdict:
    """The target network is the online one, or is never updated; told from an agent that learns all the same."""
    id = "target-network"
    series = chart.get("target_distance")
    assert series is not None
    distance = series.finite
    if len(distance) < MIN_DISTANCES:
        return too_short(id, series, MIN_DISTANCES)
    progress = progress_of(chart)
    learns = progress is not None and not progress.stuck
    same = float(np.abs(distance.values).max()) <= EQUAL
    if not same and (learns or not never_updated(distance)):
        return None
    end = fmt(level(distance.last(0.1)))
    if same:
        title = f"The target network equals the online one at all {len(distance)} measurements"
        cause = (
            "Targets move with every update, as if there were no target network; or the distance is only ever measured "
        )
        cause += "right after a copy."
    else:
        title = f"The target network is never updated: its distance grows to {end} and never falls back"
        cause = (
            "The values bootstrap from weights as they were at the start, so nothing beyond one step is ever learnt."
        )
    return Finding(
        id=id,
        title=title,
        severity="info" if same and (learns or progress is None) else "warn",
        basis="heuristic" if same else "statistical",
        since_step=int(distance.steps[0]),
        evidence=(
            shown(series, f"{fmt(float(distance.values[0]))} at the start, {end} at the end"),
            *((progress.evidence,) if progress else ()),
        ),
        cause=cause,
        fix=(
            f"check {key_of(series, TARGET_KEYS, 'the update interval and τ')}, and that the update is called at all",
            "copy into another module (deepcopy, load_state_dict), never by assignment: target = online shares the weights",
        ),
        confirm="Compare one weight of both networks right before and right after an update of the target.",
        references=("failure catalogue F38", "RLExplorer", "Mnih et al. 2015"),
    )
