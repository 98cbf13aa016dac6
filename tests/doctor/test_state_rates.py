"""How often the doctor's state is wrong on made-up curves: the table of docs/mathematics.md.

Clear learning rises by 5 to 20 spreads of its noise (30 for 8 held-out scores), from 20 spreads
above zero, in what is logged: of an average over episodes the average. Flat noise stands at 20
spreads, or at zero.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from curves import NOISE, SHAPES, Array, Rng

from gradiometer.doctor.rundata import RunData
from gradiometer.doctor.state import State, state_of
from gradiometer.store.logs import Log

FAMILIES = ("independent", "AR(1) 0.9", "mean of 10", "mean of 100", "lognormal", "Student 1.5")
LEARNED = ("saturating", "linear", "late", "stairs")
SPREADS = {"lognormal": 6.05, "Student 1.5": 1.35}
"""Half of what lies between the 16th and the 84th percentile; 1 of the others."""
WINDOWS = {"mean of 10": 10, "mean of 100": 100}
LEVEL = 20.0
WORSE = {
    ("mean of 100", 100): "one window long: it is worth one independent value",
    ("mean of 100", 25): "a quarter of a window long: about zero it wanders like a rise",
}
"""Cells in which more than 2 % of flat noise is called learning."""


def called(values: Array, name: str = "reward") -> State:
    rows = [(step, {name: value}) for step, value in enumerate(values.tolist())]
    log = Log(Path("log"), name="log", run_id="log", rows=rows, facts={})
    return state_of(RunData(log), (), 0).state


def curve(rng: Rng, family: str, course: Array, *, level: float = LEVEL) -> Array:
    window, spread = WINDOWS.get(family, 1), SPREADS.get(family, 1.0)
    before = np.concatenate([np.full(window - 1, course[0]), course])
    logged = np.convolve(before, np.full(window, 1.0 / window), "valid")
    rise = (course[-1] - course[0]) / (logged[-1] - logged[0]) if np.ptp(course) else 1.0
    return level * spread + NOISE[family](rng, spread * rise * course)


def rates(family: str, n: int, runs: int) -> tuple[float, float, float]:
    """Shares of learning curves called not-learning or broken, and healthy or concern; and of flat
    ones called healthy or concern."""
    rng, name = np.random.default_rng(n), "val/reward" if n < 12 else "reward"
    low, high = (30.0, 30.0) if n < 12 else (5.0, 20.0)
    learned = [
        called(curve(rng, family, size * SHAPES[shape](n)), name)
        for shape in LEARNED
        for size in np.exp(rng.uniform(math.log(low), math.log(high), runs // 4))
    ]
    flat = [
        called(curve(rng, family, np.zeros(n), level=LEVEL * (place % 2)), name)
        for place in range(runs)
    ]
    missed = sum(state in ("not-learning", "broken") for state in learned) / len(learned)
    seen, alarms = (
        sum(state in ("healthy", "concern") for state in each) / len(each)
        for each in (learned, flat)
    )
    return missed, seen, alarms


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_right_on_clear_learning_and_on_flat_noise(family: str) -> None:
    """At a rate of 2 % three or more of 20 are wrong once in 140 such tests."""
    missed, _, alarms = rates(family, 60, 20)
    assert missed <= 0.1
    assert alarms <= 0.1


@pytest.mark.proof
@pytest.mark.parametrize("n", [8, 25, 100, 1000, 10_000])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_wrong_in_at_most_one_of_fifty(family: str, n: int) -> None:
    if n == 8 and family not in ("independent", "lognormal", "Student 1.5"):
        pytest.skip("8 values are judged where each was measured anew")
    runs = 400 if n <= 100 else 200 if n <= 1000 else 80
    missed, seen, alarms = rates(family, n, runs)
    print(f"| {family} | {n} | {missed:.1%} | {seen:.0%} | {alarms:.1%} |")
    margin = 0.02 + 2.0 * math.sqrt(0.02 / runs)
    assert missed <= margin
    assert alarms <= margin or (family, n) in WORSE
